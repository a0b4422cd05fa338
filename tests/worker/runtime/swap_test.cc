// Swapping through the step executor. Any blocks may leave the pool and come back: the answers are
// those of sequences that never leave.
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/runtime/fake_model.h"
#include "tests/worker/runtime/late_backend.h"
#include "tests/worker/runtime/swap_traffic.h"
#include "tests/support/with_digest.h"
#include "worker/runtime/step_executor.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr KvCacheBudget kBudget = {
    .bytes = 64 << 20, .swap_space_bytes = 64 << 20, .num_blocks_override = 0};

// Every token follows from those before it.
void ExpectRightAnswers(const std::vector<std::vector<TokenId>>& answers,
                        const SwapTrafficOptions& options) {
  for (const std::vector<TokenId>& tokens : answers) {
    const size_t first = tokens.size() - static_cast<size_t>(options.num_output_tokens);
    for (size_t i = first; i < tokens.size(); ++i) {
      ASSERT_EQ(tokens[i], FakeModel::NextToken(std::span(tokens).first(i))) << "token " << i;
    }
  }
}

TEST(SwapTest, SequencesThatWereSwappedGoOnWhereTheyWere) {
  int num_swapped_out = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    FakeModel model;
    auto backend = CreateReferenceBackend();
    StepExecutor executor(model, *backend, kBudget);
    const SwapTrafficOptions options = {.seed = seed};
    SwapTraffic traffic(executor, DType::kF32, options);
    ExpectRightAnswers(traffic.Run(), options);
    num_swapped_out += traffic.num_swapped_out();
  }
  EXPECT_GT(num_swapped_out, 100);
}

// Transfers that end long after the step that ordered them.
TEST(SwapTest, StepsGoOnWhileBlocksAreOnTheirWay) {
  int num_steps_ahead = 0;
  for (const bool waits_for_swaps : {true, false}) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      SCOPED_TRACE(seed);
      FakeModel model;
      LateBackend backend(CreateReferenceBackend());
      StepExecutor executor(model, backend, kBudget);
      const SwapTrafficOptions options = {.seed = seed, .waits_for_swaps = waits_for_swaps};
      SwapTraffic traffic(executor, DType::kF32, options);
      ExpectRightAnswers(traffic.Run(), options);
      num_steps_ahead += traffic.num_steps_ahead();
    }
  }
  EXPECT_GT(num_steps_ahead, 100);
}

// Epochs in a row: swaps of the last one are on their way when the next begins.
TEST(SwapTest, ANewEpochForgetsWhatWasSwapped) {
  FakeModel model;
  LateBackend backend(CreateReferenceBackend());
  StepExecutor executor(model, backend, kBudget);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SwapTrafficOptions options = {.seed = seed};
    options.num_host_blocks = seed % 3 == 0 ? 12 : 16;
    SwapTraffic traffic(executor, DType::kF32, options);
    ExpectRightAnswers(traffic.Run(), options);
  }
}

// One step after another on a backend whose transfers are late.
class LateSwapTest : public testing::Test {
 protected:
  LateSwapTest() : backend_(CreateReferenceBackend()), executor_(model_, backend_, kBudget) {
    BeginEpoch(1);
  }

  void BeginEpoch(uint64_t group_epoch) {
    EXPECT_TRUE(executor_
                    .BeginEpoch({.scheduler_incarnation = 1,
                                 .group_epoch = group_epoch,
                                 .limits = {.num_blocks = 20,
                                            .num_host_blocks = 4,
                                            .block_size_tokens = 4,
                                            .max_sequences = 4,
                                            .max_tokens_per_step = 32,
                                            .max_model_len = 40},
                                 .kv_cache_dtype = DType::kF32})
                    .ok());
  }

  StepResult Execute(StepPlan plan) {
    plan.header = {.scheduler_incarnation = 1,
                   .group_epoch = executor_.order().group_epoch(),
                   .step_id = executor_.order().last_done() + 1};
    auto result = executor_.Execute(WithDigest(plan));
    EXPECT_TRUE(result.ok()) << result.status();
    last_ = result.ok() ? **result : StepResult();
    return last_;
  }

  // Computes a sequence of four tokens in this block. Returns the sampled token, or -1.
  TokenId Prefill(SequenceHandle handle, BlockId block, StepPlan plan = {}) {
    SamplingParams greedy;
    greedy.temperature = 0.0F;
    plan.introductions = {{.handle = handle,
                           .token_ids = Prompt(handle),
                           .num_prompt_tokens = 4,
                           .num_computed_tokens = 0,
                           .block_ids = {},
                           .sequence_index = 0,
                           .sampling = greedy}};
    plan.slices = {{.handle = handle, .num_tokens = 4, .new_block_ids = {block}}};
    Execute(std::move(plan));
    return last_.sampled.empty() ? -1 : last_.sampled[0].token_id;
  }

  static std::vector<TokenId> Prompt(SequenceHandle handle) {
    const auto first = static_cast<TokenId>(handle * 4);
    return {first, first + 1, first + 2, first + 3};
  }

  // The sequence of this prompt goes on, reading the prompt from this block.
  void ExpectGoesOn(SequenceHandle prompt, BlockId block, StepPlan plan) {
    std::vector<TokenId> tokens = Prompt(prompt);
    tokens.push_back(FakeModel::NextToken(tokens));
    SamplingParams greedy;
    greedy.temperature = 0.0F;
    plan.introductions = {{.handle = 3,
                           .token_ids = tokens,
                           .num_prompt_tokens = 4,
                           .num_computed_tokens = 4,
                           .block_ids = {block},
                           .sequence_index = 0,
                           .sampling = greedy}};
    plan.slices = {{.handle = 3, .num_tokens = 1, .new_block_ids = {19}}};
    plan.releases = {3};
    Execute(std::move(plan));
    ASSERT_EQ(last_.sampled.size(), 1U);
    EXPECT_EQ(last_.sampled[0].token_id, FakeModel::NextToken(tokens));
  }

  FakeModel model_;
  LateBackend backend_;
  StepExecutor executor_;
  StepResult last_;
};

TEST_F(LateSwapTest, AStepSaysUpToWhereSwapsAreDone) {
  Prefill(0, 5);
  EXPECT_EQ(last_.swaps_done_step_id, 1U);
  Prefill(1, 6, {.swap_outs = {{.block = 5, .host_block = 2}}});
  EXPECT_EQ(last_.swaps_done_step_id, 1U);
  const StepResult result = Execute({.swap_outs = {{.block = 6, .host_block = 0}}});
  EXPECT_EQ(result.swaps_done_step_id, 3U) << "a step without slices waits";
  EXPECT_FALSE(backend_.has_late_transfers());
}

TEST_F(LateSwapTest, ACopyOntoABlockThatLeavesComesAfterIt) {
  Prefill(0, 5);
  Prefill(1, 6);
  Prefill(2, 7, {.swap_outs = {{.block = 5, .host_block = 2}}});
  // Block 5 is used again before the worker said that it may be.
  ExpectGoesOn(1, 5, {.copies = {{.src = 6, .dst = 5}}});
  ExpectGoesOn(0, 9, {.swap_ins = {{.block = 9, .host_block = 2, .generation = 3}}});
}

TEST_F(LateSwapTest, ACopyOfABlockThatArrivesComesAfterIt) {
  Prefill(0, 5);
  Execute({.swap_outs = {{.block = 5, .host_block = 2}}});
  Prefill(1, 6, {.swap_ins = {{.block = 8, .host_block = 2, .generation = 2}}});
  ExpectGoesOn(0, 10, {.copies = {{.src = 8, .dst = 10}}});
}

TEST_F(LateSwapTest, NothingOfAnEpochIsOnItsWayInTheNext) {
  Prefill(0, 5);
  Execute({.swap_outs = {{.block = 5, .host_block = 2}}});
  Prefill(1, 6, {.swap_ins = {{.block = 8, .host_block = 2, .generation = 2}}});
  EXPECT_TRUE(backend_.has_late_transfers());
  BeginEpoch(2);
  EXPECT_FALSE(backend_.has_late_transfers());
  Prefill(1, 6);
  EXPECT_EQ(last_.swaps_done_step_id, 1U);
  StepPlan plan;
  plan.swap_ins = {{.block = 8, .host_block = 2, .generation = 2}};
  EXPECT_THAT(Execute(plan).failed_swap_ins, ElementsAre(8)) << "it was filled in another epoch";
}

// Host block 2 is filled twice. The swap-in asks for its first content.
TEST_F(LateSwapTest, AHostBlockThatHoldsSomethingElseByNowDoesNotComeBack) {
  Prefill(0, 5);
  Prefill(1, 6);
  Execute({.swap_outs = {{.block = 5, .host_block = 2}, {.block = 6, .host_block = 1}}});
  Execute({.swap_outs = {{.block = 6, .host_block = 2}}});

  // The same plan has another swap-in and a sequence that reads the block it brings.
  ExpectGoesOn(1,
               10,
               {.swap_ins = {{.block = 9, .host_block = 2, .generation = 3},
                             {.block = 10, .host_block = 1, .generation = 3}}});

  EXPECT_THAT(last_.failed_swap_ins, ElementsAre(9));
  ExpectGoesOn(1, 11, {.swap_ins = {{.block = 11, .host_block = 2, .generation = 4}}});
  EXPECT_THAT(last_.failed_swap_ins, IsEmpty()) << "what it holds now does come back";
}

TEST_F(LateSwapTest, ABlockIsLeftAsItIsWhenItsSwapInFails) {
  Prefill(0, 5);
  Prefill(1, 6);
  Execute({.swap_outs = {{.block = 5, .host_block = 2}}});

  Execute({.swap_ins = {{.block = 6, .host_block = 2, .generation = 2}}});

  EXPECT_THAT(last_.failed_swap_ins, ElementsAre(6));
  ExpectGoesOn(1, 6, {});
}

TEST_F(LateSwapTest, NothingComesBackFromAHostBlockThatWasNeverFilled) {
  Prefill(0, 5);
  Execute({.swap_outs = {{.block = 5, .host_block = 2}}});

  const StepResult result = Execute({.swap_ins = {{.block = 8, .host_block = 0, .generation = 0},
                                                  {.block = 9, .host_block = 1, .generation = 2}}});

  EXPECT_THAT(result.failed_swap_ins, ElementsAre(8, 9));
}

TEST(SwapTest, OnTheCpuBackendTheBitsAreTheSame) {
  auto backend = CreateCpuBackend({.num_threads = 2});
  ASSERT_TRUE(backend.ok()) << backend.status();
  auto model = LoadModel("tests/worker/model/testdata/llama", **backend, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  StepExecutor executor(**model, **backend, kBudget);
  SwapTrafficOptions options = {.seed = 5, .num_sequences = 6, .num_blocks = 40};
  options.swap_out_one_in = 0;
  const auto undisturbed = SwapTraffic(executor, DType::kF32, options).Run();
  options.swap_out_one_in = 3;
  options.num_host_blocks = 40;
  SwapTraffic traffic(executor, DType::kF32, options);
  EXPECT_EQ(traffic.Run(), undisturbed);
  EXPECT_GT(traffic.num_swapped_out(), 10);
}

}  // namespace
}  // namespace quire
