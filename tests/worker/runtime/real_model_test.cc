// StepExecutor with a real model gives the tokens and log-probabilities of Hugging Face
// transformers, through plans, block tables, batches of mixed slices and the sampler.
//
// The tolerance is that of model_golden_test: fp32 sums in another order.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/math.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/model/model_runner.h"
#include "tests/support/with_digest.h"
#include "worker/model/model.h"
#include "worker/runtime/step_executor.h"

namespace quire {
namespace {

constexpr float kTolerance = 1e-4F;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumTop = 5;
constexpr char kModelDir[] = "tests/worker/model/testdata/llama";

// A scheduler's record of one sequence.
struct Running {
  const GoldenCase* golden = nullptr;
  int32_t num_computed_tokens = 0;
  int32_t num_blocks = 0;
  std::vector<SampledToken> output;

  int32_t num_known_tokens() const {
    return static_cast<int32_t>(golden->prompt.size() + output.size());
  }
  bool is_finished() const { return output.size() == golden->steps.size(); }
};

// backend name, most tokens of one sequence in a step
class RealModelTest : public testing::TestWithParam<std::tuple<std::string, int32_t>> {
 protected:
  void SetUp() override {
    backend_ = std::get<0>(GetParam()) == "reference"
                   ? CreateReferenceBackend()
                   : *CreateCpuBackend({.num_threads = 2, .isa = ""});
    auto model = LoadModel(kModelDir, *backend_, nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    cases_ = ReadGolden(std::string(kModelDir) + "/golden.json");
    ASSERT_FALSE(cases_.empty());
    executor_ = std::make_unique<StepExecutor>(
        *model_, *backend_, KvCacheBudget{.bytes = 64 << 20, .num_blocks_override = 0});
    ASSERT_TRUE(executor_
                    ->BeginEpoch({.scheduler_incarnation = 1,
                                  .group_epoch = 1,
                                  .limits = {.num_blocks = 500,
                                             .block_size_tokens = kBlockSize,
                                             .max_sequences = 64,
                                             .max_tokens_per_step = 4096,
                                             .max_model_len = 512},
                                  .kv_cache_dtype = DType::kF32})
                    .ok());
  }

  static SequenceIntroduction Introduce(SequenceHandle handle, const Running& running) {
    SequenceIntroduction introduction;
    introduction.handle = handle;
    introduction.token_ids = running.golden->prompt;
    introduction.num_prompt_tokens = static_cast<int32_t>(running.golden->prompt.size());
    introduction.sampling.temperature = 0.0F;
    introduction.sampling.num_logprobs = kNumTop;
    return introduction;
  }

  SequenceSlice NextSlice(SequenceHandle handle, Running& running) {
    int32_t num_tokens =
        std::min(std::get<1>(GetParam()), running.num_known_tokens() - running.num_computed_tokens);
    SequenceSlice slice{.handle = handle, .num_tokens = num_tokens, .new_block_ids = {}};
    running.num_computed_tokens += num_tokens;
    while (running.num_blocks < DivCeil(running.num_computed_tokens, kBlockSize)) {
      // Blocks are handed out in turns, so that tables of neighbours are interleaved.
      slice.new_block_ids.push_back(next_block_++);
      ++running.num_blocks;
    }
    return slice;
  }

  std::unique_ptr<KernelBackend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<StepExecutor> executor_;
  std::vector<GoldenCase> cases_;
  BlockId next_block_ = 1;
};

TEST_P(RealModelTest, AllSequencesTogetherGiveTheGoldenTokensAndLogprobs) {
  std::map<SequenceHandle, Running> running;
  StepPlan plan;
  plan.header = {.scheduler_incarnation = 1, .group_epoch = 1, .step_id = 0};
  for (size_t i = 0; i < cases_.size(); ++i) {
    auto handle = static_cast<SequenceHandle>(i);
    running[handle].golden = &cases_[i];
    plan.introductions.push_back(Introduce(handle, running[handle]));
  }

  bool is_done = false;
  while (!is_done) {
    ++plan.header.step_id;
    plan.slices.clear();
    for (auto& [handle, sequence] : running) {
      if (!sequence.is_finished()) {
        plan.slices.push_back(NextSlice(handle, sequence));
      }
    }
    is_done = plan.slices.empty();
    auto result = executor_->Execute(WithDigest(plan));
    ASSERT_TRUE(result.ok()) << result.status();
    for (const SampledToken& sampled : (*result)->sampled) {
      running[sampled.handle].output.push_back(sampled);
    }
    plan.introductions.clear();
  }

  for (const auto& [handle, sequence] : running) {
    for (size_t i = 0; i < sequence.output.size(); ++i) {
      SCOPED_TRACE("case " + std::to_string(handle) + ", token " + std::to_string(i));
      const SampledToken& sampled = sequence.output[i];
      const GoldenStep& golden = sequence.golden->steps[i];
      ASSERT_EQ(sampled.token_id, golden.token);
      EXPECT_NEAR(sampled.logprob, golden.logprob, kTolerance);
      ASSERT_EQ(sampled.top_logprobs.size(), static_cast<size_t>(kNumTop));
      for (size_t k = 0; k < std::min<size_t>(kNumTop, golden.top_tokens.size()); ++k) {
        EXPECT_EQ(sampled.top_logprobs[k].token_id, golden.top_tokens[k]);
        EXPECT_NEAR(sampled.top_logprobs[k].logprob, golden.top_logprobs[k], kTolerance);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         RealModelTest,
                         testing::Combine(testing::Values("reference", "cpu"),
                                          testing::Values(7, 512)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_slices_of_" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace quire
