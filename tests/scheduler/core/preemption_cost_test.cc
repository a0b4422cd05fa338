#include "scheduler/core/preemption_cost.h"

#include <limits>

#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumRunning = 32;
constexpr PreemptionCost::Load kLoad = {.num_sequences = kNumRunning, .num_used_blocks = 640};

// Steps as a GPU's: 20 ms up to 128 tokens, then 100 us a token.
class PreemptionCostTest : public ::testing::Test {
 protected:
  PreemptionCostTest() {
    for (int64_t num_tokens : {1, 32, 64, 128, 256, 512, 1024, 2048}) {
      Observe({.num_tokens = num_tokens, .micros = MicrosOf(num_tokens)});
    }
  }

  static double MicrosOf(int64_t num_tokens) {
    return num_tokens <= 128 ? 20'000 : 20'000 + 100.0 * static_cast<double>(num_tokens - 128);
  }

  // Observes a step whose swaps end with it.
  void Observe(PreemptionCost::Step step) {
    step.step_id = ++step_id_;
    step.swaps_done_step_id = step_id_;
    cost_.ObserveStep(step);
  }

  // Observes steps that take this much longer for each of the 10 blocks that come back.
  void ObserveSwaps(double micros_by_block) {
    for (int i = 0; i < 100; ++i) {
      Observe({.num_tokens = 32, .num_swap_outs = 10, .micros = MicrosOf(32)});
      Observe(
          {.num_tokens = 32, .num_swap_ins = 10, .micros = MicrosOf(32) + 10 * micros_by_block});
    }
  }

  PreemptionCost::Way Cheapest(int64_t num_blocks, bool is_in_slices = true) const {
    return cost_.Cheapest({.num_tokens = num_blocks * kBlockSize,
                           .num_blocks = num_blocks,
                           .is_in_slices = is_in_slices},
                          kLoad);
  }

  PreemptionCost cost_{kBlockSize};
  uint64_t step_id_ = 0;
};

TEST_F(PreemptionCostTest, SwapsToLearnWhatItCosts) {
  const double recompute = Cheapest(10).micros;
  EXPECT_TRUE(Cheapest(10).is_swap);

  ObserveSwaps(1e6);

  EXPECT_FALSE(Cheapest(10).is_swap);
  EXPECT_EQ(Cheapest(10).micros, recompute);
}

TEST_F(PreemptionCostTest, ChoosesByWhatSwapsAddedToSteps) {
  ObserveSwaps(10);
  EXPECT_TRUE(Cheapest(40).is_swap);

  ObserveSwaps(100'000);
  EXPECT_FALSE(Cheapest(40).is_swap);

  ObserveSwaps(10);
  EXPECT_TRUE(Cheapest(40).is_swap) << "links change";
}

TEST_F(PreemptionCostTest, ALongerLinkCostsMoreThanItAddsToSteps) {
  ObserveSwaps(10);
  const double at_once = Cheapest(40).micros;

  // The blocks leave five steps after they were ordered, without making steps longer.
  for (int i = 0; i < 100; ++i) {
    cost_.ObserveStep({.step_id = ++step_id_,
                       .swaps_done_step_id = step_id_ - 5,
                       .num_tokens = 32,
                       .num_swap_outs = 10,
                       .micros = MicrosOf(32)});
  }

  EXPECT_GT(Cheapest(40).micros, 2 * at_once);
}

TEST_F(PreemptionCostTest, TokensInSpareComputeDelayOnlyThemselves) {
  // 96 tokens are spare beside 32, so six blocks are computed in one step. During it the group's
  // place in the batch, one of 32, is idle.
  EXPECT_NEAR(Cheapest(6).micros, 20'000.0 / kNumRunning, 50);
  // Twelve blocks take two steps if slices are allowed.
  EXPECT_LE(Cheapest(12).micros, 2 * (20'000.0 / kNumRunning + 0.02 * MicrosOf(32)));
  EXPECT_GT(Cheapest(12, /*is_in_slices=*/false).micros, MicrosOf(32 + 192) - MicrosOf(32));
}

TEST_F(PreemptionCostTest, ALongGroupCannotWaitForSpareComputeAlone) {
  // 4,096 tokens in 16 steps are 256 a step, so a step has 288 tokens with the others'.
  const double longer = MicrosOf(256 + 32) - MicrosOf(32);
  EXPECT_NEAR(Cheapest(256).micros, 16 * (longer + 20'000.0 / kNumRunning), 1000);
}

TEST_F(PreemptionCostTest, WhoGetsFewTokensAStepIsAwayForLonger) {
  const PreemptionCost::Work work = {.num_tokens = 640, .num_blocks = 40, .is_in_slices = true};
  PreemptionCost::Load load = kLoad;
  load.num_prompt_tokens = 16;

  EXPECT_NEAR(cost_.Cheapest(work, load).micros, 40 * (20'000.0 / kNumRunning), 1000);
  EXPECT_LT(cost_.Cheapest(work, kLoad).micros, 16 * (20'000.0 / kNumRunning));
}

TEST_F(PreemptionCostTest, LearnsWhatRecomputedTokensAddedToSteps) {
  const double before = Cheapest(6).micros;

  for (int i = 0; i < 100; ++i) {  // there were prompts in the same steps
    Observe({.num_tokens = 160, .num_recomputed = 64, .micros = MicrosOf(160)});
  }

  const double by_token = (MicrosOf(160) - MicrosOf(96)) / 64;
  EXPECT_NEAR(Cheapest(6).micros, before + 96 * by_token, 100);
}

TEST_F(PreemptionCostTest, AnIdlePlaceCostsNothingWhereStepsAreAsLongAsTheirTokens) {
  PreemptionCost cost(kBlockSize);
  for (int64_t num_tokens : {16, 32, 64, 128, 256}) {
    cost.ObserveStep({.step_id = ++step_id_,
                      .swaps_done_step_id = step_id_,
                      .num_tokens = num_tokens,
                      .micros = 100.0 * static_cast<double>(num_tokens)});
  }

  const PreemptionCost::Way way =
      cost.Cheapest({.num_tokens = 160, .num_blocks = 10, .is_in_slices = true}, kLoad);

  EXPECT_NEAR(way.micros, 160 * 100, 1e-6);
}

// Steps of 5 ms, 100 us a token and 2 us for each token read, as where nothing waits for weights.
class LongContextCostTest : public ::testing::Test {
 protected:
  static constexpr PreemptionCost::Work kWork = {
      .num_tokens = 160, .num_blocks = 10, .is_in_slices = true};

  LongContextCostTest() {
    // The batch fills and sequences grow. Once the batch is full, some steps have prompts beside
    // it.
    for (int64_t length = 20; length <= 100; ++length) {
      for (int64_t num_sequences : {8, 16, 24, 32}) {
        Observe({.num_tokens = num_sequences, .num_context = num_sequences * length});
      }
      Observe({.num_tokens = 64, .num_context = 32 * length + 32});
    }
  }

  void Observe(PreemptionCost::Step step, double more_micros = 0) {
    step.step_id = ++step_id_;
    step.swaps_done_step_id = step_id_;
    step.micros = 5000 + 100.0 * static_cast<double>(step.num_tokens) +
                  2.0 * static_cast<double>(step.num_context) + more_micros;
    cost_.ObserveStep(step);
  }

  double SwapMicros() const {
    const PreemptionCost::Way way = cost_.Cheapest(kWork, kLoad);
    EXPECT_TRUE(way.is_swap);
    return way.micros;
  }

  PreemptionCost cost_{kBlockSize};
  uint64_t step_id_ = 0;
};

TEST_F(LongContextCostTest, WhoSitsOutLosesItsPartOfWhatAStepTakesAnyway) {
  for (int i = 0; i < 100; ++i) {
    Observe({.num_tokens = 32, .num_context = 3200, .num_swap_outs = 10});
  }

  // The preempting sequence waits, and on average one of the two others that need a block
  // meanwhile.
  EXPECT_NEAR(SwapMicros(), 2 * 5000.0 / 32, 20);
}

TEST_F(LongContextCostTest, ASwapIsNotChargedWithTheLengthOfTheOthers) {
  // The sequences that remain during a swap are longer than those of earlier steps with so few
  // sequences.
  for (int i = 0; i < 100; ++i) {
    Observe({.num_tokens = 20, .num_context = 3200, .num_swap_outs = 10}, /*more_micros=*/100);
    Observe({.num_tokens = 32, .num_context = 5120, .num_swap_ins = 10}, /*more_micros=*/300);
  }

  EXPECT_NEAR(SwapMicros(), 100 + 300 + 2 * 5000.0 / 32, 50);
}

TEST_F(PreemptionCostTest, TriesASwapAgainWhenLongNothingWasSwapped) {
  ObserveSwaps(100'000);
  for (int i = 0; i < 255; ++i) {
    cost_.CountPreemption(/*is_swap=*/false);
  }
  EXPECT_FALSE(Cheapest(10).is_swap);

  cost_.CountPreemption(/*is_swap=*/false);
  EXPECT_TRUE(Cheapest(10).is_swap);

  cost_.CountPreemption(/*is_swap=*/true);
  EXPECT_FALSE(Cheapest(10).is_swap);
}

TEST_F(PreemptionCostTest, StaysFiniteWhateverAWorkerReports) {
  ObserveSwaps(10);
  for (double micros : {-1e30, 1e30, std::numeric_limits<double>::infinity()}) {
    Observe({.num_tokens = 32, .micros = micros});
    Observe({.num_tokens = 32, .num_recomputed = 8, .micros = micros});
    Observe({.num_tokens = 32, .num_swap_outs = 3, .micros = micros});
    Observe({.num_tokens = 0, .micros = micros});
  }

  EXPECT_GE(Cheapest(10).micros, 0);
  EXPECT_LT(Cheapest(10).micros, 1e15);
}

}  // namespace
}  // namespace quire
