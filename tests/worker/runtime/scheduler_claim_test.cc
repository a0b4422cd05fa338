#include "worker/runtime/scheduler_claim.h"

#include "gtest/gtest.h"

#include "common/base/error.h"

namespace quire {
namespace {

TEST(SchedulerClaimTest, TheNewestThatAskedHasTheWorkerFromThenOn) {
  SchedulerClaim claim;
  EXPECT_EQ(claim.scheduler_incarnation(), 0U);
  EXPECT_TRUE(claim.Ask(5, 1, 0).ok());
  EXPECT_TRUE(claim.Ask(7, 1, 0).ok());

  EXPECT_EQ(ReasonOf(claim.Ask(5, 2, 0)), "STALE_SCHEDULER");
  EXPECT_EQ(ReasonOf(claim.Check(6, 9)), "STALE_SCHEDULER");
  EXPECT_TRUE(claim.Check(7, 1).ok());
  EXPECT_EQ(claim.scheduler_incarnation(), 7U);
}

TEST(SchedulerClaimTest, OfOneSchedulerTheLatestEpochCounts) {
  SchedulerClaim claim;
  ASSERT_TRUE(claim.Ask(5, 3, 0).ok());

  EXPECT_EQ(ReasonOf(claim.Ask(5, 2, 0)), "STALE_GROUP");
  EXPECT_EQ(MetadataOf(claim.Check(5, 2), "group_epoch"), "3");
  EXPECT_TRUE(claim.Ask(5, 4, 0).ok());
  EXPECT_TRUE(claim.Ask(6, 1, 0).ok()) << "another one counts its own";
}

TEST(SchedulerClaimTest, SilenceIsThatOfTheOneThatHasTheWorker) {
  SchedulerClaim claim;
  EXPECT_EQ(claim.SilenceNs(100), 0) << "nobody has it";
  ASSERT_TRUE(claim.Ask(5, 1, 100).ok());
  EXPECT_EQ(claim.SilenceNs(150), 50);
  claim.Hear(5, 170);
  claim.Hear(4, 180);
  claim.Hear(6, 190);
  EXPECT_EQ(claim.SilenceNs(200), 30);

  ASSERT_TRUE(claim.Ask(6, 1, 300).ok());

  EXPECT_EQ(claim.SilenceNs(310), 10);
}

}  // namespace
}  // namespace quire
