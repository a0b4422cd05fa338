// Schedulers that follow one another, and clocks that go back.
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

TEST_F(WorkerGroupTest, ASchedulerWhoseClockWentBackStillTakesOver) {
  Tick();
  group_.OnHello(Link(0), Stale("5000"), now_);
  group_.OnHello(Link(1), Stale("5000"), now_);

  BecomeReady();

  EXPECT_EQ(group_.scheduler_incarnation(), 5001U);
}

TEST_F(WorkerGroupTest, AClockThatWentBackByLessThanAYearIsMadeUpFor) {
  Tick();
  group_.OnHello(Link(0), Stale(std::to_string(kIncarnation + kNanosPerYear)), now_);

  EXPECT_THAT(Take<ReportRefused>(), IsEmpty());
  EXPECT_EQ(group_.scheduler_incarnation(), kIncarnation + kNanosPerYear + 1);
}

// Two schedulers once took the worker from each other for ever.
TEST_F(WorkerGroupTest, ASchedulerThatWasReadyStandsDownForANewerOne) {
  BecomeReady();
  Plan();
  group_.OnStepsEnd(Link(0), Stale("5000"), now_);
  EXPECT_THAT(Take<ReportLost>(), SizeIs(1));
  Take<DialLink>();

  Report(0, {.phase = WorkerPhase::kIdle});
  group_.OnHello(Link(0), Stale("5000"), now_);

  const auto superseded = Take<ReportSuperseded>();
  ASSERT_THAT(superseded, SizeIs(1));
  EXPECT_EQ(superseded[0].scheduler_incarnation, 5000U);
  EXPECT_THAT(Take<CloseLink>(), SizeIs(4)) << "of the loss, and of both that were dialled since";
  const uint64_t incarnation = group_.scheduler_incarnation();
  actions_.clear();
  for (int32_t rank : {0, 1}) {
    Hello(rank);
  }
  for (int i = 0; i < 100; ++i) {
    Tick(kTiming.max_backoff_ns);
  }
  Collect();
  EXPECT_THAT(actions_, IsEmpty());
  EXPECT_EQ(group_.scheduler_incarnation(), incarnation);
}

// A scheduler once ended for a spare worker that somebody had tried out.
TEST_F(WorkerGroupTest, AnotherProcessThatANewerSchedulerHasUsedIsRefusedByName) {
  BecomeReady();
  group_.Abandon(group_.group_epoch(), now_);
  HelloAt(0).uuid = "a spare";
  int num_greetings = 0;
  for (int64_t passed = 0; passed < 20 * kTiming.max_backoff_ns; passed += 10 * kNanosPerMilli) {
    Report(0, {.phase = WorkerPhase::kIdle, .progress = static_cast<uint64_t>(passed)});
    Report(1, {.phase = WorkerPhase::kIdle});
    group_.OnHello(Link(0), Stale("5000"), now_);
    Tick(10 * kNanosPerMilli);
    num_greetings += static_cast<int>(Take<GreetWorker>().size());
  }
  EXPECT_GT(num_greetings, 15);
  EXPECT_LT(num_greetings, 30);
  EXPECT_THAT(Take<ReportSuperseded>(), IsEmpty());
  const auto refused = Take<ReportRefused>();
  ASSERT_THAT(refused, testing::Not(IsEmpty()));
  EXPECT_EQ(refused[0].rank, 0);
  EXPECT_EQ(ReasonOf(refused[0].status), "STALE_SCHEDULER");
  EXPECT_EQ(group_.scheduler_incarnation(), kIncarnation) << "it would be taken from who has it";

  HelloAt(0).uuid = "started again";
  EXPECT_TRUE(WasCrash());
}

TEST_F(WorkerGroupTest, AnotherProcessThatComputesForANewerSchedulerIsTakenOver) {
  BecomeReady();
  group_.Abandon(group_.group_epoch(), now_);
  HelloAt(0).uuid = "of the newer one";
  const auto say = [this](uint64_t step_id) {
    Tick(kTiming.max_backoff_ns);
    Report(0, {.phase = WorkerPhase::kIdle, .step_id = step_id});
    Report(1, {.phase = WorkerPhase::kIdle});
    group_.OnHello(Link(0), Stale("5000"), now_);
    return Take<ReportSuperseded>();
  };
  EXPECT_THAT(say(7), IsEmpty());
  HelloAt(0).uuid = "one more";
  EXPECT_THAT(say(8), IsEmpty()) << "nobody has seen it compute";
  EXPECT_THAT(say(8), IsEmpty());

  EXPECT_THAT(say(9), SizeIs(1));
}

// Its reports and the answer to the greeting come in any order.
TEST_F(WorkerGroupTest, WhoSpeaksOfANewerSchedulerBeforeItsFirstReportIsGreetedAgain) {
  BecomeReady();
  group_.Abandon(group_.group_epoch(), now_);
  Take<GreetWorker>();
  group_.OnHello(Link(0), Stale("5000"), now_);
  EXPECT_THAT(Take<ReportSuperseded>(), IsEmpty());
  EXPECT_THAT(Take<ReportRefused>(), IsEmpty());

  Report(0, {.phase = WorkerPhase::kIdle});
  EXPECT_THAT(Take<GreetWorker>(), SizeIs(1));
  group_.OnHello(Link(0), Stale("5000"), now_);

  EXPECT_THAT(Take<ReportSuperseded>(), SizeIs(1));
}

TEST_F(WorkerGroupTest, AnEpochThatANewerSchedulerForbidsIsNotTriedAgain) {
  const uint64_t epoch = BecomeReady();
  group_.Abandon(epoch, now_);
  Hello(0);
  Hello(1);
  Take<BeginWorkerEpoch>();

  group_.OnEpochBegun(Link(1), Stale("5000"), now_);
  group_.OnEpochBegun(Link(0), absl::OkStatus(), now_);
  Tick(kTiming.max_backoff_ns);
  Report(1, {.phase = WorkerPhase::kIdle});
  group_.OnHello(Link(1), Stale("5000"), now_);
  Tick(kTiming.max_backoff_ns);

  EXPECT_THAT(Take<ReportSuperseded>(), SizeIs(1));
  EXPECT_THAT(Take<ReportReady>(), IsEmpty());
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
}

TEST_F(WorkerGroupTest, AWorkerThatGoesOnSayingStaleIsAskedWithPauses) {
  Tick();
  Take<GreetWorker>();
  Hello(1);
  Take<BeginWorkerEpoch>();
  int num_greetings = 0;
  for (int64_t passed = 0; passed < 20 * kTiming.max_backoff_ns; passed += 10 * kNanosPerMilli) {
    group_.OnHello(Link(0), Stale(std::to_string(group_.scheduler_incarnation())), now_);
    Report(1, {.phase = WorkerPhase::kIdle});
    Tick(10 * kNanosPerMilli);
    num_greetings += static_cast<int>(Take<GreetWorker>().size());
  }
  EXPECT_GT(num_greetings, 15);
  EXPECT_LT(num_greetings, 30);
}

TEST_F(WorkerGroupTest, AWorkerThatRefusesEpochsAsStaleIsAskedWithPauses) {
  Tick();
  int num_begins = 0;
  for (int64_t passed = 0; passed < 20 * kTiming.max_backoff_ns; passed += 10 * kNanosPerMilli) {
    Hello(0);
    Hello(1);
    num_begins += Take<BeginWorkerEpoch>().empty() ? 0 : 1;
    group_.OnEpochBegun(Link(0), Stale(std::to_string(group_.scheduler_incarnation())), now_);
    Report(1, {.phase = WorkerPhase::kIdle});
    Tick(10 * kNanosPerMilli);
  }
  EXPECT_GT(num_begins, 15);
  EXPECT_LT(num_begins, 30);
}

// 2^64 - 1 once made the next incarnation 0.
TEST_F(WorkerGroupTest, AWorkerThatKnowsOfASchedulerThatCannotBeIsRefused) {
  const std::string after_a_year = std::to_string(kIncarnation + kNanosPerYear + 1);
  for (const std::string& claim : std::vector<std::string>{
           "18446744073709551615", "9223372036854775806", after_a_year, "-1", "many", ""}) {
    Tick(kTiming.max_backoff_ns);
    Report(1, {.phase = WorkerPhase::kIdle});
    group_.OnHello(Link(0), Stale(claim), now_);
    const auto refused = Take<ReportRefused>();
    ASSERT_THAT(refused, SizeIs(1)) << claim;
    EXPECT_EQ(refused[0].rank, 0);
    EXPECT_EQ(ReasonOf(refused[0].status), "PROTOCOL_VIOLATION");
    EXPECT_EQ(group_.scheduler_incarnation(), kIncarnation);
  }
  BecomeReady();
  group_.Abandon(group_.group_epoch(), now_);
  group_.OnHello(Link(0), Stale("18446744073709551615"), now_);

  EXPECT_THAT(Take<ReportRefused>(), SizeIs(1));
  EXPECT_THAT(Take<ReportSuperseded>(), IsEmpty());
  BecomeReady();
}

}  // namespace
}  // namespace quire
