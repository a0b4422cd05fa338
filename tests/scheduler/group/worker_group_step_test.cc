// Tests steps: answers, ranks that stand still, connections that are mended.
#include <string>
#include <utility>
#include <vector>

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

TEST_F(WorkerGroupTest, AStepGoesToAllAndIsAnsweredWhenAllHaveAnswered) {
  BecomeReady();
  const StepPlan plan = Plan();
  EXPECT_THAT(Take<SendPlan>(), SizeIs(2));

  Answer(1, plan);
  EXPECT_THAT(Take<ReportResult>(), IsEmpty());
  Answer(0, plan);

  const auto results = Take<ReportResult>();
  ASSERT_THAT(results, SizeIs(1));
  EXPECT_EQ(results[0].result, ResultOf(plan));
}

// Regression: an answer with another header made the client forget that its step was unanswered.
TEST_F(WorkerGroupTest, AnAnswerToAnotherStepIsDroppedAndTheStepStaysAskedFor) {
  BecomeReady();
  const StepPlan first = Plan();
  Answer(0, first);
  Answer(1, first);
  Take<ReportResult>();
  const StepPlan second = Plan();
  Take<SendPlan>();

  Answer(0, first);
  EXPECT_THAT(Take<ReportStale>(), SizeIs(1));
  group_.OnStepsEnd(Link(0), absl::UnavailableError("reset"), now_);
  Tick(kTiming.mend_pause_ns);

  EXPECT_THAT(Take<SendPlan>(), SizeIs(1));
  Answer(0, second);
  Answer(0, second);
  EXPECT_THAT(Take<ReportStale>(), SizeIs(1));
  Answer(1, second);
  EXPECT_THAT(Take<ReportResult>(), SizeIs(1));
}

TEST_F(WorkerGroupTest, AnAnswerToAnotherPlanUnderThisStepLosesTheGroup) {
  BecomeReady();
  StepResult wrong = ResultOf(Plan());
  ++wrong.plan_digest;

  group_.OnAnswer(Link(0), wrong, now_);

  EXPECT_EQ(ReasonOf(Take<ReportLost>().at(0).status), "OTHER_PLAN");
}

TEST_F(WorkerGroupTest, ABrokenConnectionIsMendedWithinTheLease) {
  BecomeReady();
  const StepPlan plan = Plan();
  Answer(1, plan);
  Take<SendPlan>();
  const LinkId broken = Link(0);

  group_.OnStepsEnd(broken, absl::UnavailableError("reset"), now_);
  EXPECT_THAT(Take<CloseLink>(), SizeIs(1));
  Tick(kTiming.mend_pause_ns);

  EXPECT_THAT(Take<ReportLost>(), IsEmpty());
  EXPECT_FALSE(Link(0) == broken);
  EXPECT_THAT(Take<GreetWorker>(), IsEmpty());
  EXPECT_EQ(Take<SendPlan>().at(0).link, Link(0));
  group_.OnAnswer(broken, ResultOf(plan), now_);  // over the old connection
  EXPECT_THAT(Take<ReportResult>(), IsEmpty());
  Answer(0, plan);
  EXPECT_THAT(Take<ReportResult>(), SizeIs(1));
}

TEST_F(WorkerGroupTest, AConnectionThatIsNotMendedWithinTheLeaseLosesTheGroup) {
  BecomeReady();
  Plan();
  for (int64_t passed = 0; passed < kTiming.lease_ns; passed += kTiming.mend_pause_ns) {
    EXPECT_THAT(Take<ReportLost>(), IsEmpty());
    group_.OnWatchEnd(Link(0), absl::UnavailableError("refused"), now_);
    Tick(kTiming.mend_pause_ns);
  }

  group_.OnWatchEnd(Link(0), absl::UnavailableError("refused"), now_);

  const auto lost = Take<ReportLost>();
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_THAT(std::string(lost[0].status.message()), HasSubstr("rank 0: "));
}

TEST_F(WorkerGroupTest, BreaksThatLieFarApartAreMendedEachTime) {
  BecomeReady();
  for (int i = 0; i < 5; ++i) {
    group_.OnStepsEnd(Link(0), absl::UnavailableError("reset"), now_);
    PassQuietly(kTiming.lease_ns);
  }

  EXPECT_THAT(Take<ReportLost>(), IsEmpty());
}

TEST_F(WorkerGroupTest, AStepThatGetsOnIsNeverTooSlow) {
  BecomeReady();
  Plan();
  uint64_t progress = 0;
  for (int64_t passed = 0; passed < 20 * kTiming.step_timeout_ns; passed += kNanosPerSecond) {
    for (int32_t rank : {0, 1}) {
      Report(rank, {.phase = WorkerPhase::kExecuting, .progress = ++progress, .step_id = 1});
    }
    Tick(kNanosPerSecond);
  }

  EXPECT_THAT(Take<ReportLost>(), IsEmpty());
}

TEST_F(WorkerGroupTest, AStepThatStandsStillIsFencedAndASlowWorkerGetsTwiceTheTime) {
  const auto time_until_lost = [this] {
    Plan();
    const Instant start = now_;
    while (Take<ReportLost>().empty()) {
      Report(0, {.phase = WorkerPhase::kExecuting, .progress = 7, .step_id = 1});
      Report(1, {.phase = WorkerPhase::kIdle, .step_id = 1});
      if (step_id_ > 0) {
        StepPlan plan;
        group_.OnAnswer(Link(1), StepResult{}, now_);
      }
      Tick(100 * kNanosPerMilli);
      if (now_ - start > 100 * kTiming.step_timeout_ns) {
        return int64_t{0};
      }
    }
    return now_ - start;
  };
  BecomeReady();
  const int64_t first = time_until_lost();
  BecomeReady();
  const int64_t second = time_until_lost();
  HelloAt(0).uuid = "a new process";
  BecomeReady();
  const int64_t third = time_until_lost();

  EXPECT_GE(first, kTiming.step_timeout_ns);
  EXPECT_LT(first, 3 * kTiming.step_timeout_ns / 2);
  EXPECT_GE(second, 2 * kTiming.step_timeout_ns);
  EXPECT_LT(third, 3 * kTiming.step_timeout_ns / 2);
}

// Both ranks stand still: rank 0 waits, rank 1 is stuck or waits as well.
TEST_F(WorkerGroupTest, TheRankThatOthersWaitForIsTheOneThatStandsStill) {
  for (const bool wait_for_each_other : {false, true}) {
    BecomeReady();
    Plan();
    std::vector<ReportLost> lost;
    for (const Instant end = now_ + 3 * kTiming.step_timeout_ns; lost.empty() && now_ < end;) {
      Report(0,
             {.phase = WorkerPhase::kExecuting, .progress = 7, .step_id = 1, .waits_for_rank = 1});
      WorkerReport other = {.phase = WorkerPhase::kExecuting, .progress = 7, .step_id = 1};
      if (wait_for_each_other) {
        other.waits_for_rank = 0;
      }
      Report(1, other);
      Tick(100 * kNanosPerMilli);
      lost = Take<ReportLost>();
    }
    ASSERT_THAT(lost, SizeIs(1)) << wait_for_each_other;
    EXPECT_EQ(ReasonOf(lost[0].status), "STEP_TIMEOUT");
    EXPECT_THAT(std::string(lost[0].status.message()),
                HasSubstr(wait_for_each_other ? "rank 0: " : "rank 1: "));
    EXPECT_TRUE(WasCrash());
    group_.Abandon(group_.group_epoch(), now_);
  }
}

// Regression: the waiting rank was blamed, after twice the timeout.
TEST_F(ThreeRanksTest, WhoWaitsForRanksThatWaitForEachOtherIsNotToBlame) {
  BecomeReady();
  Plan();
  std::vector<ReportLost> lost;
  for (const Instant end = now_ + 3 * kTiming.step_timeout_ns; lost.empty() && now_ < end;) {
    Report(0, {.phase = WorkerPhase::kExecuting, .progress = 7, .waits_for_rank = 1});
    Report(1, {.phase = WorkerPhase::kExecuting, .progress = 7, .waits_for_rank = 2});
    Report(2, {.phase = WorkerPhase::kExecuting, .progress = 7, .waits_for_rank = 1});
    Tick(100 * kNanosPerMilli);
    lost = Take<ReportLost>();
  }

  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(ReasonOf(lost[0].status), "STEP_TIMEOUT");
  EXPECT_THAT(std::string(lost[0].status.message()), HasSubstr("rank 1: "));
}

// Progress counts finished parts, and the rank has finished none since the others arrived.
TEST_F(ThreeRanksTest, WhoHasJustStoppedWaitingHasMoved) {
  BecomeReady();
  Plan();
  const auto report_all = [&](uint64_t of_slow, std::optional<int32_t> waits_for) {
    Report(0, {.phase = WorkerPhase::kExecuting, .progress = 7, .waits_for_rank = waits_for});
    Report(1, {.phase = WorkerPhase::kExecuting, .progress = of_slow});
    Report(2, {.phase = WorkerPhase::kExecuting, .progress = of_slow});
    Tick(100 * kNanosPerMilli);
  };
  const Instant end = now_ + 2 * kTiming.step_timeout_ns;
  for (uint64_t progress = 0; now_ < end; ++progress) {
    report_all(progress, 1);
  }

  report_all(1000, std::nullopt);

  EXPECT_THAT(Take<ReportLost>(), IsEmpty());
}

// Regression: the group waited for rank 1 for ever. Rank 2 waits for it and is not to blame.
TEST_F(ThreeRanksTest, WhoWaitsForARankThatHasAnsweredStandsStill) {
  BecomeReady();
  const StepPlan plan = Plan();
  const auto stand_until = [&](Instant end) {
    std::vector<ReportLost> lost;
    while (lost.empty() && now_ < end) {
      Report(0, {.phase = WorkerPhase::kExecuting, .progress = static_cast<uint64_t>(now_)});
      Report(1, {.phase = WorkerPhase::kExecuting, .progress = 7, .waits_for_rank = 0});
      Report(2, {.phase = WorkerPhase::kExecuting, .progress = 7, .waits_for_rank = 1});
      Tick(100 * kNanosPerMilli);
      lost = Take<ReportLost>();
    }
    return lost;
  };
  EXPECT_THAT(stand_until(now_ + 3 * kTiming.step_timeout_ns), IsEmpty()) << "rank 0 gets on";

  Answer(0, plan);
  const Instant answered_at = now_;
  const auto lost = stand_until(now_ + 3 * kTiming.step_timeout_ns);

  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(ReasonOf(lost[0].status), "STEP_TIMEOUT");
  EXPECT_THAT(std::string(lost[0].status.message()), HasSubstr("rank 1: "));
  EXPECT_GE(now_ - answered_at, kTiming.step_timeout_ns) << "it waited until then";
}

// Regression: only a rank that reported EXECUTING could time out; others were waited for for ever.
TEST_F(WorkerGroupTest, AWorkerThatStandsStillIsFencedWhateverItSaysThatItDoes) {
  for (const WorkerPhase phase :
       {WorkerPhase::kLoading, WorkerPhase::kUnknown, WorkerPhase::kBeginningEpoch}) {
    HelloAt(0).uuid += "'";  // a new process, without a record of slowness
    BecomeReady();
    Plan();
    const Instant start = now_;
    std::vector<ReportLost> lost;
    for (int i = 0; lost.empty() && now_ - start < 3 * kTiming.step_timeout_ns; ++i) {
      Report(0, {.phase = i % 10 == 9 ? WorkerPhase::kIdle : phase, .progress = 7});
      Report(1, {.phase = WorkerPhase::kExecuting, .progress = static_cast<uint64_t>(i)});
      Tick(100 * kNanosPerMilli);
      lost = Take<ReportLost>();
    }
    ASSERT_THAT(lost, SizeIs(1)) << static_cast<int>(phase);
    EXPECT_EQ(ReasonOf(lost[0].status), "STEP_TIMEOUT");
    EXPECT_THAT(std::string(lost[0].status.message()), HasSubstr("rank 0: "));
    EXPECT_GE(now_ - start, kTiming.step_timeout_ns);
  }
}

// Regression: each break of the stream restarted the timeout.
TEST_F(WorkerGroupTest, AWorkerThatStandsStillIsFencedThoughItsConnectionBreaks) {
  BecomeReady();
  Plan();
  std::vector<ReportLost> lost;
  for (int i = 0; lost.empty() && i < 300; ++i) {
    if (i % 20 == 19) {
      group_.OnStepsEnd(Link(0), absl::UnavailableError("reset"), now_);
    }
    Report(0, {.phase = WorkerPhase::kExecuting, .progress = 7, .step_id = 1});
    Report(1, {.phase = WorkerPhase::kIdle, .progress = static_cast<uint64_t>(i)});
    Tick(100 * kNanosPerMilli);
    lost = Take<ReportLost>();
  }

  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(ReasonOf(lost[0].status), "STEP_TIMEOUT");
}

TEST_F(WorkerGroupTest, NobodyStandsStillWhileTheWayIsCut) {
  WorkerGroup patient(Settings(), 1, kIncarnation, {.step_timeout_ns = kNanosPerSecond});
  const auto report = [&](LinkId link, uint64_t progress) {
    patient.OnReport(
        link,
        {.uuid = HelloOf(0).uuid, .phase = WorkerPhase::kExecuting, .progress = progress},
        now_);
  };
  patient.Tick(now_);
  LinkId link{.rank = 0, .number = 1};
  report(link, 0);
  patient.OnHello(link, HelloOf(0), now_);
  patient.OnEpochBegun(link, absl::OkStatus(), now_);
  ASSERT_TRUE(patient.is_ready());
  StepPlan plan;
  plan.header = {.scheduler_incarnation = kIncarnation, .group_epoch = 1, .step_id = 1};
  patient.Plan(WithDigest(std::move(plan)), now_);
  report(link, 1);

  patient.OnStepsEnd(link, absl::UnavailableError("reset"), now_);
  link.number = 2;
  now_ += 14 * 100 * kNanosPerMilli;
  patient.Tick(now_);
  EXPECT_TRUE(patient.is_ready());
  report(link, 2);
  patient.Tick(now_);

  EXPECT_TRUE(patient.is_ready());
}

TEST_F(WorkerGroupTest, ARankThatWaitsForOneThatGetsOnIsNotStuck) {
  BecomeReady();
  Plan();
  uint64_t progress = 0;
  for (int64_t passed = 0; passed < 5 * kTiming.step_timeout_ns; passed += kNanosPerSecond) {
    Report(0, {.phase = WorkerPhase::kExecuting, .progress = 7, .step_id = 1, .waits_for_rank = 1});
    Report(1, {.phase = WorkerPhase::kExecuting, .progress = ++progress, .step_id = 1});
    Tick(kNanosPerSecond);
  }
  EXPECT_THAT(Take<ReportLost>(), IsEmpty());

  // Waiting for a rank that does not exist is no excuse.
  std::vector<ReportLost> lost;
  for (int64_t passed = 0; passed <= kTiming.step_timeout_ns && lost.empty();
       passed += kNanosPerSecond) {
    Report(0,
           {.phase = WorkerPhase::kExecuting, .progress = 7, .step_id = 1, .waits_for_rank = -1});
    Report(1, {.phase = WorkerPhase::kExecuting, .progress = ++progress, .step_id = 1});
    Tick(kNanosPerSecond);
    lost = Take<ReportLost>();
  }
  EXPECT_THAT(lost, SizeIs(1));
}

TEST_F(WorkerGroupTest, AStepThatAnIdleWorkerKnowsNothingOfIsAskedForAgain) {
  BecomeReady();
  const StepPlan plan = Plan();
  Answer(0, plan);
  Take<SendPlan>();
  for (int64_t passed = 0; passed <= kTiming.lease_ns; passed += kTiming.mend_pause_ns) {
    Report(0, {.phase = WorkerPhase::kIdle});
    Report(1, {.phase = WorkerPhase::kIdle});
    Tick(kTiming.mend_pause_ns);
  }
  const auto breaks = Take<BreakSteps>();
  ASSERT_THAT(breaks, SizeIs(1));
  EXPECT_EQ(breaks[0].link, Link(1));

  group_.OnStepsEnd(Link(1), absl::CancelledError("cancelled"), now_);
  Tick(kTiming.mend_pause_ns);

  EXPECT_EQ(Take<SendPlan>().at(0).link, Link(1));
}

TEST_F(WorkerGroupTest, ASchedulerThatStoodStillBlamesNoWorker) {
  BecomeReady();
  Plan();
  Report(1, {.phase = WorkerPhase::kIdle});
  StandStill(10 * kNanosPerSecond);
  // Meanwhile a worker closed its connection.
  group_.OnStepsEnd(Link(0), absl::UnavailableError("closed"), now_);
  Take<SendPlan>();
  Tick(kTiming.silence_ns - 1);

  EXPECT_THAT(Take<BreakSteps>(), IsEmpty());
  EXPECT_THAT(Take<ReportLost>(), IsEmpty());
  EXPECT_EQ(Take<SendPlan>().at(0).link, Link(0));
  Tick(1);
  EXPECT_EQ(ReasonOf(Take<ReportLost>().at(0).status), "WORKER_SILENT");
}

TEST_F(WorkerGroupTest, NothingIsWantedOfALinkThatIsClosedUntilItIsDialledAgain) {
  BecomeReady();
  Plan();
  Report(1, {.phase = WorkerPhase::kIdle});
  Tick(kTiming.lease_ns - 1);
  group_.OnStepsEnd(Link(1), absl::UnavailableError("reset"), now_);
  EXPECT_THAT(Take<CloseLink>(), SizeIs(1));

  Tick(1);

  EXPECT_THAT(Take<BreakSteps>(), IsEmpty());
}

}  // namespace
}  // namespace quire
