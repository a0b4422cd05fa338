// Tests schedulers that succeed one another or wait for each other, and clocks that go back.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "scheduler/group/worker_group.h"
#include "tests/scheduler/group/worker_group_fixture.h"

namespace quire {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr uint64_t kNewer = 5000;

TEST_F(WorkerGroupTest, ASchedulerBesideAWorkingOneStandsByAndAsksForNothing) {
  Tick();
  ReportHolder(kNewer);
  for (int64_t passed = 0; passed < 20 * kTiming.standby_ns; passed += 100 * kNanosPerMilli) {
    for (int32_t rank : {0, 1}) {
      Hello(rank);
    }
    ReportHolder(kNewer);
    Tick(100 * kNanosPerMilli);
  }

  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
  const auto standby = Take<ReportStandby>();
  ASSERT_THAT(standby, SizeIs(1));
  EXPECT_EQ(standby[0].scheduler_incarnation, kNewer);
}

// The report of one worker is enough: the other worker may be out of reach.
TEST_F(WorkerGroupTest, AStandbyIsOneAsSoonAsAWorkerNamesTheOther) {
  Tick();
  ReportHolderAt(0, kNewer);

  EXPECT_THAT(Take<ReportStandby>(), SizeIs(1));
}

TEST_F(WorkerGroupTest, AStandbyTakesOverWhenOneWorkerHearsNothingOfTheOther) {
  Tick();
  for (int64_t passed = 0; passed <= kTiming.standby_ns; passed += 100 * kNanosPerMilli) {
    ReportHolder(500);
    Hello(0);
    Hello(1);
    ReportHolder(500);
    Tick(100 * kNanosPerMilli);
  }
  ReportHolderAt(0, 500, kTiming.standby_ns - 1);
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());

  ReportHolderAt(0, 500, kTiming.standby_ns);

  EXPECT_THAT(Take<BeginWorkerEpoch>(), SizeIs(2));
  const auto standby = Take<ReportStandby>();
  ASSERT_THAT(standby, SizeIs(2));
  EXPECT_EQ(standby[1].scheduler_incarnation, 0U) << "not any more";
  EXPECT_EQ(group_.scheduler_incarnation(), kIncarnation) << "it is the newer one as it is";
}

// Another standby may have taken the workers while this one stood still.
TEST_F(WorkerGroupTest, AStandbyThatStoodStillAsksByWhatWorkersSayAfterwards) {
  Tick();
  ReportHolder(500);
  ReportHolder(0);  // workers were replaced; the holder has the first turn
  Hello(0);
  Hello(1);
  ASSERT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());

  StandStill(2 * kTiming.standby_ns);
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
  ReportHolderAt(0, kNewer);
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
  ReportHolderAt(1, kNewer);
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
}

TEST_F(WorkerGroupTest, ASchedulerWhoseClockWentBackTakesTheNextNumber) {
  Tick();
  ReportHolder(kNewer, kTiming.standby_ns);
  Hello(0);
  Hello(1);
  ReportHolder(kNewer, kTiming.standby_ns);
  EXPECT_GT(group_.scheduler_incarnation(), kNewer);
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty()) << "its links have the old number";

  BecomeReady();

  EXPECT_EQ(group_.scheduler_incarnation(), kNewer + 1 + kIncarnation);
}

TEST_F(WorkerGroupTest, AClockThatWentBackByLessThanAYearIsMadeUpFor) {
  Tick();
  ReportHolderAt(0, kIncarnation + kNanosPerYear);

  EXPECT_THAT(Take<ReportRefused>(), IsEmpty());
  EXPECT_THAT(Take<ReportStandby>(), SizeIs(1));
}

// Regression: two schedulers that started together ended each other's epochs for ever.
TEST_F(WorkerGroupTest, WhoAskedFirstStandsByForTheNewerOneThatAskedSince) {
  Tick();
  Hello(0);
  Hello(1);
  ASSERT_THAT(Take<BeginWorkerEpoch>(), SizeIs(2));

  group_.OnEpochBegun(Link(0), Stale(), now_);
  for (int64_t passed = 0; passed < kTiming.standby_ns; passed += 100 * kNanosPerMilli) {
    ReportHolder(kNewer);
    Hello(0);
    Hello(1);
    Tick(100 * kNanosPerMilli);
  }

  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
  EXPECT_THAT(Take<ReportStandby>(), SizeIs(1));
}

TEST_F(WorkerGroupTest, AReportOfANewerSchedulerEndsTheEpochAtOnce) {
  BecomeReady();
  ReportHolderAt(1, kNewer);

  const auto lost = Take<ReportLost>();
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(ReasonOf(lost[0].status), "STALE_SCHEDULER");
  EXPECT_FALSE(group_.is_ready());
}

TEST_F(WorkerGroupTest, AReportOfBeforeItAskedEndsNothing) {
  BecomeReady();
  ReportHolder(500);
  ReportHolder(0);

  EXPECT_TRUE(group_.is_ready());
  EXPECT_THAT(Take<ReportLost>(), IsEmpty());
}

// Regression: two schedulers took the worker from each other for ever.
TEST_F(WorkerGroupTest, ASchedulerThatWasReadyStandsByForANewerOneThatLives) {
  BecomeReady();
  Plan();
  group_.OnStepsEnd(Link(0), Stale(), now_);
  EXPECT_THAT(Take<ReportLost>(), SizeIs(1));
  ReportHolderAt(0, kNewer);
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty()) << "it may be dead already";

  for (int i = 0; i < 2; ++i) {
    Tick(250 * kNanosPerMilli);
    ReportHolderAt(0, kNewer);
  }
  const auto standby = Take<ReportStandby>();
  ASSERT_THAT(standby, SizeIs(1));
  EXPECT_EQ(standby[0].scheduler_incarnation, kNewer);

  for (int64_t passed = 0; passed < 10 * kTiming.standby_ns; passed += 100 * kNanosPerMilli) {
    ReportHolder(kNewer);
    Hello(0);
    Hello(1);
    Tick(100 * kNanosPerMilli);
  }
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
}

// Its requests have ended, so workers of another model are admitted, and the loss is no crash.
TEST_F(WorkerGroupTest, ASchedulerThatStoodByAfterItWasReadyTakesAnyWorkers) {
  BecomeReady();
  ReportHolder(kNewer);
  for (int i = 0; i < 2; ++i) {
    Tick(250 * kNanosPerMilli);
    ReportHolder(kNewer);
  }
  ASSERT_THAT(Take<ReportStandby>(), SizeIs(1));
  for (const int32_t rank : {0, 1}) {
    HelloAt(rank).uuid = rank == 0 ? "new 0" : "new 1";
    HelloAt(rank).model_hash = 2;
  }
  ReportHolder(0);
  for (int64_t passed = 0; passed <= 2 * kTiming.standby_ns; passed += 100 * kNanosPerMilli) {
    Tick(100 * kNanosPerMilli);
    Hello(0);
    Hello(1);
  }
  for (const int32_t rank : {0, 1}) {
    group_.OnEpochBegun(Link(rank), absl::OkStatus(), now_);
  }

  const auto standby = Take<ReportStandby>();
  ASSERT_THAT(standby, SizeIs(1));
  EXPECT_EQ(standby[0].scheduler_incarnation, 0U) << "not any more";
  const auto ready = Take<ReportReady>();
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_FALSE(ready[0].after_crash);
}

// The holder asks a replaced worker within moments, so a report without holder is no end.
TEST_F(WorkerGroupTest, AStandbyIsOneUntilNoWorkerHasNamedTheOtherForLong) {
  Tick();
  ReportHolder(kNewer);
  ASSERT_THAT(Take<ReportStandby>(), SizeIs(1));
  ReportHolder(0);
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
  ReportHolder(kNewer);
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());

  for (int64_t passed = 0; passed <= kTiming.standby_ns; passed += 100 * kNanosPerMilli) {
    ReportHolder(0);
    Tick(100 * kNanosPerMilli);
  }
  const auto standby = Take<ReportStandby>();
  ASSERT_THAT(standby, SizeIs(1));
  EXPECT_EQ(standby[0].scheduler_incarnation, 0U);
}

// Its requests go on: the newer scheduler is dead, or only once used a spare worker.
TEST_F(WorkerGroupTest, ASchedulerThatWasReadyOutlivesANewerOneThatIsGone) {
  BecomeReady();
  group_.Abandon(group_.group_epoch(), now_);
  HelloAt(0).uuid = "a spare";
  Tick();
  ReportHolderAt(0, kNewer, kTiming.standby_ns);
  Hello(1);
  group_.OnHello(Link(0), HelloAt(0), now_);
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
  EXPECT_THAT(Take<ReportRefused>(), IsEmpty());

  EXPECT_TRUE(WasCrash());
  EXPECT_GT(group_.scheduler_incarnation(), kNewer);
}

// If all ranks were replaced, no worker knows which scheduler has requests waiting.
TEST_F(WorkerGroupTest, AStandbyLeavesTheFirstTurnToTheOneThatItWaitedFor) {
  Tick();
  ReportHolder(kNewer);
  HelloAt(0).uuid = "new 0";
  HelloAt(1).uuid = "new 1";
  holders_ = {{}, {}};
  group_.OnWatchEnd(Link(0), absl::UnavailableError("died"), now_);
  group_.OnWatchEnd(Link(1), absl::UnavailableError("died"), now_);
  Tick(kTiming.max_backoff_ns);
  int64_t waited_ns = 0;
  while (Take<BeginWorkerEpoch>().empty()) {
    ASSERT_LE(waited_ns, 2 * kTiming.standby_ns);
    Hello(0);
    Hello(1);
    Tick(50 * kNanosPerMilli);
    waited_ns += 50 * kNanosPerMilli;
  }

  EXPECT_GE(waited_ns, kTiming.standby_ns);
}

// It lets go because another scheduler may reach all workers.
TEST_F(WorkerGroupTest, ASchedulerThatCannotReachAWorkerLetsTheOthersGo) {
  BecomeReady();
  group_.OnWatchEnd(Link(1), absl::UnavailableError("cut"), now_);
  std::vector<uint64_t> numbers;
  for (int64_t passed = 0; passed < 3 * kTiming.standby_ns; passed += 100 * kNanosPerMilli) {
    if (group_.phase_of(0) == RankPhase::kAway) {
      Hello(0);
    }
    ReportHolderAt(0, kIncarnation);
    Tick(100 * kNanosPerMilli);
    for (const DialLink& dial : Take<DialLink>()) {
      if (dial.link.rank == 0) {
        numbers.push_back(dial.scheduler_incarnation);
      }
    }
  }
  ASSERT_THAT(numbers, testing::Not(IsEmpty()));
  EXPECT_GT(numbers.back(), kIncarnation) << "under a number that no worker takes for its holder";

  BecomeReady();
  EXPECT_EQ(group_.scheduler_incarnation(), numbers.back()) << "it has the first turn";
}

TEST_F(WorkerGroupTest, AWorkerThatRefusesEpochsAsStaleIsAskedWithPauses) {
  Tick();
  int num_begins = 0;
  for (int64_t passed = 0; passed < 20 * kTiming.max_backoff_ns; passed += 10 * kNanosPerMilli) {
    Hello(0);
    Hello(1);
    num_begins += Take<BeginWorkerEpoch>().empty() ? 0 : 1;
    group_.OnEpochBegun(Link(0), Stale(), now_);
    Report(1, {.phase = WorkerPhase::kIdle});
    Tick(10 * kNanosPerMilli);
  }
  EXPECT_GT(num_begins, 15);
  EXPECT_LT(num_begins, 30);
}

// Regression: 2^64 - 1 made the next incarnation 0.
TEST_F(WorkerGroupTest, AWorkerThatKnowsOfASchedulerThatCannotBeIsRefused) {
  for (const uint64_t claim :
       {~uint64_t{0}, uint64_t{9223372036854775806}, kIncarnation + uint64_t{kNanosPerYear} + 1}) {
    Tick(kTiming.max_backoff_ns);
    Report(1, {.phase = WorkerPhase::kIdle});
    ReportHolderAt(0, claim, kTiming.standby_ns);
    const auto refused = Take<ReportRefused>();
    ASSERT_THAT(refused, SizeIs(1)) << claim;
    EXPECT_EQ(refused[0].rank, 0);
    EXPECT_EQ(ReasonOf(refused[0].status), "PROTOCOL_VIOLATION");
    EXPECT_EQ(group_.scheduler_incarnation(), kIncarnation);
  }
  holders_ = {{}, {}};
  BecomeReady();
  ReportHolderAt(0, ~uint64_t{0});

  EXPECT_THAT(Take<ReportLost>(), SizeIs(1));
  holders_ = {{}, {}};
  BecomeReady();
}

// The worker may have ended or be out of reach; the other scheduler may still live.
TEST_F(WorkerGroupTest, AStandbyThatHearsOfNoWorkerStandsByOn) {
  Tick();
  ReportHolder(kNewer);
  ASSERT_THAT(Take<ReportStandby>(), SizeIs(1));

  Tick(10 * kTiming.standby_ns);

  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
}

// Its requests wait, because workers that died are restarted.
TEST_F(WorkerGroupTest, ASchedulerThatHearsOfNoWorkerWaitsUnlessItIsToldNotTo) {
  BecomeReady();
  Tick(30 * kNanosPerSecond);

  EXPECT_THAT(Take<ReportLost>(), SizeIs(1));
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
}

class CutOffTest : public WorkerGroupTest {
 protected:
  static constexpr int64_t kCutOff = 5 * kNanosPerSecond;
  static constexpr GroupTiming Timing() {
    GroupTiming timing;
    timing.cut_off_ns = kCutOff;
    return timing;
  }

  CutOffTest() : WorkerGroupTest(/*num_ranks=*/2, /*stands_by=*/true, Timing()) {}
};

TEST_F(CutOffTest, ASchedulerThatHearsOfNoWorkerForLongStandsBy) {
  BecomeReady();
  Tick(kCutOff - kNanosPerMilli);
  EXPECT_THAT(Take<ReportLost>(), SizeIs(1));
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
  Tick(kNanosPerMilli);
  const auto standby = Take<ReportStandby>();
  ASSERT_THAT(standby, SizeIs(1));
  EXPECT_EQ(standby[0].scheduler_incarnation, kUnknownScheduler);
  Tick(10 * kCutOff);
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty()) << "said once";

  holders_ = {{kIncarnation, 10 * kCutOff}, {kIncarnation, 10 * kCutOff}};  // no takeover
  Tick(kTiming.max_backoff_ns);
  for (const int32_t rank : {0, 1}) {
    Hello(rank);
  }
  for (const int32_t rank : {0, 1}) {
    group_.OnEpochBegun(Link(rank), absl::OkStatus(), now_);
  }

  EXPECT_THAT(Take<ReportReady>(), SizeIs(1));
  const auto ended = Take<ReportStandby>();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].scheduler_incarnation, 0U);
}

// The scheduler itself stood still, so silence proves nothing.
TEST_F(CutOffTest, ASchedulerThatStoodStillWaitsAnew) {
  BecomeReady();
  StandStill(2 * kCutOff);
  Tick(kCutOff / 2);

  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
}

TEST_F(CutOffTest, ASchedulerThatWasNeverReadyHasNothingToGiveUp) {
  Tick(2 * kCutOff);

  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
}

class TakesAtOnceTest : public WorkerGroupTest {
 protected:
  TakesAtOnceTest() : WorkerGroupTest(/*num_ranks=*/2, /*stands_by=*/false) {}
};

TEST_F(TakesAtOnceTest, ASchedulerThatDoesNotStandByTakesTheWorkersFromAnOlderOne) {
  Tick();
  ReportHolder(500);
  Hello(0);
  ReportHolder(500);
  group_.OnHello(Link(1), HelloAt(1), now_);

  EXPECT_THAT(Take<BeginWorkerEpoch>(), SizeIs(2));
  EXPECT_THAT(Take<ReportStandby>(), IsEmpty());
}

TEST_F(TakesAtOnceTest, ItWaitsForANewerOne) {
  Tick();
  ReportHolder(kNewer);
  Hello(0);
  Hello(1);
  ReportHolder(kNewer);

  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
  EXPECT_THAT(Take<ReportStandby>(), SizeIs(1));
}

}  // namespace
}  // namespace quire
