#include "scheduler/loop/tenant_shares.h"

#include <string>

#include "gtest/gtest.h"

namespace quire {
namespace {

using Answer = TenantShares::Answer;

constexpr TenantShares::Bounds kBounds{
    .fresh = {.num_requests = 6, .num_bytes = 100},
    .resumed = {.num_requests = 9, .num_bytes = 90},
    .has_shares = true,
};

TEST(TenantSharesTest, ATenantHoldsNoMoreThanItLeavesForOthers) {
  TenantShares shares(kBounds);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(shares.Take("greedy", false, 0), Answer::kTaken);
  }
  EXPECT_EQ(shares.Take("greedy", false, 0), Answer::kTenantFull);
  EXPECT_EQ(shares.Take("second", false, 0), Answer::kTaken);
  EXPECT_EQ(shares.Take("second", false, 0), Answer::kTenantFull);
  EXPECT_EQ(shares.Take("third", false, 0), Answer::kTaken);
  EXPECT_EQ(shares.Take("fourth", false, 0), Answer::kTaken);
  EXPECT_EQ(shares.Take("fifth", false, 0), Answer::kFull);

  shares.Release("greedy", false, {.num_requests = 1});
  EXPECT_EQ(shares.Take("fifth", false, 0), Answer::kTaken);
}

TEST(TenantSharesTest, BytesAreSharedLikewiseAndOneRequestMayHaveThemAll) {
  TenantShares shares(kBounds);
  EXPECT_EQ(shares.Take("greedy", false, 50), Answer::kTaken);
  EXPECT_EQ(shares.Take("greedy", false, 1), Answer::kTenantFull);
  EXPECT_EQ(shares.Take("other", false, 51), Answer::kFull);
  EXPECT_EQ(shares.Take("other", false, 50), Answer::kTaken);
  EXPECT_EQ(shares.num_bytes(), 100);
  EXPECT_EQ(shares.Take("third", false, 0), Answer::kTaken);  // it has none

  // Bytes are held on while a task runs that waits no more.
  shares.Release("greedy", false, {.num_requests = 1});
  EXPECT_EQ(shares.Take("fourth", false, 1), Answer::kFull);
  shares.Release("greedy", false, {.num_bytes = 50});
  EXPECT_EQ(shares.Take("fourth", false, 1), Answer::kTaken);
}

TEST(TenantSharesTest, ResumedRequestsHaveTheirOwnPlacesAndTwoThirdsOfThem) {
  TenantShares shares(kBounds);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(shares.Take("only", false, 0), Answer::kTaken);
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(shares.Take("only", true, 10), Answer::kTaken);
  }
  EXPECT_EQ(shares.Take("only", true, 1), Answer::kTenantFull);
  EXPECT_EQ(shares.Take("other", true, 30), Answer::kTaken);
  EXPECT_EQ(shares.num_bytes(), 90);
}

TEST(TenantSharesTest, WithoutSharesAllIsBoundedAndNobody) {
  TenantShares::Bounds bounds = kBounds;
  bounds.has_shares = false;
  TenantShares shares(bounds);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(shares.Take("greedy", false, 0), Answer::kTaken);
  }
  EXPECT_EQ(shares.Take("other", false, 0), Answer::kFull);
  shares.Release("greedy", false, {.num_requests = 1});
  EXPECT_EQ(shares.Take("other", false, 0), Answer::kTaken);
}

}  // namespace
}  // namespace quire
