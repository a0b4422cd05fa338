// WaitingQueue holds the groups that neither run nor are swapped, in the order of the policy. New
// groups are refused if the queue is at its bounds (CoreConfig). Groups that were running return at
// their old rank and are never refused.
//
// Under a policy that does not rank new requests (fair share), each bound on requests and tokens is
// shared: a tenant with a waiting request may hold only its share (tenant_share.h). For new
// requests, a single tenant may fill half of a bound, and two tenants a third each. For resumed
// requests, a single tenant may fill two thirds. So no tenant can take the room of another, and no
// waiting request has to be dropped. Requests with new tenant names are bounded like all others.
//
// Resumed requests (Request::is_resumed) have separate bounds: an earlier scheduler had accepted
// them, and new requests that arrive before them must not shut them out. The bounds on resumed
// requests have room for the queue of the earlier scheduler and twice its running sequences. So two
// thirds of a bound suffice for one tenant, even if that tenant owned all running sequences.
//
// Thread safety: not thread-safe; owned by CoreState. Owns neither groups nor policy.
// Invariants:    groups with a rank come before groups without a rank; no group is in the queue
//                twice.
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

  // Returns why a request may not join, or kNone if it may. limits: the limits of the last epoch.
  // Before the first epoch the tokens of resumed requests are not bounded, but the server refuses
  // every request then (ServingState).
  Refusal RefusalOf(const Request& request,
                    const CoreConfig& config,
                    const std::optional<StepLimits>& limits) const;

  // Adds a new group, with a rank if the policy ranks requests when they arrive. REQUIRES: the
  // group is newer than every group added before.
  void Add(SequenceGroup& group);

  // Adds a group that has a rank, such as a group that was running. REQUIRES: the group is not in
  // the queue.
  void Return(SequenceGroup& group);

  SequenceGroup& front() const;  // REQUIRES: !empty()
  // Removes the first group, so that it can start. Gives the group a rank if it has none. REQUIRES:
  // !empty()
  SequenceGroup& PopFront();
  void Remove(SequenceGroup& group);  // REQUIRES: in the queue

  bool empty() const { return size() == 0; }
  int32_t size() const { return all_.fresh.num_requests + all_.resumed.num_requests; }
  // Tokens of prompts and of resumed output.
  int64_t num_tokens() const { return all_.fresh.num_tokens + all_.resumed.num_tokens; }
  // Number of resumed requests; part of size().
  int32_t num_resumed() const { return all_.resumed.num_requests; }
  // Tokens of resumed requests; part of num_tokens().
  int64_t num_resumed_tokens() const { return all_.resumed.num_tokens; }
  // The work of all groups.
  CompletionEstimate::Work work() const;
  // The work of the waiting groups that will start before the request if it arrives now. Under a
  // policy that ranks new requests, the result is never too high: if the request would overtake any
  // waiting group, the work is 0. If tenants take turns, the number of groups that start earlier is
  // estimated.
  CompletionEstimate::Work AheadOf(const Request& request) const;
  // Returns the first `most` groups with a rank, in their order. Cost: O(most).
  std::vector<SequenceGroup*> FirstRanked(size_t most) const;
  // Returns the groups with a rank in their order, then the groups without a rank, tenant by
  // tenant.
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
    void Add(const SequenceGroup& group, int32_t times);  // times: 1 adds, -1 subtracts
    friend bool operator==(const Loads&, const Loads&) = default;
  };

  struct Tenant {
    std::map<RequestId, SequenceGroup*> groups;  // in order of arrival
    Loads loads;
  };

  SchedulingPolicy& policy_;
  std::set<SequenceGroup*, IsAhead> ranked_;
  std::map<std::string, Tenant, std::less<>> unranked_;
  int64_t num_started_ = 0;  // groups that got their rank when they started
  Loads all_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_WAITING_QUEUE_H_
