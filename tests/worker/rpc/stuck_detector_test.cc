#include "worker/rpc/stuck_detector.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr Instant kTick = 250 * kNanosPerMilli;
// Observations after which a standstill is one that ends the process: the first only begins it.
constexpr int kLimit = static_cast<int>(StuckDetector::kMaxStandstill / kTick) + 1;
constexpr int kMeetingTicks = static_cast<int>(StuckDetector::kMaxMeeting / kTick);

class StuckDetectorTest : public testing::Test {
 protected:
  StuckDetectorTest() {
    state_.report.set_phase(v1::WORKER_PHASE_EXECUTING);
    state_.num_waiters = 1;
  }

  // The number of ticks until the detector says so, at most `most`.
  int TicksUntilStuck(int most = kLimit + 5) {
    for (int tick = 1; tick <= most; ++tick) {
      if (Tick()) {
        return tick;
      }
    }
    return 0;
  }

  bool Tick(Instant passed = kTick) {
    now_ += passed;
    return detector_.Observe(now_, state_);
  }

  void Progress() { state_.report.set_progress(state_.report.progress() + 1); }

  Instant now_ = 77 * kNanosPerSecond;
  WorkerProgress::State state_;
  StuckDetector detector_;
};

TEST_F(StuckDetectorTest, AStandstillOfTenSecondsIsTheEnd) { EXPECT_EQ(TicksUntilStuck(), kLimit); }

TEST_F(StuckDetectorTest, TimeCountsFromTheLastProgress) {
  for (int tick = 1; tick < kLimit; ++tick) {
    EXPECT_FALSE(Tick());
  }
  Progress();

  EXPECT_EQ(TicksUntilStuck(), kLimit);
}

TEST_F(StuckDetectorTest, AStepThatMakesProgressGoesOnForEver) {
  for (int tick = 0; tick < 100 * kLimit; ++tick) {
    if (tick % (kLimit - 1) == 0) {
      Progress();
    }
    ASSERT_FALSE(Tick()) << tick;
  }
}

TEST_F(StuckDetectorTest, NobodyWaitingIsNoReasonButTheStandstillCounts) {
  state_.num_waiters = 0;
  EXPECT_EQ(TicksUntilStuck(), 0);

  state_.num_waiters = 1;

  EXPECT_TRUE(Tick());
}

TEST_F(StuckDetectorTest, LoadingAndHavingNothingToDoAreNoStandstill) {
  state_.report.set_phase(v1::WORKER_PHASE_LOADING);
  state_.num_tasks = 1;
  EXPECT_EQ(TicksUntilStuck(), 0);

  state_.report.set_phase(v1::WORKER_PHASE_IDLE);
  state_.num_tasks = 0;
  EXPECT_EQ(TicksUntilStuck(), 0);

  state_.report.set_phase(v1::WORKER_PHASE_EXECUTING);
  EXPECT_EQ(TicksUntilStuck(), kLimit - 1);  // the step was not idle, so it counts from here
}

TEST_F(StuckDetectorTest, AnIdleExecutorThatTakesNoTaskIsStuckWhoeverWaits) {
  state_.report.set_phase(v1::WORKER_PHASE_IDLE);
  state_.num_waiters = 0;
  EXPECT_EQ(TicksUntilStuck(), 0);

  state_.num_tasks = 1;

  EXPECT_EQ(TicksUntilStuck(), kLimit - 1);
}

TEST_F(StuckDetectorTest, AnIdleExecutorThatTakesTasksIsNotStuckHoweverManyWait) {
  state_.report.set_phase(v1::WORKER_PHASE_IDLE);
  state_.num_tasks = 64;
  for (int tick = 0; tick < 100 * kLimit; ++tick) {
    if (tick % (kLimit - 1) == 0) {
      Progress();
    }
    ASSERT_FALSE(Tick()) << tick;
  }
}

TEST_F(StuckDetectorTest, AnEpochHasTheTimeToMeetRanksAndTakeItsPools) {
  state_.report.set_phase(v1::WORKER_PHASE_BEGINNING_EPOCH);
  state_.num_waiters = 0;
  EXPECT_EQ(TicksUntilStuck(2 * kLimit + kMeetingTicks), kLimit + kMeetingTicks);

  Progress();
  state_.pool_bytes = 60 * StuckDetector::kMinPoolBytesPerSecond;

  const int pool_ticks = static_cast<int>(60 * kNanosPerSecond / kTick);
  EXPECT_EQ(TicksUntilStuck(2 * kLimit + kMeetingTicks + pool_ticks),
            kLimit + kMeetingTicks + pool_ticks);
}

TEST_F(StuckDetectorTest, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  EXPECT_FALSE(Tick());

  EXPECT_FALSE(Tick(3600 * kNanosPerSecond));

  // The stop counts as kMaxGap and no more.
  EXPECT_EQ(TicksUntilStuck(), kLimit - 1 - static_cast<int>(StuckDetector::kMaxGap / kTick));
}

TEST_F(StuckDetectorTest, AStandstillIsOneAlsoWhereNobodyWaitsAndEndsWithTheNextProgress) {
  state_.num_waiters = 0;
  for (int tick = 1; tick < kLimit; ++tick) {
    EXPECT_FALSE(Tick());
    EXPECT_FALSE(detector_.stands_still()) << tick;
  }
  EXPECT_FALSE(Tick());
  EXPECT_TRUE(detector_.stands_still());

  Progress();
  EXPECT_FALSE(Tick());
  EXPECT_FALSE(detector_.stands_still());
}

}  // namespace
}  // namespace quire
