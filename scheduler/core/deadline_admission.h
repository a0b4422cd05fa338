// Deadline admission decides whether a request can be complete by its deadline. If not, the request
// is refused when it arrives. A waiting request that can no longer be complete in time is dropped
// at its turn, before anything is computed for it. So nearly all requests that are computed are
// complete in time, even under overload.
//
// In doubt a request is admitted. While no step times or too few output lengths are known, no
// request is refused. A request that is resumed with a part of its output (Request::resumed) is not
// refused when it arrives. Such a request waits, and is judged at its turn by the output that it
// still lacks. A request that is resumed without output is treated as new, because any client can
// call its request resumed.
//
// While no request waits and there is room, each tenant can have one trial at a time: a request
// that starts although it is estimated to be late. The estimates may be based on other tenants'
// outputs. Without trials, a tenant whose requests are all refused could never correct these
// estimates. So a server without other requests refuses no request. If the policy lets requests
// overtake, the estimate for a request counts only groups that are certainly ahead of the request.
//
// Thread safety: free functions on the thread that owns the state.
// Cost:          O(buckets of StepCost), and O(running and swapped groups) for a trial.
#ifndef QUIRE_SCHEDULER_CORE_DEADLINE_ADMISSION_H_
#define QUIRE_SCHEDULER_CORE_DEADLINE_ADMISSION_H_

#include <cstdint>
#include <optional>

#include "scheduler/core/core_state.h"
#include "scheduler/core/output_event.h"
#include "scheduler/core/request.h"
#include "scheduler/core/sequence_group.h"

namespace quire {

// Judges a request on arrival. Returns nullopt if the request is refused. Otherwise returns the
// estimate that its group begins with: kUnreachable for a trial (a request that starts although it
// seems too late), else kNone.
std::optional<DeadlineEstimate> AdmitByDeadline(const CoreState& state, const Request& request);

// Judges a waiting group when it is next to start. Returns true if the group may start, possibly as
// a trial. Stores the estimate in the group, so that OnGroupEnd can learn from the outcome.
bool CanStillMeetDeadline(const CoreState& state, SequenceGroup& first);

// Called when a sequence of the group has ended. Learns the sequence's output length. Ignores
// resumed requests: most of their output was not computed here, and a client may claim any output.
void OnSequenceEnd(CoreState& state,
                   const SequenceGroup& group,
                   int32_t num_output_tokens,
                   FinishReason reason);

// Called when the group has ended. Learns whether the deadline was met. reason: why the last
// sequence ended.
void OnGroupEnd(CoreState& state, const SequenceGroup& group, FinishReason reason);

// Estimated time until every waiting request has started; 0 while nothing is known.
int64_t QueueDrainMicros(const CoreState& state);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_DEADLINE_ADMISSION_H_
