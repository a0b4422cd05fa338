// Measures the loss of accuracy of a KV cache of fewer bits, with every golden model and the
// bundled one. They are fed with the tokens that Hugging Face transformers wrote in fp32, and
// compared with its log-probabilities. Its tokens are fed even if this model would have chosen
// others, so that one early difference does not spoil all later ones.
//
// The figures are in kernels/README.md. The limits here are about twice the measured errors
// (float32: those of the other model tests). The tiny models have random weights, whose next tokens
// are nearly equally likely.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/cpu_backends.h"
#include "tests/worker/model/model_runner.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr char kTestData[] = "tests/worker/model/testdata";
constexpr char kBundledModel[] = "deploy/model";
constexpr char kBundledGolden[] = "tests/worker/model/bundled_model_golden.json";

// Errors of the log-probabilities of transformers' tokens.
struct Accuracy {
  int num_tokens = 0;
  int num_same = 0;  // the likeliest token is transformers'
  double largest = 0.0;
  double sum = 0.0;

  void Add(const std::vector<float>& logits, const GoldenStep& golden) {
    const std::vector<double> logprobs = LogSoftmax(logits);
    const auto best = std::max_element(logprobs.begin(), logprobs.end()) - logprobs.begin();
    const double error = std::abs(logprobs[static_cast<size_t>(golden.token)] - golden.logprob);
    ++num_tokens;
    num_same += best == golden.token ? 1 : 0;
    // Not std::max, which drops a NaN.
    largest = error <= largest ? largest : error;
    sum += error;
  }
  double mean() const { return sum / num_tokens; }
  double share_same() const { return static_cast<double>(num_same) / num_tokens; }
};

// Feeds the tokens of every case, even if the model would have chosen others.
void Measure(Model& model,
             KernelBackend& backend,
             DType dtype,
             const std::vector<GoldenCase>& cases,
             Accuracy* accuracy) {
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase& golden : cases) {
    ModelRunner runner(model, backend, /*num_blocks=*/64, dtype);
    const int sequence = runner.AddSequence();
    std::vector<float> logits =
        runner.Feed(sequence, golden.prompt, static_cast<int64_t>(golden.prompt.size()));
    for (const GoldenStep& step : golden.steps) {
      accuracy->Add(logits, step);
      logits = runner.Run({{.sequence = sequence, .tokens = {step.token}}}).front();
    }
  }
}

// The prompts with the tokens that the model itself adds, greedily and with an fp32 cache.
std::vector<GoldenCase> Continued(Model& model,
                                  KernelBackend& backend,
                                  std::vector<GoldenCase> cases,
                                  int num_steps) {
  for (GoldenCase& c : cases) {
    ModelRunner runner(model, backend, /*num_blocks=*/64, DType::kF32);
    const int sequence = runner.AddSequence();
    std::vector<float> logits =
        runner.Feed(sequence, c.prompt, static_cast<int64_t>(c.prompt.size()));
    c.steps.clear();
    for (int i = 0; i < num_steps; ++i) {
      const std::vector<double> logprobs = LogSoftmax(logits);
      const auto best = std::max_element(logprobs.begin(), logprobs.end());
      const auto token = static_cast<TokenId>(best - logprobs.begin());
      c.steps.push_back({.token = token, .logprob = *best, .top_tokens = {}, .top_logprobs = {}});
      logits = runner.Run({{.sequence = sequence, .tokens = {token}}}).front();
    }
  }
  return cases;
}

struct Limits {
  DType dtype = DType::kF32;
  double mean = 0.0;
  double largest = 0.0;
  double share_same = 1.0;  // at least
};

class KvCacheDtypeTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "reference") {
      backend_ = CreateReferenceBackend();
      return;
    }
    auto backend = CreateCpuBackend({.num_threads = 2, .isa = GetParam()});
    if (!backend.ok()) {
      GTEST_SKIP() << backend.status();
    }
    backend_ = *std::move(backend);
  }

  static void Expect(const Accuracy& accuracy, const Limits& limits, const std::string& model) {
    std::printf("%s %s: mean %.1e, largest %.1e, same tokens %d of %d\n",
                model.c_str(),
                std::string(NameOf(limits.dtype)).c_str(),
                accuracy.mean(),
                accuracy.largest,
                accuracy.num_same,
                accuracy.num_tokens);
    EXPECT_LE(accuracy.mean(), limits.mean);
    EXPECT_LE(accuracy.largest, limits.largest);
    EXPECT_GE(accuracy.share_same(), limits.share_same);
  }

  std::unique_ptr<KernelBackend> backend_;
};

TEST_P(KvCacheDtypeTest, GoldenModelsStayCloseToTransformers) {
  for (const Limits& limits : {Limits{DType::kF32, 1e-5, 1e-4, 1.0},
                               Limits{DType::kBF16, 2e-3, 4e-2, 1.0},
                               Limits{DType::kInt8, 4e-3, 9e-2, 0.999},
                               Limits{DType::kF8E4M3, 2e-2, 0.4, 0.995}}) {
    if (RoundsToBF16(GetParam()) && limits.dtype == DType::kF32) {
      continue;  // products of bf16 weights, which some of these have, round more
    }
    Accuracy accuracy;
    for (const auto& entry : std::filesystem::directory_iterator(kTestData)) {
      const std::string dir = entry.path().string();
      auto model = LoadModel(dir, *backend_, nullptr);
      ASSERT_TRUE(model.ok()) << model.status();
      Measure(**model, *backend_, limits.dtype, ReadGolden(dir + "/golden.json"), &accuracy);
    }
    Expect(accuracy, limits, "golden models");
  }
}

TEST_P(KvCacheDtypeTest, TheBundledModelStaysCloseToTransformers) {
  if (RoundsToBF16(GetParam())) {
    GTEST_SKIP() << "products of its bf16 weights round more: bundled_model_test";
  }
  auto model = LoadModel(kBundledModel, *backend_, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  for (const Limits& limits : {Limits{DType::kF32, 1e-4, 2e-4, 1.0},
                               Limits{DType::kBF16, 1e-3, 1e-2, 1.0},
                               Limits{DType::kInt8, 2e-3, 2e-2, 1.0},
                               Limits{DType::kF8E4M3, 9e-3, 9e-2, 1.0}}) {
    Accuracy accuracy;
    Measure(**model, *backend_, limits.dtype, ReadGolden(kBundledGolden), &accuracy);
    Expect(accuracy, limits, "bundled model");
  }
}

// The text of transformers is short. Errors of stored tokens must not add up as the context grows.
TEST_P(KvCacheDtypeTest, TheBundledModelStaysCloseToItselfOverALongContext) {
  if (GetParam() == "reference") {
    GTEST_SKIP() << "takes long";
  }
  constexpr int kSteps = 400;
  auto model = LoadModel(kBundledModel, *backend_, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<GoldenCase> cases =
      Continued(**model, *backend_, ReadGolden(kBundledGolden), kSteps);
  for (const Limits& limits : {Limits{DType::kBF16, 5e-4, 2e-2, 0.995},
                               Limits{DType::kInt8, 1e-3, 6e-2, 0.99},
                               Limits{DType::kF8E4M3, 4e-3, 0.1, 0.98}}) {
    Accuracy accuracy;
    Measure(**model, *backend_, limits.dtype, cases, &accuracy);
    Expect(accuracy, limits, "bundled model, long");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    KvCacheDtypeTest,
    testing::Values("amx", "avx512bf16", "avx512", "avx2", "portable", "reference"),
    [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire
