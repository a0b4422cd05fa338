#include "common/step/step_bytes.h"

#include "gtest/gtest.h"

#include "common/base/math.h"
#include "common/step/step_plan_check.h"
#include "common/wire/channel.h"
#include "common/wire/step_codec.h"

namespace quire {
namespace {

constexpr uint32_t kLargest = 0xFFFF'FFFF;

SequenceIntroduction Longest(int32_t num_tokens, int32_t block_size_tokens) {
  SequenceIntroduction introduction;
  introduction.handle = kLargest;
  introduction.token_ids.assign(static_cast<size_t>(num_tokens), 7);
  introduction.num_prompt_tokens = -1;  // ten bytes
  introduction.num_computed_tokens = -1;
  introduction.block_ids.assign(static_cast<size_t>(DivCeil(num_tokens, block_size_tokens)), 7);
  introduction.sequence_index = -1;
  introduction.sampling = {.temperature = 0.5F,
                           .top_k = -1,
                           .top_p = 0.5F,
                           .min_p = 0.5F,
                           .repetition_penalty = 2.0F,
                           .presence_penalty = 1.0F,
                           .frequency_penalty = 1.0F,
                           .num_logprobs = -1,
                           .min_tokens = -1,
                           .seed = ~uint64_t{0}};
  introduction.sampling.logit_bias.assign(300, {7, 1.0F});
  introduction.sampling.banned_before_min_tokens.assign(64 + 2 * 1024, 7);
  return introduction;
}

int64_t BytesOf(const StepPlan& plan) {
  v1::StepRequest request;
  EncodePlan(plan, &request);
  return static_cast<int64_t>(request.ByteSizeLong());
}

TEST(StepBytesTest, AnIntroductionIsNoLongerThanCounted) {
  for (const int32_t num_tokens : {1, 100, 30'000}) {
    StepPlan plan;
    const int64_t empty = BytesOf(plan);
    plan.introductions.push_back(Longest(num_tokens, 16));
    const SequenceIntroduction& introduction = plan.introductions.front();

    const int64_t counted = IntroductionBytes(
        num_tokens, static_cast<int64_t>(introduction.block_ids.size()), introduction.sampling);

    EXPECT_LE(BytesOf(plan) - empty, counted) << num_tokens;
    EXPECT_LE(counted, BytesOf(plan) - empty + 256) << num_tokens;
  }
}

// Everything that a plan can have at once, and more: swaps of all host blocks both ways.
TEST(StepBytesTest, TheLongestPlanIsNoLongerThanCounted) {
  const StepLimits limits = {.num_blocks = 50'000,
                             .num_host_blocks = 20'000,
                             .block_size_tokens = 16,
                             .max_sequences = 4096,
                             .max_tokens_per_step = 8192,
                             .max_model_len = 131'072,
                             .vocab_size = 100};
  StepPlan plan;
  plan.header = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};
  plan.digest = ~uint64_t{0};
  const auto count = [](int32_t number) { return static_cast<size_t>(number); };
  plan.swap_ins.assign(count(limits.num_host_blocks), {.block = 1, .host_block = 1});
  plan.copies.assign(2 * count(limits.max_sequences), {.src = 1, .dst = 2});
  plan.releases.assign(count(limits.max_sequences), 1);
  plan.spare = {.handle = 1, .block_ids = std::vector<BlockId>(count(kMaxSpareBlocks), 1)};
  plan.slices.assign(count(limits.max_sequences),
                     {.handle = 1,
                      .num_tokens = 2,
                      .new_block_ids = {1, 2, 3},  // together: one a token, one a sequence
                      .forced_token_id = 1,
                      .next_block_id = 2});
  int64_t left = kIntroductionBudgetBytes;
  plan.introductions.assign(2, Longest(limits.max_model_len, limits.block_size_tokens));
  const SequenceIntroduction small = Longest(1, limits.block_size_tokens);
  const int64_t small_bytes = IntroductionBytes(1, 1, small.sampling);
  for (; left >= small_bytes; left -= small_bytes) {
    plan.introductions.push_back(small);
  }

  EXPECT_LE(BytesOf(plan), MaxStepBytes(limits));
  EXPECT_LE(MaxStepBytes(limits), BytesOf(plan) + 100'000) << "the bound is close";

  StepLimits pages = limits;
  pages.blocks_per_page = 64;
  plan.copies.resize(plan.copies.size() + kMaxPageCopies, {.src = 1, .dst = 2});
  EXPECT_LE(BytesOf(plan), MaxStepBytes(pages));
}

TEST(StepBytesTest, LimitsWhoseLongestPlanDoesNotFitAMessageAreRefused) {
  StepLimits limits = {.num_blocks = kMaxBlocksLimit,
                       .num_host_blocks = kMaxHostBlocksLimit,
                       .block_size_tokens = 16,
                       .max_sequences = kMaxSequencesLimit,
                       .max_tokens_per_step = kMaxTokensPerStepLimit,
                       .max_model_len = 4 << 20,
                       .vocab_size = 100};
  ASSERT_TRUE(Validate(limits).ok());
  EXPECT_TRUE(CheckMessageFits(limits).ok()) << CheckMessageFits(limits);

  limits.max_model_len = 6 << 20;

  EXPECT_EQ(CheckMessageFits(limits).code(), absl::StatusCode::kInvalidArgument);
  limits.num_host_blocks = 0;
  EXPECT_TRUE(CheckMessageFits(limits).ok()) << CheckMessageFits(limits);
}

// An answer has a row for each sequence, with the likeliest tokens of each, and failed swap-ins.
TEST(StepBytesTest, TheLongestAnswerFitsAMessage) {
  StepResult result;
  result.sampled.assign(kMaxSequencesLimit, {.handle = 1, .token_id = 2});
  for (SampledToken& sampled : result.sampled) {
    sampled.top_logprobs.assign(64, {.token_id = 1, .logprob = -1.0F});
  }
  result.failed_swap_ins.assign(kMaxHostBlocksLimit, 1);
  v1::StepResponse response;

  EncodeResult(result, &response);

  EXPECT_LE(response.ByteSizeLong(), static_cast<size_t>(kWorkerMaxMessageBytes));
}

}  // namespace
}  // namespace quire
