// engine_bench: tokens per second of the whole engine (core, executor, model) without a network.
//
//   engine_bench --model DIR --threads 2 --mode decode --context 128 --batch 1,4,8,16,32 --steps 32
//   engine_bench --model DIR --threads 2 --mode prefill --context 512,2048
//   engine_bench --model tests/bench/small --dummy_weights --threads 1 --ranks 2
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

ABSL_FLAG(std::string, model, "", "model directory or GGUF file");
ABSL_FLAG(bool, dummy_weights, false, "weights from a seed: the directory needs config.json alone");
ABSL_FLAG(int, threads, 2, "threads of the CPU backend, of each rank");
ABSL_FLAG(int, ranks, 1, "tensor parallelism: ranks are threads of this process");
ABSL_FLAG(std::string, isa, "", "instruction set; empty: the best");
ABSL_FLAG(std::string, quantization, "none", "none, int8 or int4: rounds plain weights");
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

CpuQuantization Quantization(const std::string& name) {
  return name == "int8"   ? CpuQuantization::kInt8
         : name == "int4" ? CpuQuantization::kInt4
                          : CpuQuantization::kNone;
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

// Spare output tokens, so that the first sequences do not end while the last ones are still being
// prefilled.
int32_t SpareTokens(int32_t batch, int32_t context) {
  return 2 + batch + 2 * batch * context / absl::GetFlag(FLAGS_max_num_batched_tokens);
}

struct Timed {
  double seconds = 0;
  double collective_seconds = 0;
};

void AddStep(const Engine& engine, Timed* timed) {
  timed->collective_seconds += static_cast<double>(engine.last_timings().collective_us) / 1e6;
}

Timed TimeDecode(Engine& engine, int32_t batch, int32_t context, int32_t steps) {
  AddRequests(engine, batch, context, steps + SpareTokens(batch, context));
  while (engine.Step() && (engine.last_num_slices() < batch || engine.last_num_tokens() > batch)) {
  }
  const Instant start = SteadyNow();
  Timed timed;
  for (int32_t i = 0; i < steps; ++i) {
    engine.Step();
    AddStep(engine, &timed);
  }
  timed.seconds = static_cast<double>(SteadyNow() - start) / 1e9;
  return timed;
}

Timed TimePrefill(Engine& engine, int32_t context) {
  AddRequests(engine, 1, context, 1);
  const Instant start = SteadyNow();
  Timed timed;
  while (engine.Step()) {
    AddStep(engine, &timed);
  }
  timed.seconds = static_cast<double>(SteadyNow() - start) / 1e9;
  return timed;
}

template <typename Time>
Timed Median(Time time) {
  std::vector<Timed> rounds(static_cast<size_t>(std::max(absl::GetFlag(FLAGS_repeat), 1)));
  for (Timed& round : rounds) {
    round = time();
  }
  std::sort(rounds.begin(), rounds.end(), [](const Timed& a, const Timed& b) {
    return a.seconds < b.seconds;
  });
  return rounds[rounds.size() / 2];
}

int Main() {
  EngineOptions options = {.num_threads = absl::GetFlag(FLAGS_threads),
                           .num_ranks = absl::GetFlag(FLAGS_ranks),
                           .isa = absl::GetFlag(FLAGS_isa),
                           .quantization = Quantization(absl::GetFlag(FLAGS_quantization)),
                           .has_dummy_weights = absl::GetFlag(FLAGS_dummy_weights),
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
  std::printf("backend %s, %d ranks, %d threads each\n",
              (*engine)->backend_name().c_str(),
              options.num_ranks,
              options.num_threads);
  for (int32_t context : contexts) {
    for (int32_t batch : batches) {
      const Timed timed = Median([&] {
        if (!(*engine)->Reset(options).ok()) {
          std::exit(1);  // NOLINT(concurrency-mt-unsafe)
        }
        return decode ? TimeDecode(**engine, batch, context, steps)
                      : TimePrefill(**engine, context);
      });
      const double tokens = decode ? static_cast<double>(batch) * steps : context;
      std::printf("%s context %5d batch %3d: %9.1f tok/s",
                  decode ? "decode " : "prefill",
                  context,
                  batch,
                  tokens / timed.seconds);
      if (options.num_ranks > 1) {
        std::printf(", %4.1f %% of it in collectives",
                    100 * timed.collective_seconds / timed.seconds);
      }
      std::printf("\n");
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
