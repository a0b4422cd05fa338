#include "deploy/cli/watchdog.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr int64_t kTick = 100 * kNanosPerMilli;

class WatchdogTest : public testing::Test {
 protected:
  // How long until the dog barks, when nothing is heard; looks every kTick.
  int64_t Silence() {
    const Instant start = now_;
    do {
      now_ += kTick;
    } while (!dog_.IsSilent(now_));
    return now_ - start;
  }

  void Start() { dog_.OnStart(now_); }

  Watchdog dog_{4 * kNanosPerSecond};
  Instant now_ = 1234 * kNanosPerSecond;
};

TEST_F(WatchdogTest, SilenceCountsFromTheStart) {
  Start();

  EXPECT_EQ(Silence(), 4 * kNanosPerSecond);
}

TEST_F(WatchdogTest, SilenceCountsFromTheLastSign) {
  Start();
  for (int i = 0; i < 100; ++i) {
    now_ += 30 * kTick;
    EXPECT_FALSE(dog_.IsSilent(now_));
    dog_.OnSign();
  }

  EXPECT_EQ(Silence(), 4 * kNanosPerSecond);
}

TEST_F(WatchdogTest, TimeInWhichNobodyLookedIsNotSilence) {
  Start();
  dog_.OnSign();
  now_ += 3600 * kNanosPerSecond;

  EXPECT_FALSE(dog_.IsSilent(now_));
  EXPECT_EQ(Silence(), 4 * kNanosPerSecond - Watchdog::kMaxLookIntervalNs);
}

TEST_F(WatchdogTest, StartsThatGaveNoSignDoubleTheLimitUntilOneDoes) {
  for (int64_t seconds : {4, 8, 16, 32, 64, 64}) {
    Start();
    EXPECT_EQ(Silence(), seconds * kNanosPerSecond);
  }
  Start();
  now_ += kTick;
  EXPECT_FALSE(dog_.IsSilent(now_));
  dog_.OnSign();

  EXPECT_EQ(Silence(), 4 * kNanosPerSecond);
  Start();
  EXPECT_EQ(Silence(), 4 * kNanosPerSecond);
}

TEST_F(WatchdogTest, AStartThatCrashedEarlyLeavesTheLimitAlone) {
  for (int i = 0; i < 5; ++i) {
    Start();
    now_ += kTick;
    EXPECT_FALSE(dog_.IsSilent(now_));
  }
  Start();

  EXPECT_EQ(Silence(), 4 * kNanosPerSecond);
}

}  // namespace
}  // namespace quire
