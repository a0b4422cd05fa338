// WaitingQueue holds the groups that are not running, in the order of the policy. New ones are
// refused beyond the bounds. Groups that were running come back to their place and are never
// refused.
//
// Thread safety: not thread-safe; owned by CoreState. Observes the groups and the policy.
// Invariants:    groups with a rank come before those without; no group twice.
// Cost:          O(log size) a call; front O(tenants) under a policy without ranks.
#ifndef QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_
#define QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scheduler/core/core_config.h"
#include "scheduler/core/scheduling_policy.h"
#include "scheduler/core/sequence_group.h"

namespace quire {

class WaitingQueue {
 public:
  enum class Refusal : uint8_t { kNone, kFull, kTokensFull };

  // The policy must outlive the queue.
  explicit WaitingQueue(SchedulingPolicy* policy) : policy_(*policy) {}

  // Whether a new request may join.
  Refusal RefusalOf(const Request& request, const CoreConfig& config) const;

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
  int32_t size() const { return size_; }
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  // Those with a rank in their order, then the others, tenant by tenant.
  std::vector<SequenceGroup*> groups() const;

  void CheckInvariants() const;

 private:
  struct IsAhead {
    bool operator()(const SequenceGroup* a, const SequenceGroup* b) const {
      return a->rank() < b->rank();
    }
  };

  SchedulingPolicy& policy_;
  std::set<SequenceGroup*, IsAhead> ranked_;
  std::map<std::string, std::deque<SequenceGroup*>> unranked_;  // by tenant, in order of arrival
  int64_t num_started_ = 0;                                     // of those without a rank
  int32_t size_ = 0;
  int64_t num_prompt_tokens_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_
