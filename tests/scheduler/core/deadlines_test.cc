#include "scheduler/core/deadlines.h"

#include <optional>

#include "gtest/gtest.h"

#include "tests/support/requests.h"

namespace quire {
namespace {

class DeadlinesTest : public ::testing::Test {
 protected:
  Request late_ = MakeRequest({.id = 1, .deadline = 30});
  Request early_ = MakeRequest({.id = 2, .deadline = 10});
  Request patient_ = MakeRequest({.id = 3});
  Deadlines deadlines_;
};

TEST_F(DeadlinesTest, NextIsTheEarliest) {
  EXPECT_EQ(deadlines_.next(), kInfiniteFuture);

  deadlines_.Add(late_);
  deadlines_.Add(early_);

  EXPECT_EQ(deadlines_.next(), 10);
}

TEST_F(DeadlinesTest, ADeadlinePassesAtItsInstant) {
  deadlines_.Add(early_);

  EXPECT_EQ(deadlines_.FirstExpired(9), std::nullopt);
  EXPECT_EQ(deadlines_.FirstExpired(10), RequestId(2));
}

TEST_F(DeadlinesTest, WhoExpiredFirstComesFirst) {
  deadlines_.Add(late_);
  deadlines_.Add(early_);

  EXPECT_EQ(deadlines_.FirstExpired(50), RequestId(2));
  deadlines_.Remove(early_);
  EXPECT_EQ(deadlines_.FirstExpired(50), RequestId(1));
}

TEST_F(DeadlinesTest, RequestsWithoutADeadlineAreNotKept) {
  deadlines_.Add(patient_);
  EXPECT_EQ(deadlines_.size(), 0U);

  deadlines_.Remove(patient_);
  EXPECT_EQ(deadlines_.FirstExpired(kInfiniteFuture - 1), std::nullopt);
}

using DeadlinesDeathTest = DeadlinesTest;

TEST_F(DeadlinesDeathTest, RefusesToRemoveWhatWasNotAdded) {
  EXPECT_DEATH(deadlines_.Remove(early_), "erase");
}

}  // namespace
}  // namespace quire
