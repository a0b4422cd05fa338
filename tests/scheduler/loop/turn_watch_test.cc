#include "scheduler/loop/turn_watch.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/capture_log.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class TurnWatchTest : public testing::Test {
 protected:
  void Work(std::string_view duty, int64_t nanos) {
    watch_.Enter(duty);
    now_ += nanos;
  }

  Instant now_ = kNanosPerSecond;
  TurnWatch watch_{[this] { return now_; }};
};

TEST_F(TurnWatchTest, ATurnOverTheBoundIsALineWithItsLongestDuty) {
  CaptureStderr();

  watch_.Begin();
  Work("abort", 30 * kNanosPerMilli);
  Work("plan", 45 * kNanosPerMilli);
  Work("abort", 31 * kNanosPerMilli);
  Work("publish", kNanosPerMilli);

  EXPECT_EQ(watch_.End(), 107 * kNanosPerMilli);
  const std::string line = GetCapturedStderr();
  EXPECT_THAT(line, HasSubstr("WARNING the scheduling loop was slow turn_ms=107 cpu_ms="));
  EXPECT_THAT(line, HasSubstr(" longest_duty=abort longest_duty_ms=61\n"));
}

TEST_F(TurnWatchTest, ATurnWithinTheBoundIsNoLineAndTheNextOneBeginsAnew) {
  CaptureStderr();

  for (int i = 0; i < 2; ++i) {
    watch_.Begin();
    Work("plan", TurnWatch::kSlowTurnNs);
    EXPECT_EQ(watch_.End(), TurnWatch::kSlowTurnNs);
    now_ += kNanosPerSecond;  // the wait for events
  }

  EXPECT_THAT(GetCapturedStderr(), IsEmpty());
}

}  // namespace
}  // namespace quire
