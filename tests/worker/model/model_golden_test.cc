// Compares every supported family with Hugging Face transformers in float32, on models and numbers
// made by make_model_goldens.py: greedy tokens must be equal, and log-probabilities must agree.
//
// Tolerance: both sides compute in fp32 and differ in the order of their sums and in exp, tanh and
// rsqrt. A sum of n products of size 1 is off by some sqrt(n) * 2^-24; through two layers and the
// logits (of deviation 4) that is a few 1e-6, and 1e-5 is what is measured. 1e-4 leaves room for
// another compiler or instruction set and is far below any fault: a wrong RoPE angle, a window off
// by one or a missing bias moves log-probabilities by 1e-2 and more.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/model/model_runner.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr double kTolerance = 1e-4;
constexpr char kTestData[] = "tests/worker/model/testdata";

// Null when this machine lacks the instruction set.
std::unique_ptr<KernelBackend> MakeBackend(const std::string& name) {
  if (name == "reference") {
    return CreateReferenceBackend();
  }
  auto backend = CreateCpuBackend({.num_threads = 2, .isa = name});
  return backend.ok() ? std::move(*backend) : nullptr;
}

class ModelGoldenTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    backend_ = MakeBackend(std::get<1>(GetParam()));
    if (backend_ == nullptr) {
      GTEST_SKIP() << "this machine lacks " << std::get<1>(GetParam());
    }
    const std::string model_dir = std::string(kTestData) + "/" + std::get<0>(GetParam());
    auto model = LoadModel(model_dir, *backend_, nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = std::move(*model);
    cases_ = ReadGolden(model_dir + "/golden.json");
    ASSERT_FALSE(cases_.empty());
    runner_ = std::make_unique<ModelRunner>(*model_, *backend_, /*num_blocks=*/128);
  }

  void TearDown() override {
    if (model_ != nullptr) {
      RecordProperty("largest_error", std::to_string(largest_error_));
      std::printf("largest error of a log-probability: %.2e\n", largest_error_);
    }
  }

  // Compares one row of logits with a golden step; returns the greedy token.
  TokenId Compare(const std::vector<float>& logits, const GoldenStep& golden) {
    const std::vector<double> logprobs = LogSoftmax(logits);
    const auto best = std::max_element(logprobs.begin(), logprobs.end());
    double error = std::abs(*best - golden.logprob);
    for (size_t i = 0; i < golden.top_tokens.size(); ++i) {
      const double got = logprobs[static_cast<size_t>(golden.top_tokens[i])];
      error = std::max(error, std::abs(got - golden.top_logprobs[i]));
    }
    EXPECT_LE(error, kTolerance);
    largest_error_ = std::max(largest_error_, error);
    return static_cast<TokenId>(best - logprobs.begin());
  }

  // Greedy decoding after a prompt fed in pieces of `chunk`.
  void ExpectGolden(const GoldenCase& golden, int64_t chunk) {
    const int sequence = runner_->AddSequence();
    std::vector<float> logits = runner_->Feed(sequence, golden.prompt, chunk);
    for (const GoldenStep& step : golden.steps) {
      const TokenId token = Compare(logits, step);
      ASSERT_EQ(token, step.token);
      logits = runner_->Run({{.sequence = sequence, .tokens = {token}}}).front();
    }
  }

  std::unique_ptr<KernelBackend> backend_;
  std::unique_ptr<Model> model_;
  std::vector<GoldenCase> cases_;
  std::unique_ptr<ModelRunner> runner_;
  double largest_error_ = 0.0;
};

TEST_P(ModelGoldenTest, WholePrefillThenDecodeGivesTransformersTokens) {
  for (const GoldenCase& golden : cases_) {
    SCOPED_TRACE(golden.prompt.size());
    ExpectGolden(golden, static_cast<int64_t>(golden.prompt.size()));
  }
}

TEST_P(ModelGoldenTest, ChunkedPrefillThenDecodeGivesTransformersTokens) {
  for (const GoldenCase& golden : cases_) {
    SCOPED_TRACE(golden.prompt.size());
    ExpectGolden(golden, /*chunk=*/13);
  }
}

// Output goes in as prompt: the row before each of its tokens has the logits that chose the token.
TEST_P(ModelGoldenTest, RowsOfAPromptHaveTransformersLogprobs) {
  const GoldenCase& golden = cases_.front();
  const GoldenCase& other = cases_.back();
  std::vector<TokenId> tokens = golden.prompt;
  for (const GoldenStep& step : golden.steps) {
    tokens.push_back(step.token);
  }

  const auto rows =
      runner_->RunAndScore({{.sequence = runner_->AddSequence(), .tokens = other.prompt},
                            {.sequence = runner_->AddSequence(), .tokens = tokens}},
                           /*max_rows=*/7);

  ASSERT_EQ(rows.size(), other.prompt.size() + tokens.size());
  for (size_t i = 0; i < golden.steps.size(); ++i) {
    Compare(rows[other.prompt.size() + golden.prompt.size() - 1 + i], golden.steps[i]);
  }
}

TEST_P(ModelGoldenTest, SequencesOfOneBatchDoNotDisturbEachOther) {
  std::vector<std::vector<float>> logits;
  std::vector<ModelRunner::Slice> slices;
  for (const GoldenCase& golden : cases_) {
    slices.push_back({.sequence = runner_->AddSequence(), .tokens = golden.prompt});
  }

  // The first prompts go in together, the last one a little at a time beside their decoding.
  const std::vector<TokenId> last_prompt = slices.back().tokens;
  slices.back().tokens.resize(1);
  size_t fed = 1;
  size_t last_step = 0;
  logits = runner_->Run(slices);
  for (size_t step = 0; last_step < cases_.back().steps.size(); ++step) {
    std::vector<ModelRunner::Slice> next;
    for (size_t i = 0; i + 1 < cases_.size() && step < cases_[i].steps.size(); ++i) {
      SCOPED_TRACE(cases_[i].prompt.size());
      const TokenId token = Compare(logits[i], cases_[i].steps[step]);
      ASSERT_EQ(token, cases_[i].steps[step].token);
      next.push_back({.sequence = slices[i].sequence, .tokens = {token}});
    }
    if (fed < last_prompt.size()) {
      const size_t piece = std::min<size_t>(9, last_prompt.size() - fed);
      const auto begin = last_prompt.begin() + static_cast<std::ptrdiff_t>(fed);
      next.push_back({.sequence = slices.back().sequence,
                      .tokens = {begin, begin + static_cast<std::ptrdiff_t>(piece)}});
      fed += piece;
    } else {
      const TokenId token = Compare(logits.back(), cases_.back().steps[last_step]);
      ASSERT_EQ(token, cases_.back().steps[last_step].token);
      ++last_step;
      next.push_back({.sequence = slices.back().sequence, .tokens = {token}});
    }
    logits = runner_->Run(next);
  }
}

TEST_P(ModelGoldenTest, ChunkingDoesNotChangeABit) {
  const std::vector<TokenId>& prompt = cases_.back().prompt;

  const std::vector<float> whole =
      runner_->Feed(runner_->AddSequence(), prompt, static_cast<int64_t>(prompt.size()));
  const std::vector<float> in_chunks = runner_->Feed(runner_->AddSequence(), prompt, 7);
  const std::vector<float> by_token = runner_->Feed(runner_->AddSequence(), prompt, 1);

  EXPECT_EQ(whole, in_chunks);
  EXPECT_EQ(whole, by_token);
}

TEST_P(ModelGoldenTest, LogitsThatNobodyAskedForChangeNothing) {
  const GoldenCase& golden = cases_.front();
  const int sequence = runner_->AddSequence();

  runner_->RunWithoutLogits({{.sequence = sequence, .tokens = golden.prompt}});
  const std::vector<float> logits =
      runner_->Run({{.sequence = sequence, .tokens = {golden.steps[0].token}}}).front();

  EXPECT_EQ(Compare(logits, golden.steps[1]), golden.steps[1].token);
}

std::string CaseName(const testing::TestParamInfo<ModelGoldenTest::ParamType>& info) {
  return std::get<0>(info.param) + "_on_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(
    AllFamilies,
    ModelGoldenTest,
    testing::Combine(testing::ValuesIn(GoldenModels(kTestData)),
                     testing::Values("reference", "portable", "avx2", "avx512")),
    CaseName);

}  // namespace
}  // namespace quire
