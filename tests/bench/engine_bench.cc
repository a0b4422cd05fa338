// engine_bench: tokens per second of the whole engine (core, executor, model) without a network.
//
//   engine_bench --model DIR --threads 2 --mode decode --context 128 --batch 1,4,8,16,32 --steps 32
//   engine_bench --model DIR --threads 2 --mode prefill --context 512,2048
//
// decode: all sequences hold `context` tokens, then `steps` steps of one token each are timed.
// prefill: one prompt of `context` tokens, from its arrival to its first token.
// Prints one line a point: the median over --repeat rounds.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "common/base/clock.h"
#include "common/flags/command_line.h"
#include "tests/support/engine.h"
#include "tests/support/random.h"

ABSL_FLAG(std::string, model, "", "model directory");
ABSL_FLAG(int, threads, 2, "threads of the CPU backend");
ABSL_FLAG(std::string, isa, "", "instruction set; empty: the best");
ABSL_FLAG(std::string, mode, "decode", "decode or prefill");
ABSL_FLAG(std::string, context, "128", "tokens in the cache before, comma-separated");
ABSL_FLAG(std::string, batch, "1,4,8,16,32", "sequences, comma-separated");
ABSL_FLAG(int, steps, 32, "timed decode steps");
ABSL_FLAG(int, repeat, 3, "rounds");
ABSL_FLAG(int, max_num_batched_tokens, 512, "token budget of a step");
ABSL_FLAG(int, block_size, 16, "tokens in a block");

namespace quire {
namespace {

std::vector<int32_t> Numbers(const std::string& text) {
  std::vector<int32_t> numbers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    numbers.push_back(0);
    if (!absl::SimpleAtoi(part, &numbers.back())) {
      std::fprintf(stderr, "engine_bench: not a number: %s\n", text.c_str());
      std::exit(kExitUsage);  // NOLINT(concurrency-mt-unsafe)
    }
  }
  return numbers;
}

void AddRequests(Engine& engine, int32_t batch, int32_t prompt_tokens, int32_t output_tokens) {
  Random random(7);
  for (int32_t i = 0; i < batch; ++i) {
    Request request;
    request.id = RequestId(static_cast<uint64_t>(i) + 1);
    request.prompt_token_ids.resize(static_cast<size_t>(prompt_tokens));
    for (TokenId& id : request.prompt_token_ids) {
      id = random.Below(engine.config().vocab_size);
    }
    request.sampling.temperature = 0;
    request.max_tokens = output_tokens;
    engine.Add(std::move(request));
  }
}

// What the first sequences produce while the last ones are still being prefilled.
int32_t SpareTokens(int32_t batch, int32_t context) {
  return 2 + batch + 2 * batch * context / absl::GetFlag(FLAGS_max_num_batched_tokens);
}

// Seconds.
double TimeDecode(Engine& engine, int32_t batch, int32_t context, int32_t steps) {
  AddRequests(engine, batch, context, steps + SpareTokens(batch, context));
  while (engine.Step() && (engine.last_num_slices() < batch || engine.last_num_tokens() > batch)) {
  }
  const Instant start = SteadyNow();
  for (int32_t i = 0; i < steps; ++i) {
    engine.Step();
  }
  return static_cast<double>(SteadyNow() - start) / 1e9;
}

double TimePrefill(Engine& engine, int32_t context) {
  AddRequests(engine, 1, context, 1);
  const Instant start = SteadyNow();
  engine.RunToEnd();
  return static_cast<double>(SteadyNow() - start) / 1e9;
}

template <typename Time>
double Median(Time time) {
  std::vector<double> seconds(static_cast<size_t>(std::max(absl::GetFlag(FLAGS_repeat), 1)));
  for (double& second : seconds) {
    second = time();
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

int Main() {
  EngineOptions options = {.num_threads = absl::GetFlag(FLAGS_threads),
                           .isa = absl::GetFlag(FLAGS_isa),
                           .block_size_tokens = absl::GetFlag(FLAGS_block_size),
                           .max_tokens_per_step = absl::GetFlag(FLAGS_max_num_batched_tokens)};
  const bool decode = absl::GetFlag(FLAGS_mode) == "decode";
  const int32_t steps = absl::GetFlag(FLAGS_steps);
  const std::vector<int32_t> contexts = Numbers(absl::GetFlag(FLAGS_context));
  const std::vector<int32_t> batches =
      decode ? Numbers(absl::GetFlag(FLAGS_batch)) : std::vector<int32_t>{1};
  options.max_sequences = *std::max_element(batches.begin(), batches.end());
  const int32_t longest = *std::max_element(contexts.begin(), contexts.end());
  options.max_model_len = longest + steps + SpareTokens(options.max_sequences, longest);
  auto engine = Engine::Create(absl::GetFlag(FLAGS_model), options);
  if (!engine.ok()) {
    std::fprintf(stderr, "engine_bench: %s\n", std::string(engine.status().message()).c_str());
    return kExitModel;
  }
  std::printf("backend %s, %d threads\n", (*engine)->backend_name().c_str(), options.num_threads);
  for (int32_t context : contexts) {
    for (int32_t batch : batches) {
      const double seconds = Median([&] {
        if (!(*engine)->Reset(options).ok()) {
          std::exit(1);  // NOLINT(concurrency-mt-unsafe)
        }
        return decode ? TimeDecode(**engine, batch, context, steps)
                      : TimePrefill(**engine, context);
      });
      const double tokens = decode ? static_cast<double>(batch) * steps : context;
      std::printf("%s context %5d batch %3d: %9.1f tok/s\n",
                  decode ? "decode " : "prefill",
                  context,
                  batch,
                  tokens / seconds);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::ParseCommandLineOrExit(argc,
                                argv,
                                {.name = "engine_bench",
                                 .usage = "--model DIR [flags]",
                                 .summary = "Tokens per second of the engine without a network."});
  return quire::Main();
}
