#include "scheduler/core/completion_estimate.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

// Steps of 8 tokens take 8 ms, those of 64 take 22 ms: a token of a prompt costs 250 us.
class CompletionEstimateTest : public testing::Test {
 protected:
  CompletionEstimateTest() {
    steps_.ObserveStep(8, 0, 8000);
    steps_.ObserveStep(64, 0, 22'000);
    for (size_t i = 0; i < OutputLengths::kFewestLengths; ++i) {
      estimate_.OnEnd(10, 1000, /*is_whole=*/true);
    }
  }

  double Wait(const CompletionEstimate::Load& load) const {
    return estimate_.WaitMicros(own_, load, steps_, limits_);
  }
  double Run(const CompletionEstimate::Load& load, int32_t max_tokens = 1000) const {
    return estimate_.RunMicros(own_, max_tokens, load, steps_, limits_);
  }

  StepLimits limits_{.num_blocks = 1001,
                     .block_size_tokens = 16,
                     .max_sequences = 8,
                     .max_tokens_per_step = 64,
                     .max_model_len = 1000,
                     .vocab_size = 1000};
  CompletionEstimate::Work own_{.num_sequences = 1, .num_prompt_tokens = 10};
  CompletionEstimate::Load full_{.num_running = 8, .ahead = {16, 160}, .waiting = {16, 160}};
  StepCost steps_;
  CompletionEstimate estimate_;
};

TEST_F(CompletionEstimateTest, WaitsUntilThoseAheadHaveEndedBatchByBatch) {
  // 17 sequences have to end, 8 in 10 steps of 8 ms; 160 tokens of prompts.
  EXPECT_DOUBLE_EQ(Wait(full_), 17 * 10 / 8.0 * 8000 + 160 * 250);
}

TEST_F(CompletionEstimateTest, WithRoomBesideThoseThatRunOnlyPromptsAreWaitedFor) {
  EXPECT_DOUBLE_EQ(Wait({.num_running = 4, .ahead = {3, 30}, .waiting = {3, 30}}), 30 * 250);
}

TEST_F(CompletionEstimateTest, ComputesBesideThePromptsOfThoseThatComeAfter) {
  // On average 0.8 other sequences begin in each step, with 10 tokens each.
  EXPECT_DOUBLE_EQ(Run(full_), 10 * 250 + 10 * (8000 + 8 * 250));
}

TEST_F(CompletionEstimateTest, APromptTakesAStepForEachTimeThatItFillsWhatStepsHaveForPrompts) {
  CompletionEstimate::Load load{.num_running = 4, .ahead = {1, 100}, .waiting = {1, 100}};
  own_.num_prompt_tokens = 170;
  const double wait = Wait(load);
  const double run = Run(load);

  load.num_prompt_tokens_by_step = 16;

  EXPECT_DOUBLE_EQ(Wait(load), wait + 6 * 8000);
  EXPECT_DOUBLE_EQ(Run(load), run + 10 * 8000);
}

TEST_F(CompletionEstimateTest, OutputsAreAsLongAsThreeOfFourWereAndMaxTokensAtTheMost) {
  EXPECT_DOUBLE_EQ(Run(full_, 4), 10 * 250 + 4 * (8000 + 8 * 250));
  EXPECT_DOUBLE_EQ(Run(full_, 1 << 30), Run(full_, 10));
  for (size_t i = 0; i < OutputLengths::kNumLengths; ++i) {
    estimate_.OnEnd(i % 4 == 0 ? 1 : 20, 1000, /*is_whole=*/true);
  }
  EXPECT_DOUBLE_EQ(Run(full_), Run(full_, 20));
  EXPECT_LT(Run(full_, 19), Run(full_, 20));
}

TEST_F(CompletionEstimateTest, APoolThatHoldsFewSequencesMakesSmallBatches) {
  limits_.num_blocks = 5;  // 80 tokens: four sequences of 10 and 10
  const CompletionEstimate::Load load{.num_running = 4, .ahead = {4, 40}, .waiting = {4, 40}};
  steps_.ObserveStep(4, 0, 4000);
  EXPECT_DOUBLE_EQ(Wait(load), 5 * 10 / 4.0 * 4000 + 40 * (22'000 - 4000) / 60.0);
}

TEST_F(CompletionEstimateTest, AStepLargerThanAnySeenTakesNoLonger) {
  limits_.max_sequences = 500;
  const CompletionEstimate::Load load{.num_running = 400};
  EXPECT_DOUBLE_EQ(Run(load), 10 * 22'000);
}

TEST_F(CompletionEstimateTest, WhoKnowsNothingSaysNothing) {
  const StepCost no_steps;
  EXPECT_EQ(estimate_.WaitMicros(own_, full_, no_steps, limits_), 0);
  EXPECT_EQ(estimate_.RunMicros(own_, 100, full_, no_steps, limits_), 0);
  const CompletionEstimate no_outputs;
  EXPECT_DOUBLE_EQ(no_outputs.WaitMicros(own_, full_, steps_, limits_), 160 * 250);
}

TEST_F(CompletionEstimateTest, TheMarginGrowsWhenPromisesAreBrokenAndStaysBounded) {
  const double before = Run(full_);
  estimate_.OnDeadline(1000, /*is_met=*/false);
  EXPECT_DOUBLE_EQ(Run(full_), 1.1 * before);
  for (int i = 0; i < 39; ++i) {
    estimate_.OnDeadline(1000, /*is_met=*/true);
  }
  EXPECT_GT(Run(full_), before);
  estimate_.OnDeadline(1000, /*is_met=*/true);
  estimate_.OnDeadline(1000, /*is_met=*/true);
  EXPECT_DOUBLE_EQ(Run(full_), before);
  for (int i = 0; i < 100; ++i) {
    estimate_.OnDeadline(1000, /*is_met=*/false);
  }
  EXPECT_DOUBLE_EQ(Run(full_), CompletionEstimate::kMaxRunMargin * before);
}

TEST_F(CompletionEstimateTest, EachClassOfMaxTokensHasItsMarginAndBeginsAnewWithOtherOutputs) {
  const double other = Run(full_, 100);
  const double before = Run(full_, 1000);
  estimate_.OnDeadline(1000, /*is_met=*/false);
  EXPECT_DOUBLE_EQ(Run(full_, 100), other);

  for (size_t i = 0; i < OutputLengths::kNumLengths; ++i) {
    estimate_.OnEnd(14, 1000, /*is_whole=*/true);  // nearly the same
  }
  EXPECT_GT(Run(full_, 1000), 1.1 * before);
  for (size_t i = 0; i < OutputLengths::kNumLengths; ++i) {
    estimate_.OnEnd(28, 1000, /*is_whole=*/true);
  }
  EXPECT_DOUBLE_EQ(Run(full_, 1000), 10 * 250 + 28 * (8000 + 8.0 / 28 * 10 * 250));
}

TEST_F(CompletionEstimateTest, TheMarginOfWaitingGrowsWithThoseThatAreTooLateAtTheirTurn) {
  const double wait = Wait(full_);
  const double run = Run(full_);
  estimate_.OnTurn(/*is_in_time=*/false);
  EXPECT_DOUBLE_EQ(Wait(full_), 1.1 * wait);
  for (int i = 0; i < 501; ++i) {
    estimate_.OnTurn(/*is_in_time=*/true);
  }
  EXPECT_DOUBLE_EQ(Wait(full_), wait);
  EXPECT_DOUBLE_EQ(Run(full_), run);
}

}  // namespace
}  // namespace quire
