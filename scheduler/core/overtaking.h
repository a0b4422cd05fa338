// Bounded overtaking: a short prompt need not wait until a long prompt ahead of it is computed. In
// plain first come, first served the long prompt would fill whole steps. The short prompt would
// wait, although it takes only a fraction of that time.
//
// While a running group has more prompt left than a step has room for, the step cuts the prompt. A
// waiting group behind the running group may then pass, if the waiting group has at most a quarter
// as many tokens left. Passing groups get half of the prompt tokens of a step. So the passed group
// takes at most twice as many steps as without overtaking, no matter how many groups pass it. A
// group that has passed another is not passed itself.
//
// A passed group loses nothing else. Blocks are kept for the long prompt, and blocks and handles
// for every group that waits ahead of the passing group. If there is no room for all of these
// groups, no group passes, so a group that waits for room is not passed. A group that has passed
// others can grow, but is preempted when a group that it passed lacks room.
//
// A group passes only if decoding will leave half of a step free. That is, once all running groups
// and the passing group decode, their sequences take at most half of a step's tokens. They also
// take at most half of the tokens that CoreConfig::target_inter_token allows.
//
// Only first come, first served lets groups pass; other policies define the order themselves.
// A group with kMostPassed waiting groups ahead of it does not pass.
//
// Thread safety: free functions on the thread that owns the state.
// Cost:          O(kMostPassed) while a prompt is cut, else none.
#ifndef QUIRE_SCHEDULER_CORE_OVERTAKING_H_
#define QUIRE_SCHEDULER_CORE_OVERTAKING_H_

#include <cstdint>
#include <vector>

#include "scheduler/core/admission.h"
#include "scheduler/core/core_state.h"

namespace quire {

inline constexpr size_t kMostPassed = 64;
inline constexpr int64_t kTimesShorter = 4;
// Passing groups get 1 / kPassingDivisor of the prompt tokens of a step.
inline constexpr int32_t kPassingDivisor = 2;

// Returns true if other groups may pass a running group while its prompt is cut.
bool MayBePassed(const CoreState& state, const SequenceGroup& group);

// Returns the waiting groups behind `cut` that may pass `cut` and start now, in order of arrival.
// room: the free handles and blocks. Each returned group fits into the room together with all
// waiting groups ahead of it, so that passing does not delay these.
// REQUIRES: MayBePassed(state, cut).
std::vector<SequenceGroup*> ShortPromptsBehind(const CoreState& state,
                                               const SequenceGroup& cut,
                                               const Room& room);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_OVERTAKING_H_
