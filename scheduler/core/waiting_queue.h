// WaitingQueue holds the groups that are not running, in the order of the policy. New ones are
// refused beyond the bounds. Groups that were running come back to their place and are never
// refused.
//
// Resumed requests (Request::is_resumed) have separate bounds: an earlier scheduler had accepted
// them, and new requests that come first must not shut them out. It had its queue and its running
// sequences. The latter count twice here, so that the share of a tenant that had them all is enough
// for it.
//
// Under a policy without ranks a tenant that already waits may hold only its share
// (tenant_share.h), in requests and in tokens: of the new ones half of the bound alone, a third
// beside one that does likewise; of the resumed ones two thirds alone. So no tenant can fill the
// queue of another, nothing has to be thrown out, and unknown names share the same bound as all
// others.
//
// Thread safety: not thread-safe; owned by CoreState. Observes the groups and the policy.
// Invariants:    groups with a rank come before those without; no group twice.
// Cost:          O(log size) a call.
// Source:        tenant_share.h.
#ifndef QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_
#define QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/step/step_limits.h"
#include "scheduler/core/completion_estimate.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/scheduling_policy.h"
#include "scheduler/core/sequence_group.h"

namespace quire {

class WaitingQueue {
 public:
  enum class Refusal : uint8_t { kNone, kFull, kTokensFull, kTenantFull };

  // The policy must outlive the queue.
  explicit WaitingQueue(SchedulingPolicy* policy) : policy_(*policy) {}

  // Returns why a request may not join, or kNone. limits: of the last epoch. Before the first one
  // the loop admits none, and tokens of resumed requests are not bounded.
  Refusal RefusalOf(const Request& request,
                    const CoreConfig& config,
                    const std::optional<StepLimits>& limits) const;

  // A new group, which gets its rank if the policy has one for it. REQUIRES: newer than every group
  // before.
  void Add(SequenceGroup& group);

  // A group that was running. REQUIRES: not here.
  void Return(SequenceGroup& group);

  SequenceGroup& front() const;  // REQUIRES: !empty()
  // Removes the first group, which starts and has a rank from now on. REQUIRES: !empty()
  SequenceGroup& PopFront();
  void Remove(SequenceGroup& group);  // REQUIRES: here

  bool empty() const { return size() == 0; }
  int32_t size() const { return all_.fresh.num_requests + all_.resumed.num_requests; }
  // Tokens of prompts and of resumed output.
  int64_t num_tokens() const { return all_.fresh.num_tokens + all_.resumed.num_tokens; }
  // The resumed part of size(), and of num_tokens().
  int32_t num_resumed() const { return all_.resumed.num_requests; }
  int64_t num_resumed_tokens() const { return all_.resumed.num_tokens; }
  // The work of all groups, and of those that will start before a request that comes now. If the
  // policy may let it overtake, only groups that it surely does not overtake count; if tenants take
  // turns, about as many as have theirs before.
  CompletionEstimate::Work work() const;
  CompletionEstimate::Work AheadOf(const Request& request) const;
  // Returns the first `most` groups with a rank, in their order. Cost: O(most).
  std::vector<SequenceGroup*> FirstRanked(size_t most) const;
  // Groups with a rank in their order, then the others, tenant by tenant.
  std::vector<SequenceGroup*> groups() const;

  void CheckInvariants() const;

 private:
  struct IsAhead {
    bool operator()(const SequenceGroup* a, const SequenceGroup* b) const {
      return a->rank() < b->rank();
    }
  };

  struct Load {
    int32_t num_requests = 0;
    int64_t num_tokens = 0;
    int64_t num_sequences = 0;

    friend bool operator==(const Load&, const Load&) = default;
  };

  // New and resumed requests are bounded separately.
  struct Loads {
    Load fresh;
    Load resumed;

    const Load& Of(const Request& request) const { return request.is_resumed ? resumed : fresh; }
    void Add(const SequenceGroup& group, int32_t times);  // times: 1 or -1
    friend bool operator==(const Loads&, const Loads&) = default;
  };

  struct Tenant {
    std::map<RequestId, SequenceGroup*> groups;  // in order of arrival
    Loads loads;
  };

  SchedulingPolicy& policy_;
  std::set<SequenceGroup*, IsAhead> ranked_;
  std::map<std::string, Tenant, std::less<>> unranked_;
  int64_t num_started_ = 0;  // groups without a rank until then
  Loads all_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_
