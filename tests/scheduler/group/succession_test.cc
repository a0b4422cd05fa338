// Tests each rule of succession.h with a single scheduler.
#include "scheduler/group/succession.h"

#include <cstdint>
#include <optional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using testing::Optional;
using Verdict = Succession::Verdict;

constexpr int64_t kPatience = 2 * kNanosPerSecond;
constexpr int64_t kReportInterval = 250 * kNanosPerMilli;
constexpr uint64_t kOwn = 1'700'000'000'123'456'789;
constexpr uint64_t kOlder = kOwn - 5 * uint64_t{kNanosPerSecond};
constexpr uint64_t kNewer = kOwn + 5 * uint64_t{kNanosPerSecond};
constexpr uint64_t kOwnPart = 456'789;  // the part of kOwn below a millisecond

class SuccessionTest : public testing::Test {
 protected:
  explicit SuccessionTest(bool stands_by = true)
      : succession_(2, kOwn, {.stands_by = stands_by, .patience_ns = kPatience}) {}

  void Report(int32_t rank, uint64_t holder, int64_t silence_ns = 0) {
    succession_.OnReport(rank, holder, silence_ns, now_);
  }
  void ReportBoth(uint64_t holder, int64_t silence_ns = 0) {
    Report(0, holder, silence_ns);
    Report(1, holder, silence_ns);
  }
  Verdict Decide() { return succession_.Decide(now_); }
  void Pass(int64_t duration_ns) { now_ += duration_ns; }
  void Redial() {
    succession_.Forget(0);
    succession_.Forget(1);
  }
  // Makes the scheduler the holder, and the workers report it.
  void AskForFreeWorkers() {
    ReportBoth(0);
    ASSERT_EQ(Decide(), Verdict::kAsk);
    ReportBoth(succession_.incarnation());
  }
  // Makes it wait for this holder until its turn has come, if the holder turns out to be silent.
  void StandByFor(uint64_t holder) {
    ReportBoth(holder);
    ASSERT_EQ(Decide(), Verdict::kWait);
    Pass(kPatience);
  }

  Succession succession_;
  Instant now_ = kNanosPerSecond;
};

TEST_F(SuccessionTest, WorkersThatNobodyHasAreAskedForAtOnce) {
  ReportBoth(0);

  EXPECT_EQ(Decide(), Verdict::kAsk);
  EXPECT_TRUE(succession_.has_asked());
  EXPECT_EQ(succession_.incarnation(), kOwn);
}

TEST_F(SuccessionTest, AStandbyWaitsForAnOlderHolderAndForANewerOne) {
  for (const uint64_t holder : {kOlder, kNewer}) {
    ReportBoth(holder);
    EXPECT_THAT(succession_.WaitsFor(), Optional(holder));
    Pass(100 * kPatience);
    EXPECT_EQ(Decide(), Verdict::kWait);
    EXPECT_FALSE(succession_.has_asked());
  }
}

TEST_F(SuccessionTest, OneWorkerThatNamesAHolderIsEnoughToStandBy) {
  Report(1, kOlder);

  EXPECT_THAT(succession_.WaitsFor(), Optional(kOlder));
}

TEST_F(SuccessionTest, AHolderIsGoneWhenOneWorkerHasNotHeardOfItForLong) {
  StandByFor(kOlder);
  Report(1, kOlder, kPatience - 1);
  ASSERT_EQ(Decide(), Verdict::kWait);

  Report(1, kOlder, kPatience);

  EXPECT_EQ(succession_.WaitsFor(), std::nullopt);
  EXPECT_EQ(Decide(), Verdict::kAsk);
  EXPECT_EQ(succession_.incarnation(), kOwn) << "it is the newer one as it is";
}

// A worker that the newest holder has not asked yet reports the silence of an older one.
TEST_F(SuccessionTest, TheNewestHolderCounts) {
  Report(0, kOlder, kPatience);
  Report(1, kNewer, 0);
  EXPECT_THAT(succession_.WaitsFor(), Optional(kNewer));

  Report(0, kNewer, 0);
  Report(1, kOlder, kPatience);
  EXPECT_THAT(succession_.WaitsFor(), Optional(kNewer));
}

TEST_F(SuccessionTest, OneThatBeganBeforeTheHolderTakesANumberAboveItBeforeItAsks) {
  ReportBoth(kNewer, kPatience);

  EXPECT_EQ(Decide(), Verdict::kRename);
  EXPECT_FALSE(succession_.has_asked()) << "its links have the old number";
  EXPECT_EQ(succession_.incarnation(), kNewer + 1 + kOwnPart);

  EXPECT_EQ(Decide(), Verdict::kAsk);
}

TEST_F(SuccessionTest, StandbysOfOneHolderTakeDifferentNumbers) {
  std::set<uint64_t> numbers;
  for (uint64_t own_part = 1; own_part <= 100; ++own_part) {
    Succession standby(1, kOlder + own_part, {.stands_by = true, .patience_ns = kPatience});
    standby.OnReport(0, kNewer, kPatience, now_);
    ASSERT_EQ(standby.Decide(now_), Verdict::kRename);
    EXPECT_GT(standby.incarnation(), kNewer);
    numbers.insert(standby.incarnation());
  }
  EXPECT_EQ(numbers.size(), 100U);
}

// After it has dialed anew under its new number, workers report one after another.
TEST_F(SuccessionTest, ItKeepsItsTurnWhileItsLinksAreDialledAnew) {
  StandByFor(kNewer);
  Report(0, kNewer, kPatience);
  ASSERT_EQ(Decide(), Verdict::kRename);
  Redial();
  Report(1, kNewer, kPatience - kReportInterval);
  EXPECT_EQ(succession_.WaitsFor(), std::nullopt);
  Report(0, kNewer, kPatience);

  EXPECT_EQ(Decide(), Verdict::kAsk);
}

TEST_F(SuccessionTest, AHolderThatComesBackBeforeItIsAskedForIsWaitedFor) {
  StandByFor(kNewer);
  Report(0, kNewer, kPatience);
  ASSERT_EQ(Decide(), Verdict::kRename);
  Redial();
  ReportBoth(kNewer);

  EXPECT_EQ(Decide(), Verdict::kWait);
  EXPECT_THAT(succession_.WaitsFor(), Optional(kNewer));

  Redial();
  Report(0, kNewer);
  EXPECT_THAT(succession_.WaitsFor(), Optional(kNewer)) << "its turn was before";
}

// It cannot reach one worker while its turn lasts, and the holder comes back at the other.
TEST_F(SuccessionTest, ItsTurnIsOverWhenAWorkerStaysAway) {
  StandByFor(kNewer);
  Report(0, kNewer, kPatience);
  ASSERT_EQ(Decide(), Verdict::kRename);
  Redial();
  Pass(kPatience);
  Report(0, kNewer);

  EXPECT_THAT(succession_.WaitsFor(), Optional(kNewer));
}

TEST_F(SuccessionTest, ReportsOfBeforeItAskedTakeNothingFromIt) {
  ReportBoth(kOlder, kPatience);
  ASSERT_EQ(Decide(), Verdict::kAsk);

  ReportBoth(kOlder);  // the workers heard the old holder again

  EXPECT_TRUE(succession_.has_asked());
  EXPECT_FALSE(succession_.IsOvertaken());
  EXPECT_EQ(succession_.WaitsFor(), std::nullopt);
}

TEST_F(SuccessionTest, OneWorkerThatNamesANewerSchedulerMeansThatItIsOvertaken) {
  AskForFreeWorkers();
  EXPECT_FALSE(succession_.IsOvertaken());
  Report(1, kNewer);
  ASSERT_TRUE(succession_.IsOvertaken());

  succession_.StepBack();

  EXPECT_FALSE(succession_.IsOvertaken());
  EXPECT_THAT(succession_.WaitsFor(), Optional(kNewer));
  EXPECT_EQ(Decide(), Verdict::kWait);
}

TEST_F(SuccessionTest, AHolderAsksAgainForWorkersThatItHas) {
  AskForFreeWorkers();
  Redial();
  ReportBoth(kOwn);

  EXPECT_EQ(Decide(), Verdict::kAsk);
  EXPECT_EQ(succession_.incarnation(), kOwn);
}

TEST_F(SuccessionTest, AHolderAsksAtOnceForAWorkerThatWasReplaced) {
  AskForFreeWorkers();
  succession_.Forget(1);
  Report(1, 0);

  EXPECT_EQ(Decide(), Verdict::kAsk);
}

// While it was cut off, all workers were replaced, and a scheduler with a lower number got them.
TEST_F(SuccessionTest, AHolderWhoseWorkersWereAllReplacedWaitsForTheOneThatHasThem) {
  AskForFreeWorkers();
  Redial();
  Report(0, kOlder);
  EXPECT_TRUE(succession_.has_asked()) << "the other worker may be its own still";
  Report(1, kOlder);

  EXPECT_EQ(Decide(), Verdict::kWait);
  EXPECT_THAT(succession_.WaitsFor(), Optional(kOlder));
}

TEST_F(SuccessionTest, AHolderOfOneWorkerTakesTheOtherOneBack) {
  AskForFreeWorkers();
  Redial();
  Report(0, kOlder);
  Report(1, kOwn);

  EXPECT_EQ(Decide(), Verdict::kAsk);
}

TEST_F(SuccessionTest, OneThatLetsGoIsNotItsOldNumberAnyMore) {
  AskForFreeWorkers();

  succession_.LetGo();

  EXPECT_FALSE(succession_.has_asked());
  EXPECT_EQ(succession_.incarnation(), kOwn + 1 + kOwnPart);
}

TEST_F(SuccessionTest, OneThatLetGoHasTheFirstTurn) {
  AskForFreeWorkers();
  succession_.LetGo();
  Redial();
  ReportBoth(kOwn);

  EXPECT_EQ(Decide(), Verdict::kAsk);
}

TEST_F(SuccessionTest, OneThatLetGoWaitsForTheOneThatHasAskedSince) {
  AskForFreeWorkers();
  succession_.LetGo();
  Redial();
  ReportBoth(kNewer);

  EXPECT_EQ(Decide(), Verdict::kWait);
}

// If all workers were replaced, none knows which scheduler has requests waiting.
TEST_F(SuccessionTest, OneThatHasWaitedLeavesTheHolderTheFirstTurn) {
  StandByFor(kOlder);
  Redial();
  ReportBoth(0);
  EXPECT_EQ(succession_.WaitsFor(), std::nullopt);
  EXPECT_EQ(Decide(), Verdict::kWait);
  Pass(kPatience - 1);
  EXPECT_EQ(Decide(), Verdict::kWait);

  Pass(1);

  EXPECT_EQ(Decide(), Verdict::kAsk);
}

TEST_F(SuccessionTest, TheTurnBeginsWhenAllWorkersAreThere) {
  StandByFor(kOlder);
  ReportBoth(0);
  succession_.Forget(1);
  Pass(kPatience);
  Report(1, 0);
  EXPECT_EQ(Decide(), Verdict::kWait);

  Pass(kPatience);

  EXPECT_EQ(Decide(), Verdict::kAsk);
}

TEST_F(SuccessionTest, AnotherSchedulerLivesWhenAWorkerHearsOfItAfterItNamedIt) {
  Report(0, kNewer);
  EXPECT_FALSE(succession_.DoesOtherLive()) << "it may have died since";
  Pass(kReportInterval);
  Report(0, kNewer, kReportInterval);
  EXPECT_FALSE(succession_.DoesOtherLive());

  Pass(kReportInterval);
  Report(0, kNewer);

  EXPECT_TRUE(succession_.DoesOtherLive());
}

TEST_F(SuccessionTest, AWorkerThatReportsNoMoreDoesNotShowThatTheOtherLives) {
  Report(0, kNewer);
  Pass(kReportInterval);
  Report(0, kNewer, kReportInterval);

  Pass(kPatience);

  EXPECT_FALSE(succession_.DoesOtherLive()) << "the silence was that of the last report";
}

// A scheduler that refuses a worker gets only one report over each link.
TEST_F(SuccessionTest, SinceWhenAWorkerNamesItsHolderOutlivesTheLink) {
  Report(0, kNewer);
  succession_.Forget(0);
  EXPECT_FALSE(succession_.DoesOtherLive()) << "nobody names it";
  Pass(kPatience / 2);
  Report(0, kNewer, kPatience / 2);
  EXPECT_FALSE(succession_.DoesOtherLive()) << "it may have died since";
  succession_.Forget(0);

  Report(0, kNewer);

  EXPECT_TRUE(succession_.DoesOtherLive());
}

// A scheduler with a higher number was known before, but no longer holds the workers.
TEST_F(SuccessionTest, AnOlderSchedulerThatHasTheWorkersNowLivesToo) {
  ReportBoth(kNewer);
  Redial();
  ReportBoth(kOlder);
  Pass(kReportInterval);
  ReportBoth(kOlder);

  EXPECT_TRUE(succession_.DoesOtherLive());
}

TEST_F(SuccessionTest, NumbersMoreThanAYearAheadAreNotPossible) {
  EXPECT_TRUE(succession_.IsPossible(kOwn + kNanosPerYear));
  EXPECT_FALSE(succession_.IsPossible(kOwn + kNanosPerYear + 1));
  EXPECT_FALSE(succession_.IsPossible(~uint64_t{0}));
}

class TakesAtOnceTest : public SuccessionTest {
 protected:
  TakesAtOnceTest() : SuccessionTest(/*stands_by=*/false) {}
};

TEST_F(TakesAtOnceTest, ASchedulerThatDoesNotStandByWaitsForNoOlderOne) {
  ReportBoth(kOlder);

  EXPECT_EQ(succession_.WaitsFor(), std::nullopt);
  EXPECT_EQ(Decide(), Verdict::kAsk);
}

TEST_F(TakesAtOnceTest, ASchedulerThatHasHadTheWorkersStandsByLikeAnyOther) {
  ReportBoth(0);
  ASSERT_EQ(Decide(), Verdict::kAsk);
  ReportBoth(kNewer);
  ASSERT_TRUE(succession_.IsOvertaken());
  succession_.StepBack();

  ReportBoth(kOlder);

  EXPECT_THAT(succession_.WaitsFor(), Optional(kOlder));
}

TEST_F(TakesAtOnceTest, ItWaitsForANewerOne) {
  ReportBoth(kNewer);

  EXPECT_THAT(succession_.WaitsFor(), Optional(kNewer));
  EXPECT_EQ(Decide(), Verdict::kWait);
}

}  // namespace
}  // namespace quire
