// What a KV cache of fewer bits costs in accuracy: every golden model and the bundled one, fed with
// the tokens that Hugging Face transformers wrote in fp32, beside its log-probabilities. Feeding
// its tokens whatever this side would have chosen keeps one early difference from spoiling all that
// follows.
//
// The figures are in kernels/README.md; the limits here are about twice what is measured. The tiny
// models are of random weights, whose next tokens are close to each other.
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

void Measure(const std::string& model_dir,
             const std::string& golden_path,
             KernelBackend& backend,
             DType dtype,
             Accuracy* accuracy) {
  auto model = LoadModel(model_dir, backend, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<GoldenCase> cases = ReadGolden(golden_path);
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase& golden : cases) {
    ModelRunner runner(**model, backend, /*num_blocks=*/64, dtype);
    const int sequence = runner.AddSequence();
    std::vector<float> logits =
        runner.Feed(sequence, golden.prompt, static_cast<int64_t>(golden.prompt.size()));
    for (const GoldenStep& step : golden.steps) {
      accuracy->Add(logits, step);
      logits = runner.Run({{.sequence = sequence, .tokens = {step.token}}}).front();
    }
  }
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
  for (const Limits& limits : {Limits{DType::kF32, 1e-4, 1e-4, 1.0},
                               Limits{DType::kBF16, 0.05, 0.5, 0.9},
                               Limits{DType::kInt8, 0.05, 0.5, 0.9},
                               Limits{DType::kF8E4M3, 0.2, 2.0, 0.8}}) {
    Accuracy accuracy;
    for (const auto& entry : std::filesystem::directory_iterator(kTestData)) {
      Measure(entry.path().string(),
              entry.path().string() + "/golden.json",
              *backend_,
              limits.dtype,
              &accuracy);
    }
    Expect(accuracy, limits, "golden models");
  }
}

TEST_P(KvCacheDtypeTest, TheBundledModelStaysCloseToTransformers) {
  for (const Limits& limits : {Limits{DType::kF32, 1e-3, 2e-2, 1.0},
                               Limits{DType::kBF16, 0.05, 0.5, 0.9},
                               Limits{DType::kInt8, 0.05, 0.5, 0.9},
                               Limits{DType::kF8E4M3, 0.2, 2.0, 0.8}}) {
    Accuracy accuracy;
    Measure(kBundledModel, kBundledGolden, *backend_, limits.dtype, &accuracy);
    Expect(accuracy, limits, "bundled model");
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         KvCacheDtypeTest,
                         testing::Values("avx512", "avx2", "portable", "reference"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire
