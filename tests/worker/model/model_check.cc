// model_check <model_dir> <golden.json> [reference | portable | avx2 | avx512]
//
// Loads a model, decodes the prompts of a golden file greedily and compares with it: for models too
// large for the test suite. Prints the times, the tokens that differ and the largest error of a
// log-probability. Exit code 1 when a token differs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/model/model_runner.h"
#include "worker/model/load_progress.h"
#include "worker/model/model.h"

namespace quire {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Differences {
  int tokens = 0;
  double largest_error = 0.0;
};

void Compare(const std::vector<float>& logits, const GoldenStep& golden, Differences& differences) {
  const std::vector<double> logprobs = LogSoftmax(logits);
  const auto best = std::max_element(logprobs.begin(), logprobs.end());
  differences.tokens += best - logprobs.begin() == golden.token ? 0 : 1;
  for (size_t i = 0; i < golden.top_tokens.size(); ++i) {
    const double got = logprobs[static_cast<size_t>(golden.top_tokens[i])];
    differences.largest_error =
        std::max(differences.largest_error, std::abs(got - golden.top_logprobs[i]));
  }
}

int Run(const std::string& model_dir, const std::string& golden_path, const std::string& isa) {
  std::unique_ptr<KernelBackend> backend = CreateReferenceBackend();
  if (isa != "reference") {
    auto cpu = CreateCpuBackend({.isa = isa});
    if (!cpu.ok()) {
      std::fprintf(stderr, "%s\n", std::string(cpu.status().message()).c_str());
      return 1;
    }
    backend = std::move(*cpu);
  }
  const auto load_start = std::chrono::steady_clock::now();
  LoadProgressBar bar;
  auto model = LoadModel(model_dir, *backend, [&bar](const LoadProgress& p) { bar.Update(p); });
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
    return 1;
  }
  std::printf("%s: loaded in %.3f s, %lld bytes packed\n",
              backend->name().c_str(),
              SecondsSince(load_start),
              static_cast<long long>((*model)->weight_bytes()));

  ModelRunner runner(**model, *backend, /*num_blocks=*/256);
  Differences differences;
  int num_tokens = 0;
  const auto decode_start = std::chrono::steady_clock::now();
  for (const GoldenCase& golden : ReadGolden(golden_path)) {
    const int sequence = runner.AddSequence();
    auto logits = runner.Feed(sequence, golden.prompt, static_cast<int64_t>(golden.prompt.size()));
    for (const GoldenStep& step : golden.steps) {
      Compare(logits, step, differences);
      // The golden token goes in, so that one difference does not hide what follows.
      logits = runner.Run({{.sequence = sequence, .tokens = {step.token}}}).front();
      ++num_tokens;
    }
  }
  std::printf("%d tokens in %.2f s, %d differ, largest error of a log-probability %.2e\n",
              num_tokens,
              SecondsSince(decode_start),
              differences.tokens,
              differences.largest_error);
  return differences.tokens == 0 ? 0 : 1;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: model_check <model_dir> <golden.json> [backend]\n");
    return 2;
  }
  return quire::Run(argv[1], argv[2], argc == 4 ? argv[3] : "");
}
