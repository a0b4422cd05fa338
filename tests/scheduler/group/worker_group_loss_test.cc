// Tests how a group is lost, and which losses count as crashes.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "scheduler/group/worker_group.h"
#include "tests/scheduler/group/worker_group_fixture.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class WorkerGroupLossTest : public WorkerGroupTest {
 protected:
  // Returns true if the loss counts as a crash after streams ended with this status for a lease.
  bool IsCrashAfter(const absl::Status& status) {
    BecomeReady();
    Plan();
    for (int64_t passed = 0; passed <= kTiming.lease_ns; passed += kTiming.mend_pause_ns) {
      group_.OnStepsEnd(Link(0), status, now_);
      Tick(kTiming.mend_pause_ns);
    }
    EXPECT_THAT(Take<ReportLost>(), SizeIs(1));
    return WasCrash();
  }
};

TEST_F(WorkerGroupTest, RanksThatDifferLoseTheGroup) {
  const uint64_t epoch = BecomeReady();
  const StepPlan plan = Plan();
  Answer(0, plan);
  StepResult wrong = ResultOf(plan);
  wrong.sampled[0].token_id = 6;

  group_.OnAnswer(Link(1), wrong, now_);

  const auto lost = Take<ReportLost>();
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0].group_epoch, epoch);
  EXPECT_EQ(ReasonOf(lost[0].status), "RANKS_DIFFER");
  EXPECT_THAT(Take<ReportResult>(), IsEmpty());
  EXPECT_EQ(BecomeReady(), epoch + 1);
}

TEST_F(WorkerGroupLossTest, NonsenseForALeaseIsACrashOfTheStep) {
  EXPECT_TRUE(IsCrashAfter(absl::DataLossError("worker: answered with an invalid result")));
}

TEST_F(WorkerGroupLossTest, ABrokenConnectionForALeaseIsNone) {
  EXPECT_FALSE(IsCrashAfter(absl::UnavailableError("reset")));
}

TEST_F(WorkerGroupTest, AWorkerThatRefusesAStepLosesTheGroupAtOnce) {
  BecomeReady();
  Plan();

  group_.OnStepsEnd(Link(1), Error(absl::StatusCode::kOutOfRange, "STEP_GAP", "step_id: no"), now_);

  EXPECT_EQ(ReasonOf(Take<ReportLost>().at(0).status), "STEP_GAP");
}

TEST_F(WorkerGroupTest, ARankThatFallsSilentIsLost) {
  BecomeReady();
  now_ += kTiming.silence_ns;
  Report(0, {.phase = WorkerPhase::kIdle});

  Tick();

  const auto lost = Take<ReportLost>();
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(ReasonOf(lost[0].status), "WORKER_SILENT");
  EXPECT_THAT(std::string(lost[0].status.message()), HasSubstr("rank 1: "));
}

TEST_F(WorkerGroupTest, AnotherProcessOnTheAddressIsNoticedByItsReports) {
  BecomeReady();
  WorkerReport report{.phase = WorkerPhase::kIdle};
  report.uuid = "somebody else";

  group_.OnReport(Link(0), report, now_);

  EXPECT_EQ(ReasonOf(Take<ReportLost>().at(0).status), "WORKER_REPLACED");
}

TEST_F(WorkerGroupTest, AnAbandonedEpochEndsWithoutAReportAndTheNextBegins) {
  const uint64_t epoch = BecomeReady();
  const StepPlan plan = Plan();
  const LinkId old = Link(0);

  group_.Abandon(epoch, now_);
  group_.OnAnswer(old, ResultOf(plan), now_);

  EXPECT_THAT(Take<ReportLost>(), IsEmpty());
  EXPECT_THAT(Take<ReportResult>(), IsEmpty());
  EXPECT_EQ(BecomeReady(), epoch + 1);
  group_.Abandon(epoch, now_);  // over for long
  EXPECT_TRUE(group_.is_ready());
}

TEST_F(WorkerGroupTest, APlanForAnEpochThatIsOverGoesNowhere) {
  BecomeReady();
  StepPlan plan;
  plan.header.group_epoch = group_.group_epoch();
  now_ += kTiming.silence_ns;
  Tick();
  Take<SendPlan>();

  group_.Plan(plan, now_);

  EXPECT_THAT(Take<SendPlan>(), IsEmpty());
}

TEST_F(WorkerGroupTest, ALossIsACrashWhenAnotherProcessIsThereAfterwards) {
  EXPECT_FALSE(WasCrash()) << "nothing was lost";
  Plan();
  now_ += kTiming.silence_ns;
  Tick();
  ASSERT_THAT(Take<ReportLost>(), SizeIs(1));
  EXPECT_FALSE(WasCrash()) << "it was stopped, and goes on";

  Plan();
  group_.OnStepsEnd(Link(0), Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", "rank 1"), now_);
  HelloAt(1).uuid = "a new process";
  EXPECT_TRUE(WasCrash());

  Plan();
  group_.OnStepsEnd(Link(0), Error(absl::StatusCode::kUnavailable, "GROUP_BROKEN", "rank 1"), now_);
  EXPECT_FALSE(WasCrash()) << "the way between them was cut";
}

// The process dies again before the next epoch is ready.
TEST_F(WorkerGroupTest, AProcessThatWasReplacedTwiceIsOneCrash) {
  BecomeReady();
  Plan();
  group_.OnStepsEnd(Link(0), Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "ends"), now_);
  HelloAt(0).uuid = "a new process";
  Hello(0);
  Hello(1);
  group_.OnWatchEnd(Link(0), absl::UnavailableError("died"), now_);
  HelloAt(0).uuid = "one more";

  EXPECT_TRUE(WasCrash());
  group_.Abandon(group_.group_epoch() - 1, now_);  // over for long
  now_ += kTiming.silence_ns;
  Tick();
  EXPECT_FALSE(WasCrash());
}

TEST_F(WorkerGroupTest, ALossIsACrashWhenARankFailedAtTheStep) {
  BecomeReady();
  const auto refused_with = [this](absl::StatusCode code, const char* reason) {
    Plan();
    group_.OnStepsEnd(Link(1), Error(code, reason, "step: no"), now_);
    return WasCrash();
  };
  EXPECT_TRUE(refused_with(absl::StatusCode::kInternal, "PROTOCOL_VIOLATION"));
  EXPECT_TRUE(refused_with(absl::StatusCode::kInvalidArgument, "BLOCK_RANGE"));
  EXPECT_TRUE(refused_with(absl::StatusCode::kResourceExhausted, "STEP_LIMIT"));
  EXPECT_FALSE(refused_with(absl::StatusCode::kResourceExhausted, "QUEUE_FULL"));
  EXPECT_FALSE(refused_with(absl::StatusCode::kFailedPrecondition, "STALE_GROUP"));
  EXPECT_FALSE(refused_with(absl::StatusCode::kOutOfRange, "STEP_GAP"));
  EXPECT_FALSE(refused_with(absl::StatusCode::kUnavailable, "LOADING"));

  group_.Abandon(group_.group_epoch(), now_);
  EXPECT_TRUE(WasCrash()) << "its answer did not fit the plan";
}

// Without growing pauses, a rank that always fails would be dialed in an endless tight loop.
TEST_F(WorkerGroupTest, EpochsThatAnswerNothingAreFollowedByGrowingPauses) {
  const auto lose = [this] {
    Plan();
    Take<DialLink>();
    group_.OnStepsEnd(Link(1), Error(absl::StatusCode::kOutOfRange, "STEP_GAP", "step: no"), now_);
    return !Take<DialLink>().empty();
  };
  BecomeReady();
  EXPECT_TRUE(lose()) << "at once";
  BecomeReady();
  EXPECT_TRUE(lose());
  BecomeReady();
  EXPECT_FALSE(lose()) << "the third one in a row";
  Tick(kTiming.max_backoff_ns);
  EXPECT_THAT(Take<DialLink>(), SizeIs(2));

  BecomeReady();
  const StepPlan plan = Plan();
  Answer(0, plan);
  Answer(1, plan);
  EXPECT_TRUE(lose()) << "a step was answered since";
}

TEST_F(WorkerGroupTest, APlanThatCannotBeSentIsAFailureAtTheStep) {
  const uint64_t epoch = BecomeReady();

  group_.RejectPlan(
      epoch, Error(absl::StatusCode::kInternal, "STEP_TOO_LONG", "step: too long"), now_);

  EXPECT_EQ(ReasonOf(Take<ReportLost>().at(0).status), "STEP_TOO_LONG");
  EXPECT_TRUE(WasCrash());
  group_.RejectPlan(epoch, absl::InternalError("of an epoch that is over"), now_);
  EXPECT_TRUE(group_.is_ready());
}

TEST_F(WorkerGroupTest, AnAnswerToAnotherPlanIsNoCrash) {
  BecomeReady();
  StepResult wrong = ResultOf(Plan());
  ++wrong.plan_digest;
  group_.OnAnswer(Link(0), wrong, now_);

  EXPECT_FALSE(WasCrash());
}

TEST_F(WorkerGroupTest, RanksThatDifferAreNoCrash) {
  BecomeReady();
  const StepPlan plan = Plan();
  Answer(0, plan);
  StepResult wrong = ResultOf(plan);
  wrong.sampled[0].token_id = 6;
  group_.OnAnswer(Link(1), wrong, now_);

  EXPECT_FALSE(WasCrash());
}

TEST_F(WorkerGroupTest, AConnectionThatFailsInsideIsNoCrash) {
  BecomeReady();
  Plan();
  while (Take<ReportLost>().empty()) {
    group_.OnWatchEnd(Link(0), absl::InternalError("RST_STREAM"), now_);
    Tick(kTiming.mend_pause_ns);
  }

  EXPECT_FALSE(WasCrash());
}

}  // namespace
}  // namespace quire
