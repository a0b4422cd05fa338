// SchedulingPolicy says who is served first. Groups stand in one order, by rank and then by
// arrival; the planner serves them in it and preempts from its end, whatever the policy. A rank
// never changes, so nobody is preempted for a group behind it, the first group always advances, and
// there is no livelock. Most policies know the rank of a request when it arrives; one that does not
// says whose turn it is among those without a rank, and a request gets its rank by starting.
//
//   FcfsPolicy       first come, first served
//   PriorityPolicy   the smaller the priority number, the earlier; with age requests overtake newer
//                    ones of better priority
//   FairSharePolicy  tenants share the service equally while they compete for it
//
// Thread safety: not thread-safe; owned by CoreState.
// Source:        FairSharePolicy: virtual token counters, Sheng et al. 2024 (arXiv 2401.00588).
#ifndef QUIRE_SCHEDULER_CORE_SCHEDULING_POLICY_H_
#define QUIRE_SCHEDULER_CORE_SCHEDULING_POLICY_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/base/math.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/request.h"

namespace quire {

class SchedulingPolicy {
 public:
  virtual ~SchedulingPolicy() = default;

  // Where a request stands that arrives, the smaller the earlier. Nothing: behind everybody who has
  // a rank, until it starts.
  virtual std::optional<int64_t> RankOf(const Request& request) const = 0;

  // The tenant gets its first request that waits without a rank, or its last one has started.
  virtual void BeginWaiting(const std::string& /*tenant*/) {}
  virtual void EndWaiting(const std::string& /*tenant*/) {}

  // Whose request without a rank starts next. REQUIRES: one of them waits.
  virtual std::string_view NextTenant() const;

  // So many tokens were computed for the tenant. What is computed again after a preemption does not
  // count.
  virtual void OnServed(const std::string& /*tenant*/,
                        int64_t /*num_prompt_tokens*/,
                        int64_t /*num_output_tokens*/) {}
};

class FcfsPolicy : public SchedulingPolicy {
 public:
  std::optional<int64_t> RankOf(const Request& /*request*/) const override { return 0; }
};

class PriorityPolicy : public SchedulingPolicy {
 public:
  // A difference of one in priority is worth this time of waiting. Ranks that no number holds, of
  // a step log that somebody made, are the first or the last there is. REQUIRES: ageing >= 0.
  explicit PriorityPolicy(Instant ageing) : ageing_(ageing) {}

  std::optional<int64_t> RankOf(const Request& request) const override {
    using Limits = std::numeric_limits<int64_t>;
    const std::optional<int64_t> worth = CheckedMultiply(request.priority, ageing_);
    if (!worth.has_value()) {
      return request.priority < 0 ? Limits::min() : Limits::max();
    }
    return CheckedAdd(request.arrival, *worth).value_or(*worth < 0 ? Limits::min() : Limits::max());
  }

 private:
  Instant ageing_;
};

// Each tenant has a counter of the service that it got: prompt tokens, and output tokens twice. The
// tenant with the least goes next; of equals, the one that waits the longest. While two tenants
// wait, their counters differ by at most the cost of what one of them can have running.
//
// One that comes, or comes back, is lifted to the most of those who wait or waited before: what it
// did not use is gone, and it stands behind all of them. So names are worth nothing: whoever takes
// a new one for each request goes ahead of nobody, and who waits is served once those that came
// before it have caught up. (Lifting to the least of those who wait, as the paper does, serves a
// tenant that comes seldom a little earlier, and lets a stream of fresh names starve all others.)
//
// Tenants that do not wait and are above what they would be lifted to are remembered, as many as
// max_absent_tenants. Beyond that the one with the least is forgotten, and from then on everybody
// who comes is lifted to what it had.
//
// Cost: O(log tenants) a call.
class FairSharePolicy : public SchedulingPolicy {
 public:
  static constexpr int64_t kPromptTokenCost = 1;
  static constexpr int64_t kOutputTokenCost = 2;

  explicit FairSharePolicy(size_t max_absent_tenants) : max_absent_tenants_(max_absent_tenants) {}
  FairSharePolicy(const FairSharePolicy&) = delete;
  FairSharePolicy& operator=(const FairSharePolicy&) = delete;

  std::optional<int64_t> RankOf(const Request& /*request*/) const override { return std::nullopt; }
  void BeginWaiting(const std::string& tenant) override;
  void EndWaiting(const std::string& tenant) override;
  std::string_view NextTenant() const override;
  void OnServed(const std::string& tenant,
                int64_t num_prompt_tokens,
                int64_t num_output_tokens) override;

  int64_t counter(const std::string& tenant) const;  // what it has if it comes now
  size_t num_tenants() const { return accounts_.size(); }
  // Entries that all calls together looked at: for tests of what a call costs.
  int64_t num_compared() const { return num_compared_; }

 private:
  struct Account;
  struct IsAhead {
    int64_t* num_compared;
    bool operator()(const Account* a, const Account* b) const;
  };
  using Line = std::pmr::set<Account*, IsAhead>;
  struct Account {
    std::string_view tenant = {};  // its key
    int64_t counter = 0;
    int64_t since = 0;  // which of the moves from one line to the other its last one was
    bool is_waiting = false;
    Line::iterator place = {};
  };
  struct IsBefore {
    int64_t* num_compared;
    using is_transparent = void;
    bool operator()(std::string_view a, std::string_view b) const {
      ++*num_compared;
      return a < b;
    }
  };

  Line& LineOf(const Account& account) { return account.is_waiting ? waiting_ : absent_; }
  Account& Open(const std::string& tenant);  // REQUIRES: none is there
  void Move(Account& account, bool is_waiting);
  void Charge(Account& account, int64_t cost);
  void ForgetBeyondBound();
  // What whoever comes is lifted to: no less than anybody has who waits.
  int64_t Floor() const;

  const size_t max_absent_tenants_;
  mutable int64_t num_compared_ = 0;
  // Accounts come and go between requests, and stay longer: in memory of their own, for otherwise
  // each of them keeps a page that the requests around it were on.
  std::pmr::unsynchronized_pool_resource memory_;
  // By tenant: of all that wait, and of others that are remembered.
  std::pmr::map<std::pmr::string, Account, IsBefore> accounts_{IsBefore{&num_compared_}, &memory_};
  Line waiting_{IsAhead{&num_compared_}, &memory_};
  Line absent_{IsAhead{&num_compared_}, &memory_};
  int64_t floor_ = 0;  // of those who waited before, or were forgotten; never falls
  int64_t num_moves_ = 0;
};

std::unique_ptr<SchedulingPolicy> MakeSchedulingPolicy(const CoreConfig& config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_SCHEDULING_POLICY_H_
