#include "scheduler/group/failure_detector.h"

#include <array>
#include <cstdint>
#include <optional>

#include <gtest/gtest.h>

namespace quire {
namespace {

using Waits = std::array<std::optional<int32_t>, 3>;

constexpr int64_t kTimeoutNs = 100;

WorkerReport Executing(uint64_t progress) {
  return {.uuid = "a", .phase = WorkerPhase::kExecuting, .progress = progress};
}

WorkerReport Idle() { return {.uuid = "a", .phase = WorkerPhase::kIdle}; }

TEST(FailureDetectorTest, ARankWithoutProgressStandsStillAtItsLastReportNotLater) {
  FailureDetector detector;
  detector.OnReport(Executing(1), 1000);
  detector.OnReport(Executing(1), 1099);
  EXPECT_FALSE(detector.StandsStill(kTimeoutNs));

  detector.OnReport(Executing(1), 1100);
  EXPECT_TRUE(detector.StandsStill(kTimeoutNs));
  EXPECT_FALSE(detector.IsSilent(kTimeoutNs, 1199));
  EXPECT_TRUE(detector.IsSilent(kTimeoutNs, 1200));

  EXPECT_TRUE(detector.OnReport(Executing(2), 1201));
  EXPECT_FALSE(detector.StandsStill(kTimeoutNs));
}

TEST(FailureDetectorTest, AFencedProcessGetsTwiceTheTimeUntilAnotherProcessComes) {
  FailureDetector detector;
  detector.OnReport(Executing(1), 1000);
  detector.OnReport(Executing(1), 1199);
  detector.OnFenced("a");

  detector.OnHello("a");
  EXPECT_FALSE(detector.StandsStill(kTimeoutNs));
  detector.OnHello("b");
  EXPECT_TRUE(detector.StandsStill(kTimeoutNs));
}

TEST(FailureDetectorTest, IdleCountsFromTheFirstIdleReportWhileARankIsAsked) {
  FailureDetector detector;
  detector.OnReport(Idle(), 1000);
  EXPECT_FALSE(detector.NoteIdle(/*is_asked=*/false, 1000));
  EXPECT_TRUE(detector.NoteIdle(/*is_asked=*/true, 1010));
  EXPECT_TRUE(detector.NoteIdle(/*is_asked=*/true, 1050));

  EXPECT_FALSE(detector.IsIdle(kTimeoutNs, 1109));
  EXPECT_TRUE(detector.IsIdle(kTimeoutNs, 1110));
  detector.ForgetIdle();
  EXPECT_FALSE(detector.IsIdle(kTimeoutNs, 1110));
}

TEST(FailureDetectorTest, TimeoutsRestartAfterTheSchedulerWasHeldUp) {
  FailureDetector detector;
  detector.OnReport(Executing(1), 1000);
  detector.RestartTimeouts(5000);

  EXPECT_FALSE(detector.IsSilent(kTimeoutNs, 5099));
  EXPECT_FALSE(detector.StandsStill(kTimeoutNs));
  EXPECT_TRUE(detector.report().uuid.empty());
}

TEST(WaitsForAnotherTest, ARankInACircleWaitsForNoOther) {
  EXPECT_FALSE(WaitsForAnother(Waits{1, 0, std::nullopt}, 0));
  EXPECT_FALSE(WaitsForAnother(Waits{0, std::nullopt, std::nullopt}, 0)) << "waits for itself";
}

TEST(WaitsForAnotherTest, ARankBehindAnotherOneOrBehindACircleDoes) {
  EXPECT_FALSE(WaitsForAnother(Waits{}, 0));
  EXPECT_TRUE(WaitsForAnother(Waits{1, 2, std::nullopt}, 0));
  EXPECT_TRUE(WaitsForAnother(Waits{1, 2, 1}, 0));
}

}  // namespace
}  // namespace quire
