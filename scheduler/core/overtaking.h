// Overtaking, bounded: a short prompt does not wait for the whole of a long one. First come, first
// served would keep it waiting while a long prompt takes steps for itself, although it would be
// computed in a fraction of that time.
//
// While a running group has more prompt left than a step has room for, groups that wait behind it
// may pass: those that have a quarter of the tokens at most that it has left. They get half of what
// prompts get in a step, so what they pass takes twice as many steps at the most, however many
// come. Nobody passes a group that has passed.
//
// Who is passed loses nothing else. The long prompt's blocks are kept for it, and so are blocks and
// handles of everybody who waits before the one that passes: where there is no room for all of
// them, nobody passes. So who waits for room is not passed. Who has passed grows, and gives way
// when the room of somebody whom it passed is gone.
//
// Nor does anybody pass once sequences that decode would take more than half of a step, or of what
// a step may have under CoreConfig::target_inter_token.
//
// Only under first come, first served: other policies say themselves who goes first. In a backlog
// whose first kMostPassed requests are all long, nobody behind them passes.
//
// Thread safety: free functions; the state is not thread-safe.
// Cost:          O(kMostPassed) while a prompt is cut, else nothing.
#ifndef QUIRE_SCHEDULER_CORE_OVERTAKING_H_
#define QUIRE_SCHEDULER_CORE_OVERTAKING_H_

#include <cstdint>
#include <vector>

#include "scheduler/core/admission.h"
#include "scheduler/core/core_state.h"

namespace quire {

inline constexpr size_t kMostPassed = 64;
inline constexpr int64_t kTimesShorter = 4;
inline constexpr int32_t kShareOfPassing = 2;  // one part in so many

// Whether others may pass a running group while its prompt is cut.
bool MayBePassed(const CoreState& state, const SequenceGroup& group);

// Those that wait behind `cut`, which may be passed, and may start now, in order of arrival. room:
// what is there for them and for all that they pass.
std::vector<SequenceGroup*> ShortPromptsBehind(const CoreState& state,
                                               const SequenceGroup& cut,
                                               const Room& room);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_OVERTAKING_H_
