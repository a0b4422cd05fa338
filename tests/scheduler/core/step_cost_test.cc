#include "scheduler/core/step_cost.h"

#include <limits>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(NumContextTokensTest, IsWhatWasComputedAndWhatIsAsFarAsTheWindowReaches) {
  EXPECT_EQ(NumContextTokens(100, 1, /*sliding_window=*/0), 101);
  EXPECT_EQ(NumContextTokens(100, 1, /*sliding_window=*/16), 16);
  EXPECT_EQ(NumContextTokens(100, 8, /*sliding_window=*/16), 23);
  EXPECT_EQ(NumContextTokens(4, 8, /*sliding_window=*/16), 12);
}

TEST(StepCostTest, KnowsNothingAtFirst) {
  const StepCost cost;

  EXPECT_EQ(cost.StepMicros(100), 0);
  EXPECT_EQ(cost.SpareTokens(100), 0);
}

TEST(StepCostTest, IsLinearBetweenWhatWasSeenAndProportionalBeyond) {
  StepCost cost;
  cost.ObserveStep(32, 0, 1000);
  cost.ObserveStep(128, 0, 2000);

  EXPECT_EQ(cost.StepMicros(1), 1000);
  EXPECT_EQ(cost.StepMicros(32), 1000);
  EXPECT_EQ(cost.StepMicros(80), 1500);
  EXPECT_EQ(cost.StepMicros(128), 2000);
  EXPECT_EQ(cost.StepMicros(256), 4000);
}

TEST(StepCostTest, TokensWithinATimeAreThoseOfTheStepsThatTookAsLong) {
  StepCost cost;
  EXPECT_EQ(cost.TokensWithin(1, 0), std::numeric_limits<int64_t>::max());
  cost.ObserveStep(32, 0, 1000);
  cost.ObserveStep(128, 0, 2000);

  EXPECT_EQ(cost.TokensWithin(999, 0), 0);
  EXPECT_EQ(cost.TokensWithin(1000, 0), 32);
  EXPECT_EQ(cost.TokensWithin(1500, 0), 80);
  EXPECT_EQ(cost.TokensWithin(2000, 0), 128);
  EXPECT_EQ(cost.TokensWithin(4000, 0), 256);
  EXPECT_EQ(cost.TokensWithin(1e300, 0), std::numeric_limits<int64_t>::max());
}

TEST(StepCostTest, TokensWithinATimeAreFewerWhereStepsDiffer) {
  StepCost cost;
  cost.ObserveStep(32, 0, 1000);
  cost.ObserveStep(128, 0, 2000);
  cost.ObserveStep(128, 0, 2800);  // an eighth of it: 2,100, and differs by 100

  EXPECT_EQ(cost.TokensWithin(2100, 0), 128);
  EXPECT_EQ(cost.TokensWithin(2300, 2), 128);
  EXPECT_EQ(cost.TokensWithin(1650, 2), 80);
  EXPECT_EQ(cost.TokensWithin(1000, 2), 32);
}

TEST(StepCostTest, MoreTokensNeverTakeLess) {
  StepCost cost;
  EXPECT_EQ(cost.LeastMicros(4), 0);
  cost.ObserveStep(4, 0, 1e6);  // it hung
  cost.ObserveStep(64, 0, 2000);

  EXPECT_EQ(cost.LeastMicros(4), 2000);
  EXPECT_EQ(cost.LeastMicros(128), 4000);
}

TEST(StepCostTest, AStepThatHungDoesNotBoundSmallerOnesForGood) {
  StepCost cost;
  cost.ObserveStep(16, 0, 1000);
  cost.ObserveStep(128, 0, 1e9);

  EXPECT_EQ(cost.TokensWithin(2000, 0), 32);  // and of 32 it will be seen how long they take
}

TEST(StepCostTest, FollowsLaterObservationsOfTheSameSizes) {
  StepCost cost;
  cost.ObserveStep(32, 0, 1000);
  cost.ObserveStep(32, 0, 1800);

  EXPECT_EQ(cost.StepMicros(32), 1100);
  for (int i = 0; i < 100; ++i) {
    cost.ObserveStep(32, 0, 3000);
  }
  EXPECT_NEAR(cost.StepMicros(32), 3000, 1);
}

TEST(StepCostTest, SizesOfOneBucketAreAveragedAndOthersKeptApart) {
  StepCost cost;
  cost.ObserveStep(32, 0, 1000);
  cost.ObserveStep(39, 0, 1000);  // counts an eighth: the bucket stands for 32.875 tokens
  cost.ObserveStep(40, 0, 2000);

  EXPECT_EQ(cost.StepMicros(32), 1000);
  EXPECT_EQ(cost.StepMicros(40), 2000);
  EXPECT_NEAR(cost.StepMicros(36), 1000 + 1000 * (36 - 32.875) / (40 - 32.875), 1e-9);
}

TEST(StepCostTest, TokensAreSpareUntilTheStepIsAFiftiethLonger) {
  StepCost cost;
  cost.ObserveStep(32, 0, 1000);
  cost.ObserveStep(96, 0, 1000);
  cost.ObserveStep(160, 0, 1640);

  EXPECT_EQ(cost.SpareTokens(32), 66);  // 10 us a token behind 96
  EXPECT_EQ(cost.SpareTokens(96), 2);
}

TEST(StepCostTest, NothingIsSpareBeyondWhatWasSeen) {
  StepCost cost;
  cost.ObserveStep(32, 0, 1000);
  cost.ObserveStep(96, 0, 1000);

  EXPECT_EQ(cost.SpareTokens(32), 64);
  EXPECT_EQ(cost.SpareTokens(96), 0);
  EXPECT_EQ(cost.SpareTokens(200), 0);
}

// A step of so many tokens that read so much: 1 ms, 10 us for each token, half a us for each read.
double MicrosOf(int64_t num_tokens, int64_t num_context) {
  return 1000 + 10 * static_cast<double>(num_tokens) + 0.5 * static_cast<double>(num_context);
}

void ObserveSequences(StepCost& cost, int64_t num_sequences, int64_t num_prompt_tokens) {
  for (int64_t step = 0; step < 100; ++step) {
    const int64_t num_tokens = num_sequences + num_prompt_tokens;
    const int64_t num_context = num_sequences * (100 + step) + num_prompt_tokens;
    cost.ObserveStep(num_tokens, num_context, MicrosOf(num_tokens, num_context));
  }
}

TEST(StepCostTest, TellsReadingFromTokens) {
  StepCost cost;
  ObserveSequences(cost, 32, 0);
  ObserveSequences(cost, 64, 0);
  ObserveSequences(cost, 64, 64);

  EXPECT_NEAR(cost.ContextMicros(1000), 500, 5);
  EXPECT_NEAR(cost.MicrosWithoutContext(32), MicrosOf(32, 0), 20);
  EXPECT_NEAR(cost.MicrosWithoutContext(64), MicrosOf(64, 0), 40);
  EXPECT_NEAR(cost.MicrosWithoutContext(128), MicrosOf(128, 0), 40);
  // Recent steps of 64 tokens took this long.
  EXPECT_NEAR(cost.StepMicros(64), MicrosOf(64, 64 * 195), 200);
}

TEST(StepCostTest, TokensAreSpareHoweverMuchTheStepsBeforeRead) {
  StepCost cost;
  for (int64_t num_sequences : {16, 32, 64, 128}) {
    for (int64_t length = 100; length < 150; ++length) {
      const int64_t num_context = num_sequences * length;
      cost.ObserveStep(num_sequences, num_context, 1000 + static_cast<double>(num_context));
    }
  }

  EXPECT_EQ(cost.SpareTokens(32), 128 - 32);
}

TEST(StepCostTest, AStepThatHungCountsAsOneOfTwiceTheTime) {
  StepCost cost;
  ObserveSequences(cost, 64, 0);
  const double before = cost.StepMicros(64);

  cost.ObserveStep(64, 64 * 210, 60e6);

  EXPECT_NEAR(cost.StepMicros(64), before * 9 / 8, before / 100);
  EXPECT_LT(cost.ContextMicros(1000), 1000);
}

TEST(StepCostTest, ReadingCostsNothingWhereLongerStepsReadLess) {
  StepCost cost;
  for (int64_t step = 0; step < 100; ++step) {
    cost.ObserveStep(32, 1000 - step, 1000 + static_cast<double>(step));
  }

  EXPECT_EQ(cost.ContextMicros(1000), 0);
  EXPECT_EQ(cost.MicrosWithoutContext(32), cost.StepMicros(32));
}

TEST(StepCostTest, TakesStepsOfAnySize) {
  StepCost cost;
  cost.ObserveStep(1, 0, 10);
  cost.ObserveStep(1 << 17, 0, 1e6);
  cost.ObserveStep(std::numeric_limits<int64_t>::max(), 0, 2e6);

  EXPECT_EQ(cost.StepMicros(1), 10);
  EXPECT_EQ(cost.StepMicros(1 << 17), 1e6);
}

}  // namespace
}  // namespace quire
