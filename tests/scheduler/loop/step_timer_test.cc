#include "scheduler/loop/step_timer.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr StepTimerConfig kConfig = {
    .min_timeout_ns = 1000, .first_timeout_ns = 50'000, .factor = 8};

TEST(StepTimerTest, WaitsLongForStepsOfASizeThatWasNeverSeen) {
  StepTimer timer(kConfig);

  timer.Observe(1, 10);

  EXPECT_EQ(timer.TimeoutFor(1), 1000);
  EXPECT_EQ(timer.TimeoutFor(2048), 50'000);
}

TEST(StepTimerTest, WaitsAMultipleOfTheAverageOfStepsOfThatSize) {
  StepTimer timer(kConfig);

  timer.Observe(100, 2000);
  timer.Observe(1, 5);

  EXPECT_EQ(timer.TimeoutFor(127), 16'000);
  EXPECT_EQ(timer.TimeoutFor(64), 16'000);
}

TEST(StepTimerTest, FollowsStepsThatBecomeSlower) {
  StepTimer timer(kConfig);
  timer.Observe(1, 1000);

  for (int i = 0; i < 100; ++i) {
    timer.Observe(1, 4000);
  }

  EXPECT_GT(timer.TimeoutFor(1), 8 * 3900);
  EXPECT_LE(timer.TimeoutFor(1), 8 * 4000);
}

TEST(StepTimerTest, StepsWithoutTokensHaveATimeoutToo) {
  StepTimer timer(kConfig);

  timer.Observe(0, 1);

  EXPECT_EQ(timer.TimeoutFor(0), 1000);
}

}  // namespace
}  // namespace quire
