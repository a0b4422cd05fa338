#include "scheduler/core/step_cost.h"

#include <limits>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(StepCostTest, KnowsNothingAtFirst) {
  const StepCost cost;

  EXPECT_EQ(cost.StepMicros(100), 0);
  EXPECT_EQ(cost.SpareTokens(100), 0);
}

TEST(StepCostTest, IsLinearBetweenWhatWasSeenAndProportionalBeyond) {
  StepCost cost;
  cost.ObserveStep(32, 1000);
  cost.ObserveStep(128, 2000);

  EXPECT_EQ(cost.StepMicros(1), 1000);
  EXPECT_EQ(cost.StepMicros(32), 1000);
  EXPECT_EQ(cost.StepMicros(80), 1500);
  EXPECT_EQ(cost.StepMicros(128), 2000);
  EXPECT_EQ(cost.StepMicros(256), 4000);
}

TEST(StepCostTest, FollowsLaterObservationsOfTheSameSizes) {
  StepCost cost;
  cost.ObserveStep(32, 1000);
  cost.ObserveStep(32, 1800);

  EXPECT_EQ(cost.StepMicros(32), 1100);
  for (int i = 0; i < 100; ++i) {
    cost.ObserveStep(32, 3000);
  }
  EXPECT_NEAR(cost.StepMicros(32), 3000, 1);
}

TEST(StepCostTest, SizesOfOneBucketAreAveragedAndOthersKeptApart) {
  StepCost cost;
  cost.ObserveStep(32, 1000);
  cost.ObserveStep(39, 1000);  // counts an eighth: the bucket stands for 32.875 tokens
  cost.ObserveStep(40, 2000);

  EXPECT_EQ(cost.StepMicros(32), 1000);
  EXPECT_EQ(cost.StepMicros(40), 2000);
  EXPECT_NEAR(cost.StepMicros(36), 1000 + 1000 * (36 - 32.875) / (40 - 32.875), 1e-9);
}

TEST(StepCostTest, TokensAreSpareUntilTheStepIsAFiftiethLonger) {
  StepCost cost;
  cost.ObserveStep(32, 1000);
  cost.ObserveStep(96, 1000);
  cost.ObserveStep(160, 1640);

  EXPECT_EQ(cost.SpareTokens(32), 66);  // 10 us a token behind 96
  EXPECT_EQ(cost.SpareTokens(96), 2);
}

TEST(StepCostTest, NothingIsSpareBeyondWhatWasSeen) {
  StepCost cost;
  cost.ObserveStep(32, 1000);
  cost.ObserveStep(96, 1000);

  EXPECT_EQ(cost.SpareTokens(32), 64);
  EXPECT_EQ(cost.SpareTokens(96), 0);
  EXPECT_EQ(cost.SpareTokens(200), 0);
}

TEST(StepCostTest, TakesStepsOfAnySize) {
  StepCost cost;
  cost.ObserveStep(1, 10);
  cost.ObserveStep(1 << 17, 1e6);
  cost.ObserveStep(std::numeric_limits<int64_t>::max(), 2e6);

  EXPECT_EQ(cost.StepMicros(1), 10);
  EXPECT_EQ(cost.StepMicros(1 << 17), 1e6);
}

}  // namespace
}  // namespace quire
