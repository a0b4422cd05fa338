// SchedulingPolicy defines the order of service. Groups are ordered by rank, then by arrival. Under
// every policy the planner serves groups in this order and preempts from the end of this order. A
// rank never changes, so no group is preempted for a group behind it. Therefore the first group
// always advances, and there is no livelock. Most policies rank a request when it arrives.
// FairSharePolicy only names the tenant whose unranked request starts next, and a request gets its
// rank when it starts.
//
//   FcfsPolicy       first come, first served
//   PriorityPolicy   smaller priority numbers are served earlier; a request that has waited long
//                    enough is served before newer requests of better priority
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

  // Returns the rank of an arriving request: smaller ranks are served earlier. Returns nullopt if
  // the request gets a rank only when it starts. Until then the request is behind every ranked
  // request.
  virtual std::optional<int64_t> RankOf(const Request& request) const = 0;

  // Called when the tenant's first unranked request begins to wait.
  virtual void BeginWaiting(const std::string& /*tenant*/) {}
  // Called when the tenant's last unranked request no longer waits.
  virtual void EndWaiting(const std::string& /*tenant*/) {}

  // Returns the tenant whose unranked request starts next. REQUIRES: an unranked request waits.
  virtual std::string_view NextTenant() const;

  // Charges the tenant for computed tokens. Tokens that are computed again after a preemption are
  // not charged.
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
  // ageing: as CoreConfig::priority_ageing. A rank that would overflow, which only a hand-made step
  // log can cause, is replaced by the smallest or largest int64. REQUIRES: ageing >= 0.
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

// Each tenant has a counter of the service that it got; an output token counts twice as much as a
// prompt token. The waiting tenant with the lowest counter is served next. Among tenants with equal
// counters, the tenant that has waited longest is served next. While two tenants wait, their
// counters differ by at most the cost of all requests that one tenant can have running.
//
// When a tenant begins to wait, its counter is raised to the highest counter of all tenants that
// wait now or waited before. So the tenant loses the service that it did not use, and is served
// only when the other waiting tenants' counters have reached its own. A client gains nothing by new
// tenant names. (The paper raises the counter only to the lowest counter of the waiting tenants.
// That serves a rare tenant a little earlier, but lets a stream of new tenant names starve all
// other tenants.)
//
// At most max_absent_tenants tenants that do not wait are remembered. Beyond that, the absent
// tenant with the lowest counter is forgotten. Every tenant that begins to wait later has its
// counter raised to at least the forgotten counter.
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

  // Returns the counter that the tenant would have if it began to wait now.
  int64_t counter(const std::string& tenant) const;
  size_t num_tenants() const { return accounts_.size(); }
  // Total number of entries that all calls compared, for tests of the cost of a call.
  int64_t num_compared() const { return num_compared_; }

 private:
  struct Account;
  struct IsAhead {
    int64_t* num_compared;
    bool operator()(const Account* a, const Account* b) const;
  };
  using Line = std::pmr::set<Account*, IsAhead>;
  struct Account {
    std::string_view tenant = {};  // the key of this account in accounts_
    int64_t counter = 0;
    int64_t since = 0;  // value of num_moves_ when the account moved into waiting_ or absent_
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
  Account& Open(const std::string& tenant);  // REQUIRES: the tenant has no account
  void Move(Account& account, bool is_waiting);
  void Charge(Account& account, int64_t cost);
  void ForgetBeyondBound();
  // Returns the value to which the counter of an arriving tenant is raised. No waiting tenant has a
  // higher counter.
  int64_t Floor() const;

  const size_t max_absent_tenants_;
  mutable int64_t num_compared_ = 0;
  // Accounts have a separate memory pool, because they outlive the requests. In the common heap, a
  // single account could keep a whole page in use.
  std::pmr::unsynchronized_pool_resource memory_;
  // Accounts by tenant: all tenants that wait, and absent tenants that are remembered.
  std::pmr::map<std::pmr::string, Account, IsBefore> accounts_{IsBefore{&num_compared_}, &memory_};
  Line waiting_{IsAhead{&num_compared_}, &memory_};
  Line absent_{IsAhead{&num_compared_}, &memory_};
  int64_t floor_ = 0;  // highest counter of tenants that waited or were forgotten; never falls
  int64_t num_moves_ = 0;
};

std::unique_ptr<SchedulingPolicy> MakeSchedulingPolicy(const CoreConfig& config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_SCHEDULING_POLICY_H_
