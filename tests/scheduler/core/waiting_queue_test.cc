#include "scheduler/core/waiting_queue.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/requests.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

class WaitingQueueTest : public ::testing::Test {
 protected:
  std::vector<uint64_t> Ids() const {
    std::vector<uint64_t> ids;
    for (const SequenceGroup* group : queue_.groups()) {
      ids.push_back(group->id().value());
    }
    return ids;
  }

  void TearDown() override { queue_.CheckInvariants(); }

  SequenceGroup one_{MakeRequest({.id = 1, .prompt = 10})};
  SequenceGroup two_{MakeRequest({.id = 2, .prompt = 20})};
  SequenceGroup three_{MakeRequest({.id = 3, .prompt = 30})};
  FcfsPolicy policy_;
  WaitingQueue queue_{&policy_};
  StepLimits limits_{.max_sequences = 3, .max_model_len = 1000};
};

TEST_F(WaitingQueueTest, IsFirstInFirstOut) {
  queue_.Add(one_);
  queue_.Add(two_);

  EXPECT_EQ(&queue_.front(), &one_);
  queue_.PopFront();
  EXPECT_EQ(&queue_.front(), &two_);
  queue_.PopFront();
  EXPECT_TRUE(queue_.empty());
}

TEST_F(WaitingQueueTest, ReturningGroupsTakeThePlaceOfTheirArrival) {
  queue_.Add(one_);
  queue_.Add(two_);
  queue_.PopFront();
  queue_.PopFront();
  queue_.Add(three_);

  queue_.Return(two_);
  queue_.Return(one_);

  EXPECT_THAT(Ids(), ElementsAre(1, 2, 3));
}

TEST_F(WaitingQueueTest, AGroupMayReturnBehindAnOlderOne) {
  two_.SetRank(0);
  queue_.Add(one_);
  queue_.Add(three_);

  queue_.Return(two_);

  EXPECT_THAT(Ids(), ElementsAre(1, 2, 3));
}

TEST_F(WaitingQueueTest, RemoveTakesAGroupOutOfTheMiddle) {
  queue_.Add(one_);
  queue_.Add(two_);
  queue_.Add(three_);

  queue_.Remove(two_);

  EXPECT_THAT(Ids(), ElementsAre(1, 3));
  EXPECT_EQ(queue_.num_tokens(), 40);
}

TEST_F(WaitingQueueTest, CountsThePromptTokensOfThoseThatWait) {
  two_.SetRank(0);
  queue_.Add(one_);
  queue_.Return(two_);
  EXPECT_EQ(queue_.num_tokens(), 30);

  queue_.PopFront();
  EXPECT_EQ(queue_.num_tokens(), 20);
}

TEST_F(WaitingQueueTest, RefusesMoreRequestsThanItsBound) {
  CoreConfig config{.max_queued_requests = 1};
  Request request = MakeRequest({.id = 9});
  EXPECT_EQ(queue_.RefusalOf(request, config, limits_), WaitingQueue::Refusal::kNone);

  queue_.Add(one_);

  EXPECT_EQ(queue_.RefusalOf(request, config, limits_), WaitingQueue::Refusal::kFull);
}

TEST_F(WaitingQueueTest, RefusesMoreTokensThanItsBound) {
  CoreConfig config{.max_queued_tokens = 15};
  queue_.Add(one_);

  EXPECT_EQ(queue_.RefusalOf(MakeRequest({.id = 9, .prompt = 5}), config, limits_),
            WaitingQueue::Refusal::kNone);
  EXPECT_EQ(queue_.RefusalOf(MakeRequest({.id = 9, .prompt = 6}), config, limits_),
            WaitingQueue::Refusal::kTokensFull);
}

Request Resumed(const RequestSpec& spec) {
  Request request = MakeRequest(spec);
  request.is_resumed = true;
  return request;
}

TEST_F(WaitingQueueTest, AFullQueueHasPlacesForResumedRequestsBeside) {
  CoreConfig config{.max_queued_requests = 1, .max_queued_tokens = 10, .max_resumed_requests = 2};
  queue_.Add(one_);
  SequenceGroup eight(Resumed({.id = 8, .prompt = 1000}));
  SequenceGroup nine(Resumed({.id = 9, .prompt = 1000}));
  const Request next = Resumed({.id = 10, .prompt = 1000});

  EXPECT_EQ(queue_.RefusalOf(next, config, limits_), WaitingQueue::Refusal::kNone);
  queue_.Add(eight);
  EXPECT_EQ(queue_.RefusalOf(next, config, limits_), WaitingQueue::Refusal::kNone);
  queue_.Add(nine);
  EXPECT_EQ(queue_.RefusalOf(next, config, limits_), WaitingQueue::Refusal::kFull);

  queue_.Remove(eight);
  EXPECT_EQ(queue_.RefusalOf(next, config, limits_), WaitingQueue::Refusal::kNone);
  queue_.Remove(nine);
}

TEST_F(WaitingQueueTest, ResumedRequestsBringAsManyTokensAsASchedulerBeforeCouldHave) {
  CoreConfig config{.max_queued_tokens = 10};  // and twice three sequences of 1,000
  SequenceGroup eight(Resumed({.id = 8, .prompt = 5000}));
  queue_.Add(eight);
  Request next = Resumed({.id = 9, .prompt = 1000, .max_tokens = 50});
  next.resumed = {{.token_ids = std::vector<TokenId>(10)}};

  EXPECT_EQ(queue_.RefusalOf(next, config, limits_), WaitingQueue::Refusal::kNone);
  next.resumed[0].token_ids.push_back(1);
  EXPECT_EQ(queue_.RefusalOf(next, config, limits_), WaitingQueue::Refusal::kTokensFull);

  next.resumed[0].token_ids.pop_back();
  SequenceGroup nine(next);
  queue_.Add(nine);
  EXPECT_EQ(queue_.num_resumed_tokens(), 6010);
  EXPECT_EQ(queue_.RefusalOf(Resumed({.id = 10, .prompt = 1}), config, limits_),
            WaitingQueue::Refusal::kTokensFull);
  queue_.Remove(eight);
  queue_.Remove(nine);
  EXPECT_EQ(queue_.num_resumed_tokens(), 0);
}

TEST_F(WaitingQueueTest, ResumedRequestsTakeNoPlaceAndNoTokensOfNewOnes) {
  CoreConfig config{.max_queued_requests = 1, .max_queued_tokens = 10};
  SequenceGroup eight(Resumed({.id = 8, .prompt = 1000}));
  queue_.Add(eight);

  EXPECT_EQ(queue_.RefusalOf(MakeRequest({.id = 9, .prompt = 10}), config, limits_),
            WaitingQueue::Refusal::kNone);
  EXPECT_EQ(queue_.size(), 1);
  EXPECT_EQ(queue_.num_resumed(), 1);
  EXPECT_EQ(queue_.num_tokens(), 1000);
  EXPECT_EQ(queue_.num_resumed_tokens(), 1000);
  queue_.Remove(eight);
}

TEST_F(WaitingQueueTest, APolicyMayPutANewGroupInFront) {
  PriorityPolicy policy(/*ageing=*/100);
  WaitingQueue queue(&policy);
  Request urgent = MakeRequest({.id = 4});
  urgent.priority = -1;
  SequenceGroup four(std::move(urgent));

  queue.Add(one_);
  queue.Add(four);

  EXPECT_EQ(&queue.PopFront(), &four);
  EXPECT_EQ(&queue.PopFront(), &one_);
}

TEST(WaitingQueueOfTenantsTest, TakesTurnsBetweenTenantsAndIsFairWithinOne) {
  FairSharePolicy policy(/*max_absent_tenants=*/100);
  WaitingQueue queue(&policy);
  std::deque<SequenceGroup> groups;
  for (uint64_t id = 1; id <= 6; ++id) {
    Request request = MakeRequest({.id = id, .prompt = 10});
    request.tenant = id <= 4 ? "many" : "few";
    queue.Add(groups.emplace_back(std::move(request)));
  }
  std::vector<uint64_t> order;
  while (!queue.empty()) {
    queue.CheckInvariants();
    order.push_back(queue.PopFront().id().value());
  }
  EXPECT_THAT(order, ElementsAre(1, 5, 2, 6, 3, 4));
}

TEST(WaitingQueueOfTenantsTest, WhoHasStartedComesBackInFrontInTheOrderOfStarts) {
  FairSharePolicy policy(/*max_absent_tenants=*/100);
  WaitingQueue queue(&policy);
  std::deque<SequenceGroup> groups;
  for (uint64_t id = 1; id <= 3; ++id) {
    Request request = MakeRequest({.id = id, .prompt = 10});
    request.tenant = std::string(1, static_cast<char>('c' - id));  // b, a, `
    queue.Add(groups.emplace_back(std::move(request)));
  }
  SequenceGroup& first = queue.PopFront();
  SequenceGroup& second = queue.PopFront();
  EXPECT_EQ(first.id().value(), 1U);

  queue.Return(second);
  queue.Return(first);

  EXPECT_EQ(&queue.PopFront(), &first);
  EXPECT_EQ(&queue.PopFront(), &second);
  EXPECT_EQ(queue.front().id().value(), 3U);
}

TEST(WaitingQueueOfTenantsTest, RemovesAGroupThatNeverStarted) {
  FairSharePolicy policy(/*max_absent_tenants=*/100);
  WaitingQueue queue(&policy);
  std::deque<SequenceGroup> groups;
  for (uint64_t id = 1; id <= 2; ++id) {
    queue.Add(groups.emplace_back(MakeRequest({.id = id, .prompt = 10})));
  }
  queue.Remove(groups[0]);
  queue.CheckInvariants();
  EXPECT_EQ(&queue.front(), &groups[1]);
  queue.Remove(groups[1]);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.num_tokens(), 0);
}

class TenantShareTest : public testing::Test {
 protected:
  WaitingQueue::Refusal Offer(const std::string& tenant, int32_t prompt = 1) {
    Request request = MakeRequest({.id = ++last_id_, .prompt = prompt});
    request.tenant = tenant;
    request.is_resumed = is_resumed_;
    const WaitingQueue::Refusal refusal = queue_.RefusalOf(request, config_, limits_);
    if (refusal == WaitingQueue::Refusal::kNone) {
      queue_.Add(groups_.emplace_back(std::move(request)));
    }
    return refusal;
  }

  void TearDown() override { queue_.CheckInvariants(); }

  StepLimits limits_;
  CoreConfig config_{.max_queued_requests = 100, .max_queued_tokens = 100};
  FairSharePolicy policy_{/*max_absent_tenants=*/100};
  WaitingQueue queue_{&policy_};
  std::deque<SequenceGroup> groups_;
  uint64_t last_id_ = 0;
  bool is_resumed_ = false;
};

TEST_F(TenantShareTest, ATenantHoldsNoMoreThanItLeavesForOthers) {
  config_.max_queued_requests = 6;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Offer("greedy"), WaitingQueue::Refusal::kNone);
  }
  EXPECT_EQ(Offer("greedy"), WaitingQueue::Refusal::kTenantFull);
  EXPECT_EQ(Offer("second"), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("second"), WaitingQueue::Refusal::kTenantFull);
  EXPECT_EQ(Offer("third"), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("fourth"), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("fifth"), WaitingQueue::Refusal::kFull);

  queue_.PopFront();  // what runs counts no more
  EXPECT_EQ(Offer("fifth"), WaitingQueue::Refusal::kNone);
}

TEST_F(TenantShareTest, TokensAreSharedLikewise) {
  EXPECT_EQ(Offer("greedy", 50), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("greedy", 1), WaitingQueue::Refusal::kTenantFull);
  EXPECT_EQ(Offer("second", 10), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("second", 16), WaitingQueue::Refusal::kTenantFull);
  EXPECT_EQ(Offer("second", 10), WaitingQueue::Refusal::kNone);
}

TEST_F(TenantShareTest, OneRequestOfATenantMayFillTheQueue) {
  EXPECT_EQ(Offer("only", 100), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("other", 1), WaitingQueue::Refusal::kTokensFull);
}

TEST_F(TenantShareTest, FreshNamesDoNotPassTheBoundOfAll) {
  int num_queued = 0;
  for (int i = 0; i < 100'000; ++i) {
    num_queued += Offer(std::to_string(i)) == WaitingQueue::Refusal::kNone ? 1 : 0;
  }
  EXPECT_EQ(num_queued, 100);
  EXPECT_LE(policy_.num_tenants(), 100U);
}

TEST_F(TenantShareTest, OfResumedRequestsATenantLeavesHalfAsMuchForOthers) {
  config_.max_resumed_requests = 9;
  is_resumed_ = true;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(Offer("greedy"), WaitingQueue::Refusal::kNone);
  }
  EXPECT_EQ(Offer("greedy"), WaitingQueue::Refusal::kTenantFull);
  EXPECT_EQ(Offer("second"), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("third"), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("third"), WaitingQueue::Refusal::kTenantFull);
  EXPECT_EQ(Offer("fourth"), WaitingQueue::Refusal::kNone);
  EXPECT_EQ(Offer("fifth"), WaitingQueue::Refusal::kFull);

  is_resumed_ = false;  // of new ones it has none
  EXPECT_EQ(Offer("greedy"), WaitingQueue::Refusal::kNone);
}

// A scheduler before had half of a queue waiting of its only tenant, and a full step under way.
TEST_F(TenantShareTest, TheOnlyTenantOfASchedulerBeforeFindsPlacesForAllItHad) {
  limits_ = {.max_sequences = 10, .max_model_len = 50};
  config_ = {.max_queued_requests = 20, .max_queued_tokens = 200, .max_resumed_requests = 40};
  is_resumed_ = true;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Offer("only", i < 10 ? 10 : 50), WaitingQueue::Refusal::kNone);
  }
}

TEST_F(TenantShareTest, WithoutTenantsNobodyLeavesRoom) {
  FcfsPolicy policy;
  WaitingQueue queue(&policy);
  config_.max_queued_requests = 2;
  for (uint64_t id = 1; id <= 2; ++id) {
    Request request = MakeRequest({.id = id});
    EXPECT_EQ(queue.RefusalOf(request, config_, limits_), WaitingQueue::Refusal::kNone);
    queue.Add(groups_.emplace_back(std::move(request)));
  }
}

using WaitingQueueDeathTest = WaitingQueueTest;

TEST_F(WaitingQueueDeathTest, RefusesWhatIsThereOrIsNot) {
  queue_.Add(two_);

  EXPECT_DEATH(queue_.Add(two_), "has_rank");
  EXPECT_DEATH(queue_.Return(two_), "insert");
  three_.SetRank(0);
  EXPECT_DEATH(queue_.Remove(three_), "erase");
}

TEST_F(WaitingQueueDeathTest, RefusesToPopFromNothing) { EXPECT_DEATH(queue_.PopFront(), "empty"); }

}  // namespace
}  // namespace quire
