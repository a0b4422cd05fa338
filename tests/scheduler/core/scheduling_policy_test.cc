#include "scheduler/core/scheduling_policy.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

constexpr StepLimits kPolicyLimits{.num_blocks = 33,
                                   .block_size_tokens = 4,
                                   .max_sequences = 4,
                                   .max_tokens_per_step = 32,
                                   .max_model_len = 100,
                                   .vocab_size = 1000};

TEST(PriorityPolicyTest, OneLevelIsWorthTheAgeingTime) {
  PriorityPolicy policy(/*ageing=*/100);
  Request old = MakeRequest({.id = 1});
  old.arrival = 1000;
  old.priority = 2;
  Request young = MakeRequest({.id = 2});
  young.arrival = 1199;
  EXPECT_LT(*policy.RankOf(young), *policy.RankOf(old));
  young.arrival = 1201;
  EXPECT_GT(*policy.RankOf(young), *policy.RankOf(old));
}

// The core takes what a step log says, and that may be forged.
TEST(PriorityPolicyTest, TheLargestNumbersHaveARank) {
  using Instants = std::numeric_limits<Instant>;
  using Priorities = std::numeric_limits<int32_t>;
  PriorityPolicy policy(/*ageing=*/Instants::max());
  Request request = MakeRequest({.id = 1});
  request.arrival = Instants::max();
  request.priority = Priorities::max();
  EXPECT_EQ(policy.RankOf(request), Instants::max());
  request.priority = 1;
  EXPECT_EQ(policy.RankOf(request), Instants::max());
  request.arrival = Instants::min();
  EXPECT_EQ(policy.RankOf(request), -1);
  request.priority = Priorities::min();
  EXPECT_EQ(policy.RankOf(request), Instants::min());
}

class FairSharePolicyTest : public testing::Test {
 protected:
  static constexpr size_t kMaxAbsentTenants = 4096;

  FairSharePolicy policy_{kMaxAbsentTenants};
};

TEST_F(FairSharePolicyTest, WhoGotLeastIsNext) {
  policy_.BeginWaiting("a");
  policy_.BeginWaiting("b");
  EXPECT_EQ(policy_.NextTenant(), "a");
  policy_.OnServed("a", 3, 1);
  EXPECT_EQ(policy_.counter("a"), 5);
  EXPECT_EQ(policy_.NextTenant(), "b");
  policy_.OnServed("b", 6, 0);
  EXPECT_EQ(policy_.NextTenant(), "a");
}

TEST_F(FairSharePolicyTest, WhatATenantDidNotUseIsGone) {
  policy_.BeginWaiting("a");
  policy_.OnServed("a", 100, 0);
  policy_.BeginWaiting("b");
  EXPECT_EQ(policy_.counter("b"), 100);
}

TEST_F(FairSharePolicyTest, WhatATenantGotTooMuchStaysWhileItIsAway) {
  policy_.BeginWaiting("a");
  policy_.BeginWaiting("b");
  policy_.OnServed("a", 100, 0);
  policy_.EndWaiting("a");
  policy_.BeginWaiting("a");
  EXPECT_EQ(policy_.counter("a"), 100);
  EXPECT_EQ(policy_.NextTenant(), "b");
}

TEST_F(FairSharePolicyTest, AfterAPauseOfAllTheLastOneIsTheMeasure) {
  policy_.BeginWaiting("a");
  policy_.OnServed("a", 100, 0);
  policy_.EndWaiting("a");
  policy_.BeginWaiting("b");
  EXPECT_EQ(policy_.counter("b"), 100);
}

TEST_F(FairSharePolicyTest, WhoComesStandsBehindEverybodyWhoWaits) {
  policy_.BeginWaiting("a");
  policy_.BeginWaiting("b");
  policy_.OnServed("a", 100, 0);
  policy_.BeginWaiting("c");
  EXPECT_EQ(policy_.counter("c"), 100);
  policy_.OnServed("b", 100, 0);
  EXPECT_EQ(policy_.NextTenant(), "a");  // of equals, in the order in which they came
  policy_.EndWaiting("a");
  EXPECT_EQ(policy_.NextTenant(), "b");
  policy_.EndWaiting("b");
  EXPECT_EQ(policy_.NextTenant(), "c");
}

constexpr int kNumFreshNames = 100'000;

// No more absent tenants are remembered than can have a request at once.
TEST(MakeSchedulingPolicyTest, AsManyAbsentTenantsAreRememberedAsRequestsAreTaken) {
  const auto policy = MakeSchedulingPolicy(
      {.max_resumed_requests = 10, .scheduling_policy = SchedulingPolicyKind::kFairShare});
  for (int i = 0; i < 100; ++i) {
    policy->OnServed(std::to_string(i), 5, 0);
  }
  EXPECT_EQ(dynamic_cast<const FairSharePolicy&>(*policy).num_tenants(), 10);
}

// A client that may choose its tenant's name sends each request under a new name.
TEST_F(FairSharePolicyTest, FreshNamesLeaveABoundedNumberOfCounters) {
  policy_.BeginWaiting("stays");
  for (int i = 0; i < kNumFreshNames; ++i) {
    const std::string tenant = std::to_string(i);
    policy_.BeginWaiting(tenant);
    policy_.OnServed(tenant, 5, 0);
    policy_.EndWaiting(tenant);
    policy_.OnServed(tenant, 0, 1);
    ASSERT_LE(policy_.num_tenants(), kMaxAbsentTenants + 2);
  }
}

TEST_F(FairSharePolicyTest, FreshNamesDoNotStarveWhoWaits) {
  constexpr int kNumAtOnce = 10;
  policy_.BeginWaiting("honest");
  int num_served = 0;
  for (int i = 0; i < kNumFreshNames; ++i) {
    policy_.BeginWaiting(std::to_string(i));
    if (i < kNumAtOnce) {
      continue;
    }
    const std::string next(policy_.NextTenant());
    if (next != "honest") {
      policy_.EndWaiting(next);
    }
    num_served += next == "honest" ? 1 : 0;
    policy_.OnServed(next, 5, 5);
  }
  // Between two turns of the honest tenant, all names that came meanwhile get a turn, and one more
  // name comes.
  EXPECT_GT(num_served, 300);
}

TEST_F(FairSharePolicyTest, AnHonestTenantAmongFreshNamesGetsItsTurn) {
  for (int i = 0; i < kNumFreshNames; ++i) {
    policy_.BeginWaiting(std::to_string(i));
  }
  policy_.BeginWaiting("honest");
  int num_turns = 1;
  for (; policy_.NextTenant() != "honest"; ++num_turns) {
    const std::string next(policy_.NextTenant());
    policy_.EndWaiting(next);
    policy_.OnServed(next, 1, 0);
    policy_.BeginWaiting("another " + next);
  }
  EXPECT_EQ(num_turns, kNumFreshNames + 1);
}

TEST_F(FairSharePolicyTest, ForgettingACounterMakesNobodyBetterOffThanItsTenant) {
  policy_.BeginWaiting("greedy");
  policy_.EndWaiting("greedy");
  policy_.OnServed("greedy", 50, 0);
  for (size_t i = 0; i < kMaxAbsentTenants; ++i) {
    policy_.OnServed(std::to_string(i), 100, 0);  // runs, and does not wait
  }
  EXPECT_EQ(policy_.counter("greedy"), 50);
  EXPECT_EQ(policy_.counter("fresh"), 50);
}

TEST_F(FairSharePolicyTest, ACallLooksAtFewOfManyTenants) {
  const auto most_compared = [this](const auto& call) {
    const int64_t before = policy_.num_compared();
    call();
    return policy_.num_compared() - before;
  };
  int64_t most = 0;
  for (int i = 0; i < kNumFreshNames; ++i) {
    const std::string tenant = std::to_string(i);
    const auto count = [&](const auto& call) { most = std::max(most, most_compared(call)); };
    count([&] { policy_.BeginWaiting(tenant); });
    count([&] { policy_.NextTenant(); });
    count([&] { policy_.OnServed(tenant, i % 7, 1); });
    if (i % 2 == 1) {
      count([&] { policy_.EndWaiting(tenant); });
      count([&] { policy_.OnServed(tenant, 0, 1); });
    }
  }
  EXPECT_GT(most, 10);   // they are counted
  EXPECT_LT(most, 200);  // log2 of 100,000 is 17: some searches, and the way up and down a tree
}

// A core and its worker under a policy.
class PolicyTest : public testing::Test {
 protected:
  void Begin(SchedulingPolicyKind kind, PreemptionMode mode = PreemptionMode::kRecompute) {
    core_ = std::make_unique<SchedulerCore>(CoreConfig{.watermark = 0.0,
                                                       .scheduling_policy = kind,
                                                       .priority_ageing = 1000,
                                                       .preemption_mode = mode});
    StepLimits limits = kPolicyLimits;
    limits.num_host_blocks = mode == PreemptionMode::kSwap ? 64 : 0;
    worker_ = std::make_unique<FakeWorker>(limits);
    core_->BeginEpoch(1, 1, limits);
  }

  void Step() {
    std::optional<StepPlan> plan = core_->PlanStep(0);
    ASSERT_TRUE(plan.has_value());
    for (const SequenceIntroduction& introduction : plan->introductions) {
      started_.push_back(introduction.sampling.seed);
    }
    core_->CheckInvariants();
    absl::StatusOr<StepResult> result = worker_->Execute(*plan);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_TRUE(core_->ApplyStepResult(*result).ok());
    core_->CheckInvariants();
    for (const OutputEvent& event : core_->TakeEvents()) {
      if (const auto* token = std::get_if<TokenCommitted>(&event)) {
        ++num_tokens_[token->request_id.value()];
      }
    }
  }

  std::unique_ptr<SchedulerCore> core_;
  std::unique_ptr<FakeWorker> worker_;
  std::vector<uint64_t> started_;
  std::map<uint64_t, int64_t> num_tokens_;
};

TEST_F(PolicyTest, AnUrgentRequestTakesTheBlocksOfALessUrgentOne) {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    started_.clear();
    num_tokens_.clear();
    Begin(SchedulingPolicyKind::kPriority, mode);
    core_->AddRequest(MakeRequest({.id = 1, .prompt = 30, .max_tokens = 30}));
    core_->AddRequest(MakeRequest({.id = 2, .prompt = 60, .max_tokens = 30}));
    for (int i = 0; i < 4; ++i) {
      Step();
    }
    Request urgent = MakeRequest({.id = 3, .prompt = 60, .max_tokens = 5});
    urgent.priority = -1;
    core_->AddRequest(std::move(urgent));
    while (num_tokens_[3] < 5) {
      Step();
    }
    // The last in order gave way, the first went on.
    EXPECT_EQ(core_->stats().num_preemptions, 1);
    EXPECT_LT(num_tokens_[2], 8);
    EXPECT_GT(num_tokens_[1], 5);
    while (core_->has_work()) {
      Step();
    }
    EXPECT_EQ(num_tokens_[1], 30);
    EXPECT_EQ(num_tokens_[2], 30);
  }
}

TEST_F(PolicyTest, AnUrgentRequestTakesTheHandleOfALessUrgentOne) {
  Begin(SchedulingPolicyKind::kPriority);
  for (uint64_t id = 1; id <= 4; ++id) {
    core_->AddRequest(MakeRequest({.id = id, .prompt = 2, .max_tokens = 20}));
  }
  Step();
  Request urgent = MakeRequest({.id = 5, .prompt = 2, .max_tokens = 3});
  urgent.priority = -1;
  core_->AddRequest(std::move(urgent));
  Step();
  Step();
  EXPECT_EQ(started_.back(), 5U);
}

// One tenant has ten times as many requests waiting as the other.
TEST_F(PolicyTest, TenantsGetEqualServiceWhateverTheyAskFor) {
  Begin(SchedulingPolicyKind::kFairShare);
  std::map<std::string, std::vector<uint64_t>> ids;
  uint64_t next_id = 1;
  constexpr int64_t kMaxTokens = 10;
  const auto is_live = [this](uint64_t id) { return num_tokens_[id] < kMaxTokens; };
  for (int round = 0; round < 2000; ++round) {
    for (const auto& [tenant, backlog] :
         std::map<std::string, int64_t>{{"greedy", 100}, {"modest", 10}}) {
      std::vector<uint64_t>& of_tenant = ids[tenant];
      while (std::count_if(of_tenant.begin(), of_tenant.end(), is_live) < backlog) {
        of_tenant.push_back(next_id);
        Request request = MakeRequest({.id = next_id++, .prompt = 12, .max_tokens = kMaxTokens});
        request.tenant = tenant;
        ASSERT_EQ(core_->AddRequest(std::move(request)), AddOutcome::kQueued);
      }
    }
    Step();
  }
  std::map<std::string, double> service;
  for (const auto& [tenant, of_tenant] : ids) {
    for (uint64_t id : of_tenant) {
      service[tenant] += static_cast<double>(num_tokens_[id]);
    }
  }
  EXPECT_GT(service["greedy"] / service["modest"], 0.9);
  EXPECT_LT(service["greedy"] / service["modest"], 1.1);
}

}  // namespace
}  // namespace quire
