#include "worker/runtime/step_order.h"

#include <string>

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

using Verdict = StepOrder::Verdict;

class StepOrderTest : public testing::Test {
 protected:
  StepOrderTest() { order_.BeginEpoch(5, 2); }

  static StepHeader Header(uint64_t incarnation, uint64_t epoch, uint64_t step) {
    return {.scheduler_incarnation = incarnation, .group_epoch = epoch, .step_id = step};
  }

  void Do(uint64_t step, uint64_t digest) {
    order_.Complete(
        {.header = Header(5, 2, step), .plan_digest = digest, .sampled = {}, .timings = {}});
  }

  absl::Status Refused(const StepHeader& header, uint64_t digest = 7) {
    return order_.Classify(header, digest).status();
  }

  StepOrder order_;
};

TEST_F(StepOrderTest, StepsFollowOneAnother) {
  for (uint64_t step = 1; step <= 3; ++step) {
    auto verdict = order_.Classify(Header(5, 2, step), step);

    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_EQ(*verdict, Verdict::kExecute);
    Do(step, step);
  }
  EXPECT_EQ(order_.last_done(), 3U);
}

TEST_F(StepOrderTest, TheLastStepIsReplayed) {
  Do(1, 7);

  auto verdict = order_.Classify(Header(5, 2, 1), 7);

  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(*verdict, Verdict::kReplay);
  EXPECT_EQ(order_.last_result().header.step_id, 1U);
}

TEST_F(StepOrderTest, AnotherPlanUnderADoneStepIsAViolation) {
  Do(1, 7);

  absl::Status status = Refused(Header(5, 2, 1), 8);

  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(status), "PROTOCOL_VIOLATION");
}

TEST_F(StepOrderTest, GapsAreRefusedAndNameTheLastStep) {
  Do(1, 7);
  Do(2, 7);
  for (uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{4}, ~uint64_t{0}}) {
    absl::Status status = Refused(Header(5, 2, step));

    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << step;
    EXPECT_EQ(ReasonOf(status), "STEP_GAP") << step;
    EXPECT_EQ(MetadataOf(status, "last_done"), "2") << step;
  }
}

TEST_F(StepOrderTest, StepZeroBeforeAnyStepIsAGap) {
  EXPECT_EQ(ReasonOf(Refused(Header(5, 2, 0), 0)), "STEP_GAP");
}

TEST_F(StepOrderTest, AnOlderSchedulerIsRefusedWhateverItsEpoch) {
  for (uint64_t epoch : {1, 2, 99}) {
    absl::Status status = Refused(Header(4, epoch, 1));

    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(status), "STALE_SCHEDULER");
    EXPECT_EQ(MetadataOf(status, "scheduler_incarnation"), "5");
  }
}

TEST_F(StepOrderTest, AnotherEpochIsRefused) {
  for (const StepHeader& header : {Header(5, 1, 1), Header(5, 3, 1), Header(6, 2, 1)}) {
    absl::Status status = Refused(header);

    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(status), "STALE_GROUP");
    EXPECT_EQ(MetadataOf(status, "group_epoch"), "2");
  }
}

TEST_F(StepOrderTest, NothingIsExecutedBeforeAnEpoch) {
  StepOrder fresh;

  EXPECT_EQ(ReasonOf(fresh.Classify(Header(0, 0, 1), 7).status()), "STALE_GROUP");
}

TEST_F(StepOrderTest, ANewEpochStartsAgainAtOneAndForgetsTheLastStep) {
  Do(1, 7);

  order_.BeginEpoch(5, 3);

  EXPECT_EQ(*order_.Classify(Header(5, 3, 1), 7), Verdict::kExecute);
  EXPECT_EQ(ReasonOf(Refused(Header(5, 2, 1))), "STALE_GROUP");
}

TEST_F(StepOrderTest, AnEpochThatWasLeftIsOver) {
  Do(1, 7);

  order_.LeaveEpoch();

  EXPECT_EQ(ReasonOf(Refused(Header(5, 2, 1))), "STALE_GROUP") << "not answered from memory";
  EXPECT_EQ(ReasonOf(Refused(Header(5, 2, 2))), "STALE_GROUP");
  EXPECT_EQ(ReasonOf(order_.CheckEpoch(5, 2)), "STALE_GROUP") << "it cannot begin again";
  order_.BeginEpoch(5, 3);
  EXPECT_EQ(*order_.Classify(Header(5, 3, 1), 7), Verdict::kExecute);
}

TEST_F(StepOrderTest, EpochsOnlyGrowAndIncarnationsToo) {
  EXPECT_EQ(ReasonOf(order_.CheckEpoch(5, 2)), "STALE_GROUP");
  EXPECT_EQ(ReasonOf(order_.CheckEpoch(5, 1)), "STALE_GROUP");
  EXPECT_EQ(ReasonOf(order_.CheckEpoch(4, 9)), "STALE_SCHEDULER");
  EXPECT_TRUE(order_.CheckEpoch(5, 3).ok());
  EXPECT_TRUE(order_.CheckEpoch(6, 1).ok());
}

}  // namespace
}  // namespace quire
