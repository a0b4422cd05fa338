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
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

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
  virtual const std::string& NextTenant() const;

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
  // A difference of one in priority is worth this time of waiting. REQUIRES: ageing >= 0.
  explicit PriorityPolicy(Instant ageing) : ageing_(ageing) {}

  std::optional<int64_t> RankOf(const Request& request) const override {
    return request.arrival + request.priority * ageing_;
  }

 private:
  Instant ageing_;
};

// Each tenant has a counter of the service that it got: prompt tokens, and output tokens twice. The
// tenant with the least goes next. One that comes back to the queue is lifted to the least of those
// who wait: what it did not use is gone. While two tenants wait, their counters differ by at most
// the cost of what one of them can have running.
class FairSharePolicy : public SchedulingPolicy {
 public:
  static constexpr int64_t kPromptTokenCost = 1;
  static constexpr int64_t kOutputTokenCost = 2;

  std::optional<int64_t> RankOf(const Request& /*request*/) const override { return std::nullopt; }
  void BeginWaiting(const std::string& tenant) override;
  void EndWaiting(const std::string& tenant) override;
  const std::string& NextTenant() const override;
  void OnServed(const std::string& tenant,
                int64_t num_prompt_tokens,
                int64_t num_output_tokens) override;

  int64_t counter(const std::string& tenant) const;
  size_t num_tenants() const { return counters_.size(); }

 private:
  int64_t LeastOfWaiting() const;  // REQUIRES: somebody waits

  std::map<std::string, int64_t> counters_;  // of all that wait, and others above floor_
  std::set<std::string> waiting_;
  int64_t floor_ = 0;  // nobody who waits had less since; never falls
};

std::unique_ptr<SchedulingPolicy> MakeSchedulingPolicy(const CoreConfig& config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_SCHEDULING_POLICY_H_
