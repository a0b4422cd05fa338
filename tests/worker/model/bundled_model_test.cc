// The model that comes with the source tree loads, and gives the tokens of transformers.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/cpu_backends.h"
#include "tests/worker/model/model_runner.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr char kModelDir[] = "deploy/model";
constexpr char kGolden[] = "tests/worker/model/bundled_model_golden.json";

// The width is 256, so sums are longer than in the tiny models of model_golden_test.cc, which
// explains the tolerance. Measured: 2e-5. The path that multiplies in bf16 rounds every input of a
// product to 8 bits, a relative error of up to 2^-9 each. Measured: 2.4e-3.
double ToleranceOf(const std::string& isa) { return RoundsToBF16(isa) ? 2e-2 : 2e-4; }

class BundledModelTest : public testing::TestWithParam<std::string> {};

TEST_P(BundledModelTest, GivesTransformersTokens) {
  auto backend = CreateCpuBackend({.num_threads = 2, .isa = GetParam()});
  if (!backend.ok()) {
    GTEST_SKIP() << backend.status();
  }
  auto model = LoadModel(kModelDir, **backend, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  ModelRunner runner(**model, **backend, /*num_blocks=*/64);

  double largest_error = 0.0;
  for (const GoldenCase& golden : ReadGolden(kGolden)) {
    const int sequence = runner.AddSequence();
    std::vector<float> logits =
        runner.Feed(sequence, golden.prompt, static_cast<int64_t>(golden.prompt.size()));
    for (const GoldenStep& step : golden.steps) {
      const std::vector<double> logprobs = LogSoftmax(logits);
      const auto best = std::max_element(logprobs.begin(), logprobs.end());
      const auto token = static_cast<TokenId>(best - logprobs.begin());

      ASSERT_EQ(token, step.token) << "after a new training, make " << kGolden << " again";
      EXPECT_NEAR(*best, step.logprob, ToleranceOf(GetParam()));
      largest_error = std::max(largest_error, std::abs(*best - step.logprob));
      logits = runner.Run({{.sequence = sequence, .tokens = {token}}}).front();
    }
  }
  std::printf("largest error of a log-probability: %.2e\n", largest_error);
}

INSTANTIATE_TEST_SUITE_P(Isas,
                         BundledModelTest,
                         testing::Values("amx", "avx512bf16", "avx512", "avx2", "portable"),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace quire
