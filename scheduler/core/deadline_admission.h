// Deadline admission: whether a request can be complete by its deadline. One that cannot is refused
// when it comes, and one that waits and no longer can is dropped when its turn comes, before
// anything is computed for it: what is computed is then complete in time, also when far more is
// asked for than can be served.
//
// In doubt a request is let in. Nobody is refused before steps and outputs were seen. Nor is, when
// it comes, a request whose client has a part of its output (Request::resumed): it may wait, and is
// judged at its turn by what it lacks. One that is resumed without output is like a new one:
// anybody may say so of a request.
//
// While nobody waits and there is room, one request of each tenant is tried at a time although it
// seems too late: what the estimates were learnt from may have been another tenant's outputs, and
// whoever is never started is never learnt from. So an idle server refuses nobody. Of a policy
// under which requests overtake others, only those are counted as ahead that are so for sure.
//
// Thread safety: free functions on a state; not thread-safe.
// Cost:          O(buckets of StepCost), and O(running) for a trial.
#ifndef QUIRE_SCHEDULER_CORE_DEADLINE_ADMISSION_H_
#define QUIRE_SCHEDULER_CORE_DEADLINE_ADMISSION_H_

#include <cstdint>
#include <optional>

#include "scheduler/core/core_state.h"
#include "scheduler/core/output_event.h"
#include "scheduler/core/request.h"
#include "scheduler/core/sequence_group.h"

namespace quire {

// A request that arrives and does not wait yet: the estimate that its group begins with,
// kUnreachable for a trial. Nothing: it is refused.
std::optional<DeadlineEstimate> AdmitByDeadline(const CoreState& state, const Request& request);

// The first one that waits, if it starts now. What it says is remembered, so that OnGroupEnd can
// learn from what became of it.
bool CanStillMeetDeadline(const CoreState& state, SequenceGroup& first);

// A sequence of the group has ended with so many output tokens: what it says about the length of
// others. One that was resumed says nothing, for most of it was not computed here: anybody may
// claim any output.
void OnSequenceEnd(CoreState& state,
                   const SequenceGroup& group,
                   int32_t num_output_tokens,
                   FinishReason reason);

// The group has ended, its last sequence for this reason.
void OnGroupEnd(CoreState& state, const SequenceGroup& group, FinishReason reason);

// Until all that wait now have started; 0 while nothing is known.
int64_t QueueDrainMicros(const CoreState& state);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_DEADLINE_ADMISSION_H_
