#include "scheduler/rpc/live_requests.h"

#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

class Call : public LiveRequests::Abortable {
 public:
  explicit Call(Instant arrival) : arrival_(arrival) {}

  void Abort(absl::Status status) override { aborted = status; }
  Instant arrival() const override { return arrival_; }

  std::optional<absl::Status> aborted;

 private:
  const Instant arrival_;
};

TEST(LiveRequestsTest, WhoResumesEndsTheStreamBefore) {
  LiveRequests requests;
  const auto first = std::make_shared<Call>(1);
  const auto second = std::make_shared<Call>(2);
  ASSERT_TRUE(requests.Add("one", first).ok());

  EXPECT_TRUE(requests.TakeOver("one", second).ok());

  ASSERT_TRUE(first->aborted.has_value());
  EXPECT_EQ(ReasonOf(*first->aborted), "RESUMED");
  EXPECT_FALSE(second->aborted.has_value());
}

// An attempt that its client has left may be slower than the one after it.
TEST(LiveRequestsTest, WhoArrivedEarlierDoesNotTakeOver) {
  LiveRequests requests;
  const auto left = std::make_shared<Call>(1);
  const auto live = std::make_shared<Call>(2);
  ASSERT_TRUE(requests.TakeOver("one", live).ok());

  EXPECT_EQ(ReasonOf(requests.TakeOver("one", left)), "RESUMED");

  EXPECT_FALSE(live->aborted.has_value());
  EXPECT_TRUE(requests.Abort("one", absl::CancelledError("by an operator")).ok());
  EXPECT_TRUE(live->aborted.has_value());
  EXPECT_FALSE(left->aborted.has_value());
}

TEST(LiveRequestsTest, WhoWaitsToGoOnHasItsNameAndTheOneBeforeLives) {
  LiveRequests requests;
  const auto first = std::make_shared<Call>(1);
  const auto second = std::make_shared<Call>(2);
  ASSERT_TRUE(requests.Add("one", first).ok());

  requests.AddResumed("one", second);

  EXPECT_FALSE(first->aborted.has_value());
  requests.Remove("one", first.get());
  EXPECT_EQ(ReasonOf(requests.Add("one", std::make_shared<Call>(3))), "REQUEST_ID_IN_USE");
  EXPECT_TRUE(requests.Abort("one", absl::CancelledError("by an operator")).ok());
  EXPECT_TRUE(second->aborted.has_value());
  requests.Remove("one", second.get());
  EXPECT_TRUE(requests.Add("one", first).ok());
}

TEST(LiveRequestsTest, AllAreAbortedAlsoThoseThatWait) {
  LiveRequests requests;
  const auto live = std::make_shared<Call>(1);
  const auto resumed = std::make_shared<Call>(2);
  const auto other = std::make_shared<Call>(3);
  ASSERT_TRUE(requests.Add("one", live).ok());
  requests.AddResumed("one", resumed);
  ASSERT_TRUE(requests.Add("two", other).ok());
  EXPECT_EQ(requests.size(), 2);

  requests.AbortAll(absl::UnavailableError("shut down"));

  for (const auto& call : {live, resumed, other}) {
    EXPECT_TRUE(call->aborted.has_value());
  }
  EXPECT_EQ(requests.size(), 2);  // until they have ended
  requests.Remove("one", live.get());
  requests.Remove("one", resumed.get());
  requests.Remove("two", other.get());
  EXPECT_EQ(requests.size(), 0);
}

TEST(LiveRequestsTest, WhatLivesNoMoreKeepsNobodyOut) {
  LiveRequests requests;
  const auto early = std::make_shared<Call>(1);
  ASSERT_TRUE(requests.Add("one", std::make_shared<Call>(2)).ok());

  EXPECT_TRUE(requests.TakeOver("one", early).ok());
}

TEST(LiveRequestsTest, AnIdOfAnotherTenantIsAnotherRequest) {
  EXPECT_NE(LiveRequests::NameOf("alice", "one"), LiveRequests::NameOf("bob", "one"));
  EXPECT_NE(LiveRequests::NameOf("a", "b.one"), LiveRequests::NameOf("a.b", "one"));
}

}  // namespace
}  // namespace quire
