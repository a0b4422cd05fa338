#include "scheduler/group/worker_group.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/support/with_digest.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr uint64_t kIncarnation = 1000;
constexpr GroupTiming kTiming;

GroupSettings Settings() {
  GroupSettings settings;
  settings.model = {.vocab_size = 100, .max_position_embeddings = 50};
  return settings;
}

WorkerHello HelloOf(int32_t rank) {
  WorkerHello hello;
  hello.uuid = "process of rank " + std::to_string(rank);
  hello.config_hash = HashOf(Settings().model);
  hello.model_hash = 1;
  hello.num_blocks_max = 20;
  hello.kv_cache_dtype = DType::kF32;
  hello.determinism_fingerprint = "cpu";
  hello.vocab_size = 100;
  hello.rendezvous = "place of rank " + std::to_string(rank);
  return hello;
}

// The workers of a group, as the group sees them: what it asks them for waits here until the test
// lets them answer.
class WorkerGroupTest : public testing::Test {
 protected:
  explicit WorkerGroupTest(int32_t num_ranks = 2)
      : num_ranks_(num_ranks),
        group_(Settings(), num_ranks, kIncarnation, kTiming),
        links_(static_cast<size_t>(num_ranks)),
        hellos_(static_cast<size_t>(num_ranks)) {
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      hellos_[static_cast<size_t>(rank)] = HelloOf(rank);
    }
  }

  // Actions of one kind since the last call, and forgets them.
  template <typename Action>
  std::vector<Action> Take() {
    Collect();
    std::vector<Action> taken;
    std::vector<GroupAction> rest;
    for (GroupAction& action : actions_) {
      if (std::holds_alternative<Action>(action)) {
        taken.push_back(std::get<Action>(std::move(action)));
      } else {
        rest.push_back(std::move(action));
      }
    }
    actions_ = std::move(rest);
    return taken;
  }
  void Collect() {
    for (GroupAction& action : group_.TakeActions()) {
      if (const auto* dial = std::get_if<DialLink>(&action)) {
        links_[static_cast<size_t>(dial->link.rank)] = dial->link;
      }
      actions_.push_back(std::move(action));
    }
  }
  LinkId Link(int32_t rank) {
    Collect();
    return links_[static_cast<size_t>(rank)];
  }

  // In steps of a tenth of a second, from the last one on.
  void Tick(int64_t after_ns = 0) {
    now_ += after_ns;
    do {
      ticked_ = std::min(now_, ticked_ + 100 * kNanosPerMilli);
      group_.Tick(ticked_);
    } while (ticked_ < now_);
  }
  // One tick after all that time.
  void StandStill(int64_t duration_ns) {
    ticked_ = now_ += duration_ns;
    group_.Tick(now_);
  }
  // Every rank reports as idle, all the while.
  void PassQuietly(int64_t duration_ns) {
    const Instant end = now_ + duration_ns;
    while (now_ < end) {
      now_ = std::min(end, now_ + 100 * kNanosPerMilli);
      for (int32_t rank = 0; rank < num_ranks_; ++rank) {
        Report(rank, {.phase = WorkerPhase::kUnknown, .progress = 0});
      }
      Tick();
    }
  }
  void Hello(int32_t rank) { group_.OnHello(Link(rank), HelloAt(rank), now_); }
  WorkerHello& HelloAt(int32_t rank) { return hellos_[static_cast<size_t>(rank)]; }
  void Report(int32_t rank, WorkerReport report) {
    report.uuid = HelloAt(rank).uuid;
    report.scheduler_incarnation = group_.scheduler_incarnation();
    report.group_epoch = group_.group_epoch();
    group_.OnReport(Link(rank), report, now_);
  }
  static absl::Status Stale(const std::string& claim) {
    return WithMetadata(
        Error(absl::StatusCode::kFailedPrecondition, "STALE_SCHEDULER", "scheduler: too old"),
        "scheduler_incarnation",
        claim);
  }
  bool IsCrashAfter(const absl::Status& status);
  // The next epoch is ready: was the loss before it a crash?
  bool WasCrash() {
    BecomeReady();
    return after_crash_;
  }
  // All ranks are there: the epoch.
  uint64_t BecomeReady() {
    Tick(kTiming.max_backoff_ns);
    StandStill(WorkerGroup::kLateTickNs);  // from here on silence counts
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      Hello(rank);
    }
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      group_.OnEpochBegun(Link(rank), absl::OkStatus(), now_);
    }
    const auto ready = Take<ReportReady>();
    EXPECT_THAT(ready, SizeIs(1));
    EXPECT_TRUE(group_.is_ready());
    after_crash_ = !ready.empty() && ready.back().after_crash;
    step_id_ = 0;
    actions_.clear();
    return group_.group_epoch();
  }
  StepPlan Plan() {
    StepPlan plan;
    plan.header = {.scheduler_incarnation = group_.scheduler_incarnation(),
                   .group_epoch = group_.group_epoch(),
                   .step_id = ++step_id_};
    plan.swap_ins = {{.block = 4, .host_block = 0, .generation = 1},
                     {.block = 2, .host_block = 1, .generation = 1}};
    plan = WithDigest(std::move(plan));
    group_.Plan(plan, now_);
    return plan;
  }
  static StepResult ResultOf(const StepPlan& plan) {
    StepResult result{.header = plan.header, .plan_digest = plan.digest};
    result.sampled = {{.handle = 1, .token_id = 5}};
    return result;
  }
  void Answer(int32_t rank, const StepPlan& plan) {
    group_.OnAnswer(Link(rank), ResultOf(plan), now_);
  }

  const int32_t num_ranks_;
  WorkerGroup group_;
  Instant now_ = 1;
  Instant ticked_ = now_;
  uint64_t step_id_ = 0;
  bool after_crash_ = false;  // as of the last epoch that was ready
  std::vector<GroupAction> actions_;
  std::vector<LinkId> links_;  // present ones, by rank
  std::vector<WorkerHello> hellos_;
};

class ThreeRanksTest : public WorkerGroupTest {
 protected:
  ThreeRanksTest() : WorkerGroupTest(3) {}
};

TEST_F(WorkerGroupTest, AnEpochBeginsWhenAllAreThereAndIsReadyWhenAllBegan) {
  Tick();
  EXPECT_THAT(Take<GreetWorker>(), SizeIs(2));
  Hello(1);
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());

  Hello(0);
  const auto begins = Take<BeginWorkerEpoch>();
  ASSERT_THAT(begins, SizeIs(2));
  EXPECT_EQ(begins[1].group_epoch, 1U);
  EXPECT_THAT(begins[1].rendezvous, testing::ElementsAre("place of rank 0", "place of rank 1"));
  group_.OnEpochBegun(Link(0), absl::OkStatus(), now_);
  EXPECT_THAT(Take<ReportReady>(), IsEmpty());
  group_.OnEpochBegun(Link(1), absl::OkStatus(), now_);

  const auto ready = Take<ReportReady>();
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_EQ(ready[0].agreement.limits.num_blocks, 20);
  EXPECT_THAT(Take<OpenSteps>(), SizeIs(2));
}

TEST_F(WorkerGroupTest, AWorkerThatHadNoTimeToComeIsNotMissed) {
  const auto refuse = [this] {
    group_.OnWatchEnd(Link(0), absl::UnavailableError("refused"), now_);
    return Take<ReportAway>();
  };
  Tick();
  EXPECT_THAT(refuse(), IsEmpty());
  Tick(kTiming.arrival_ns - kNanosPerMilli);
  EXPECT_THAT(refuse(), IsEmpty());

  Tick(kTiming.max_backoff_ns);
  EXPECT_THAT(refuse(), SizeIs(1)) << "it has had the time";

  BecomeReady();
  Plan();
  group_.Abandon(group_.group_epoch(), now_);
  Tick();
  EXPECT_THAT(refuse(), SizeIs(1)) << "it was there";
}

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

// A decodable answer with another header once made the client forget that its step was unanswered.
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

  EXPECT_EQ(ReasonOf(Take<ReportLost>().at(0).status), "PROTOCOL_VIOLATION");
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
  group_.OnAnswer(broken, ResultOf(plan), now_);  // of the old connection
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

// Whether the loss counts as a crash of the step, when every answer for a lease ended so.
bool WorkerGroupTest::IsCrashAfter(const absl::Status& status) {
  BecomeReady();
  Plan();
  for (int64_t passed = 0; passed <= kTiming.lease_ns; passed += kTiming.mend_pause_ns) {
    group_.OnStepsEnd(Link(0), status, now_);
    Tick(kTiming.mend_pause_ns);
  }
  EXPECT_THAT(Take<ReportLost>(), SizeIs(1));
  return WasCrash();
}

TEST_F(WorkerGroupTest, AnIdleWorkerThatDoesNotAnswerTheHandshakeIsDialledAgain) {
  Tick();
  Take<GreetWorker>();
  Hello(1);

  for (int64_t passed = 0; passed < kTiming.call_ns; passed += kNanosPerSecond) {
    EXPECT_THAT(Take<CloseLink>(), IsEmpty());
    Report(0, {.phase = WorkerPhase::kIdle});
    Report(1, {.phase = WorkerPhase::kIdle});
    Tick(kNanosPerSecond);
  }
  Report(0, {.phase = WorkerPhase::kIdle});
  Report(1, {.phase = WorkerPhase::kIdle});
  Tick(1);

  const auto closed = Take<CloseLink>();
  ASSERT_THAT(closed, SizeIs(1)) << "rank 1 has answered";
  EXPECT_EQ(closed[0].link.rank, 0);
}

TEST_F(WorkerGroupTest, AnEpochThatAnIdleWorkerKnowsNothingOfIsBegunAnew) {
  Tick();
  Hello(0);
  Hello(1);
  const uint64_t epoch = Take<BeginWorkerEpoch>().at(0).group_epoch;
  group_.OnEpochBegun(Link(1), absl::OkStatus(), now_);

  Report(0, {.phase = WorkerPhase::kIdle});
  Tick(kTiming.silence_ns - 1);
  EXPECT_THAT(Take<CloseLink>(), IsEmpty());
  for (int64_t passed = 0; passed < kTiming.call_ns; passed += kNanosPerSecond) {
    Report(0, {.phase = WorkerPhase::kIdle});
    Report(1, {.phase = WorkerPhase::kIdle});
    Tick(kNanosPerSecond);
  }

  EXPECT_THAT(Take<CloseLink>(), testing::Not(IsEmpty()));
  PassQuietly(kTiming.max_backoff_ns);
  Hello(0);
  Hello(1);
  EXPECT_GT(Take<BeginWorkerEpoch>().at(0).group_epoch, epoch);
}

TEST_F(WorkerGroupTest, AnEpochThatAWorkerIsBusyBeginningIsWaitedFor) {
  Tick();
  Hello(0);
  Hello(1);

  for (int64_t passed = 0; passed < 20 * kTiming.call_ns; passed += kNanosPerSecond) {
    Report(0, {.phase = WorkerPhase::kBeginningEpoch});
    Report(1, {.phase = WorkerPhase::kBeginningEpoch});
    Tick(kNanosPerSecond);
  }

  EXPECT_THAT(Take<CloseLink>(), IsEmpty());
}

TEST_F(WorkerGroupTest, NonsenseForALeaseIsACrashOfTheStep) {
  EXPECT_TRUE(IsCrashAfter(absl::DataLossError("worker: answered with nonsense")));
}

TEST_F(WorkerGroupTest, ABrokenConnectionForALeaseIsNone) {
  EXPECT_FALSE(IsCrashAfter(absl::UnavailableError("reset")));
}

TEST_F(WorkerGroupTest, BreaksThatLieFarApartAreMendedEachTime) {
  BecomeReady();
  for (int i = 0; i < 5; ++i) {
    group_.OnStepsEnd(Link(0), absl::UnavailableError("reset"), now_);
    PassQuietly(kTiming.lease_ns);
  }

  EXPECT_THAT(Take<ReportLost>(), IsEmpty());
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

// Both stand still: rank 0 since it waits, rank 1 since it is stuck, or waits as well.
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

// It once was blamed, and got twice the time.
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

// Its progress counts finished parts, and it has finished none since the others came.
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

// It once was waited for, for ever. Rank 2 waits for it, and is not to blame.
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

// It once was waited for, for ever: only EXECUTING could stand still.
TEST_F(WorkerGroupTest, AWorkerThatStandsStillIsFencedWhateverItSaysThatItDoes) {
  for (const WorkerPhase phase :
       {WorkerPhase::kLoading, WorkerPhase::kUnknown, WorkerPhase::kBeginningEpoch}) {
    HelloAt(0).uuid += "'";  // none that was slow
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

// Breaking the stream now and then once began the time anew.
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

TEST_F(WorkerGroupTest, TellsWhereARankStands) {
  Tick();
  EXPECT_EQ(group_.phase_of(0), RankPhase::kAway);
  group_.OnHello(Link(1), Error(absl::StatusCode::kUnavailable, "LOADING", "worker: loads"), now_);
  EXPECT_EQ(group_.phase_of(1), RankPhase::kLoading);
  Hello(0);
  EXPECT_EQ(group_.phase_of(0), RankPhase::kWaiting);

  Report(1, {.phase = WorkerPhase::kIdle});
  Hello(1);
  group_.OnEpochBegun(Link(0), absl::OkStatus(), now_);
  EXPECT_EQ(group_.phase_of(0), RankPhase::kWaiting);
  group_.OnEpochBegun(Link(1), absl::OkStatus(), now_);
  EXPECT_EQ(group_.phase_of(0), RankPhase::kReady);

  group_.Abandon(group_.group_epoch(), now_);
  EXPECT_EQ(group_.phase_of(1), RankPhase::kAway);
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

  // A number that is no rank's excuses nobody.
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
  // A worker has closed its connection meanwhile.
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

TEST_F(WorkerGroupTest, ARankThatIsAwayIsDialledWithGrowingPauses) {
  Tick();
  Hello(1);
  int64_t last_pause = 0;
  for (int i = 0; i < 10; ++i) {
    group_.OnHello(Link(0), absl::UnavailableError("refused"), now_);
    Take<DialLink>();
    int64_t pause = 0;
    while (Take<DialLink>().empty()) {
      Report(1, {.phase = WorkerPhase::kIdle});
      Tick(10 * kNanosPerMilli);
      pause += 10 * kNanosPerMilli;
    }
    EXPECT_GE(pause, last_pause);
    EXPECT_LE(pause, kTiming.max_backoff_ns);
    last_pause = pause;
  }
  EXPECT_EQ(last_pause, kTiming.max_backoff_ns);
}

TEST_F(WorkerGroupTest, AWorkerThatLoadsIsGreetedAgainWhenItHasLoaded) {
  Tick();
  Take<GreetWorker>();
  group_.OnHello(Link(0), Error(absl::StatusCode::kUnavailable, "LOADING", "worker: loads"), now_);
  Report(0, {.phase = WorkerPhase::kLoading, .progress = 5, .loaded_bytes = 5, .total_bytes = 9});
  Report(0, {.phase = WorkerPhase::kLoading, .progress = 5, .loaded_bytes = 5, .total_bytes = 9});
  const auto loading = Take<ReportLoading>();
  ASSERT_THAT(loading, SizeIs(1));  // standing still is no news
  EXPECT_EQ(loading[0].loaded_bytes, 5);
  EXPECT_THAT(Take<GreetWorker>(), IsEmpty());

  Report(0, {.phase = WorkerPhase::kIdle});

  EXPECT_THAT(Take<GreetWorker>(), SizeIs(1));
}

TEST_F(WorkerGroupTest, AWorkerThatMayNotBeLetInIsNamedAndAnotherOneIsWaitedFor) {
  const uint64_t epoch = BecomeReady();
  group_.Abandon(epoch, now_);
  HelloAt(1).determinism_fingerprint = "another cpu";
  Hello(0);
  Hello(1);

  const auto refused = Take<ReportRefused>();
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].rank, 1);
  EXPECT_EQ(ReasonOf(refused[0].status), "CONFIG_MISMATCH");
  EXPECT_THAT(Take<BeginWorkerEpoch>(), IsEmpty());
  HelloAt(1) = HelloOf(1);
  Tick(kTiming.max_backoff_ns);
  Hello(1);

  EXPECT_THAT(Take<BeginWorkerEpoch>(), SizeIs(2));
}

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

// It dies again before the next epoch is ready.
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

TEST_F(WorkerGroupTest, ARankThatDiesWhileTheEpochBeginsIsReplacedUnderTheNext) {
  Tick();
  Hello(0);
  Hello(1);
  group_.OnEpochBegun(Link(0), absl::OkStatus(), now_);

  group_.OnWatchEnd(Link(1), absl::UnavailableError("died"), now_);
  EXPECT_THAT(Take<ReportLost>(), IsEmpty());

  EXPECT_EQ(BecomeReady(), 2U);
}

}  // namespace
}  // namespace quire
