// WaitingQueue holds the groups that are not running, in the order of the policy. New ones are
// refused beyond the bounds. Groups that were running come back to their place and are never
// refused.
//
// Resumed requests (Request::is_resumed) have places of their own: a scheduler before had accepted
// them, and the new ones that came first must not shut them out. It had its queue, and sequences
// under way; those are counted twice here, so that the share of a tenant that had them all is
// enough for it.
//
// Under a policy without ranks a tenant that waits already may not come to hold more than it leaves
// free for others (tenant_share.h), in requests and in tokens: of the new ones half of the bound
// alone, a third beside one that does likewise; of the resumed ones, of which it may leave half as
// much, two thirds alone. So nobody can fill the queue of another one, nothing has to be thrown
// out, and names that nobody has heard of share the same bound as all others.
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

  // Whether a request may join. Limits: of the last epoch. Before the first one the loop lets
  // nobody in, and tokens of resumed requests are not bounded.
  Refusal RefusalOf(const Request& request,
                    const CoreConfig& config,
                    const std::optional<StepLimits>& limits) const;

  // A new group, which gets its rank if the policy has one for it. REQUIRES: newer than every group
  // before.
  void Add(SequenceGroup& group);

  // A group that was running. REQUIRES: not here.
  void Return(SequenceGroup& group);

  SequenceGroup& front() const;  // REQUIRES: !empty()
  // The first group starts, and has a rank from now on. REQUIRES: !empty()
  SequenceGroup& PopFront();
  void Remove(SequenceGroup& group);  // REQUIRES: here

  bool empty() const { return size() == 0; }
  int32_t size() const { return all_.fresh.num_requests + all_.resumed.num_requests; }
  // Of prompts, and of output that resumed requests bring.
  int64_t num_tokens() const { return all_.fresh.num_tokens + all_.resumed.num_tokens; }
  // Of these, what resumed requests account for.
  int32_t num_resumed() const { return all_.resumed.num_requests; }
  int64_t num_resumed_tokens() const { return all_.resumed.num_tokens; }
  // All that wait, and of them those that will start before a request that comes now. Where the
  // policy lets it overtake some, only those that it surely does not; where tenants take turns,
  // about as many as have theirs before.
  CompletionEstimate::Work work() const;
  CompletionEstimate::Work AheadOf(const Request& request) const;
  // As many as that of those with a rank, in their order. Cost: O(their number).
  std::vector<SequenceGroup*> FirstRanked(size_t most) const;
  // Those with a rank in their order, then the others, tenant by tenant.
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

  // New requests and resumed ones are bounded each for themselves.
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
  int64_t num_started_ = 0;  // of those without a rank
  Loads all_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_
