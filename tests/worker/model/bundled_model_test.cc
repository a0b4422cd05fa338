// The model that comes with the source tree loads, and gives the tokens of transformers.
#include <algorithm>
#include <cmath>
#include <memory>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "tests/worker/model/model_runner.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr char kModelDir[] = "deploy/model";
constexpr char kGolden[] = "tests/worker/model/bundled_model_golden.json";

// The width is 256: sums are longer than in the tiny models of model_golden_test.cc, where the
// tolerance is argued for; 2e-5 is what is measured.
constexpr double kTolerance = 2e-4;

TEST(BundledModelTest, GivesTransformersTokens) {
  auto backend = CreateCpuBackend({.num_threads = 2});
  ASSERT_TRUE(backend.ok()) << backend.status();
  auto model = LoadModel(kModelDir, **backend, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  ModelRunner runner(**model, **backend, /*num_blocks=*/64);

  for (const GoldenCase& golden : ReadGolden(kGolden)) {
    const int sequence = runner.AddSequence();
    std::vector<float> logits =
        runner.Feed(sequence, golden.prompt, static_cast<int64_t>(golden.prompt.size()));
    for (const GoldenStep& step : golden.steps) {
      const std::vector<double> logprobs = LogSoftmax(logits);
      const auto best = std::max_element(logprobs.begin(), logprobs.end());
      const auto token = static_cast<TokenId>(best - logprobs.begin());

      ASSERT_EQ(token, step.token) << "after a new training, make " << kGolden << " again";
      EXPECT_NEAR(*best, step.logprob, kTolerance);
      logits = runner.Run({{.sequence = sequence, .tokens = {token}}}).front();
    }
  }
}

}  // namespace
}  // namespace quire
