// Tests how ranks connect, load and are admitted, until an epoch is ready.
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "scheduler/group/worker_group.h"
#include "tests/scheduler/group/worker_group_fixture.h"

namespace quire {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

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

TEST_F(WorkerGroupTest, HowARankKeepsBlocksIsKnownWhileItIsThere) {
  const KvMemory windows = {
      .backend = KvBackend::kVmm, .page_bytes = 4096, .padding_bytes = 100, .max_places = 30'000};
  HelloAt(0).block_bytes = HelloAt(1).block_bytes = 4096;
  HelloAt(0).kv_memory = windows;
  Tick();
  Report(0, {.num_window_places = 7});
  EXPECT_EQ(group_.kv_memory_of(0), KvMemory()) << "not greeted";

  BecomeReady();
  Report(0, {.num_window_places = 7});
  KvMemory with_places = windows;
  with_places.num_places = 7;
  EXPECT_EQ(group_.kv_memory_of(0), with_places);
  EXPECT_EQ(group_.kv_memory_of(1), KvMemory()) << "it does not say";
  with_places.num_places = 9;
  Report(0, {.num_window_places = 9});
  EXPECT_EQ(group_.kv_memory_of(0), with_places);

  group_.Abandon(group_.group_epoch(), now_);
  EXPECT_EQ(group_.kv_memory_of(0), KvMemory());
}

TEST_F(WorkerGroupTest, PlacesOfTheProcessBeforeAreNotThoseOfThisOne) {
  HelloAt(0).kv_memory = {.backend = KvBackend::kVmm};
  Tick();
  Report(0, {.num_window_places = 7});
  HelloAt(0).uuid = "another process";

  Hello(0);

  EXPECT_EQ(group_.kv_memory_of(0), KvMemory({.backend = KvBackend::kVmm}));
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

TEST_F(WorkerGroupTest, AWatchThatAMismatchEndsIsARefusal) {
  Tick();
  Tick(kTiming.arrival_ns);

  group_.OnWatchEnd(Link(0), Error(absl::StatusCode::kFailedPrecondition, "MEMORY", "text"), now_);

  const auto refused = Take<ReportRefused>();
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].rank, 0);
  EXPECT_EQ(ReasonOf(refused[0].status), "MEMORY");
  EXPECT_THAT(Take<ReportAway>(), IsEmpty());
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
  ASSERT_THAT(loading, SizeIs(1));  // no second one without progress
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

TEST_F(WorkerGroupTest, ARefusedProcessIsToldWhyUntilTheRanksAgree) {
  const uint64_t epoch = BecomeReady();
  group_.Abandon(epoch, now_);
  HelloAt(1).uuid = "a process with another model";
  HelloAt(1).model_hash = 2;
  Hello(0);
  Hello(1);
  Take<GreetWorker>();

  Tick(kTiming.max_backoff_ns);

  const auto greetings = Take<GreetWorker>();
  ASSERT_THAT(greetings, SizeIs(1));
  EXPECT_EQ(greetings[0].link.rank, 1);
  EXPECT_EQ(greetings[0].refusal.uuid, "a process with another model");
  EXPECT_THAT(greetings[0].refusal.why,
              testing::StartsWith("CONFIG_MISMATCH rank 1: model_hash: "));
  HelloAt(1) = HelloOf(1);
  Hello(1);
  EXPECT_THAT(Take<BeginWorkerEpoch>(), SizeIs(2));
  group_.OnWatchEnd(Link(1), absl::UnavailableError("died"), now_);
  Tick(kTiming.max_backoff_ns);
  for (const GreetWorker& greeting : Take<GreetWorker>()) {
    EXPECT_EQ(greeting.refusal.why, "") << greeting.link.rank;
  }
}

TEST_F(WorkerGroupTest, RanksThatDifferAreAllTold) {
  Tick();
  HelloAt(1).model_hash = 2;
  Hello(0);
  Hello(1);
  Take<GreetWorker>();

  Tick(kTiming.max_backoff_ns);

  const auto greetings = Take<GreetWorker>();
  ASSERT_THAT(greetings, SizeIs(2));
  for (const GreetWorker& greeting : greetings) {
    EXPECT_EQ(greeting.refusal.uuid, HelloAt(greeting.link.rank).uuid);
    EXPECT_EQ(greeting.refusal.why, "CONFIG_MISMATCH rank 1: model_hash: differs from rank 0");
  }
}

TEST_F(WorkerGroupTest, ARefusalIsShortWhateverAWorkerSends) {
  Tick();
  HelloAt(1).uuid = std::string(10'000, 'x');
  Hello(1);
  Take<GreetWorker>();

  Tick(kTiming.max_backoff_ns);

  for (const GreetWorker& greeting : Take<GreetWorker>()) {
    EXPECT_LE(greeting.refusal.uuid.size(), 512U);
  }
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
