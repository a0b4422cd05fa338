// Preemption takes the blocks of running groups when one ahead of them needs them. Victims are
// whole groups, the last in the policy's order first (the newest, under first come, first served).
// They are recomputed later, when their prompt and what they have generated become one new prompt,
// or wait in host memory.
//
// PreemptionMode::kAuto takes, of the groups behind the one in need that the policy ranks like the
// last one, the group that frees most blocks for its cost, in the cheaper way (PreemptionCost). Who
// was preempted three times is taken when there is no other.
//
// Nobody is preempted for a group behind it. So the first running group always gets what it needs
// (admission has seen that it fits the pool), and every group becomes the first in time: there is
// no livelock. A group that finds no room and nobody behind it keeps its blocks and sits the step
// out; it is the next victim when one ahead of it needs room. Under kAuto a victim may stand before
// groups that run on. It waits for them, but nobody starts before it, and the first of those that
// run always advances: they end one by one, and their blocks become its own.
//
// Thread safety: free functions; the state is not thread-safe.
// Source:        PagedAttention, Kwon et al. 2023, section 4.5.
#ifndef QUIRE_SCHEDULER_CORE_PREEMPTION_H_
#define QUIRE_SCHEDULER_CORE_PREEMPTION_H_

#include <cstdint>

#include "scheduler/core/core_state.h"

namespace quire {

enum class RoomOutcome : uint8_t {
  kHadRoom,
  kPreempted,  // there is room now
  kNoRoom,     // not in this step: nobody is behind it, or blocks are on their way to the host
};

// The group gives up its blocks and handles, to host memory or to nothing. Cost: O(its blocks).
// REQUIRES: running, without a slice.
void Preempt(CoreState& state, SequenceGroup& group);

// Sees to it that num_blocks blocks are free for group. A victim that is swapped has left its
// blocks only when the worker has copied them: group waits for that. Cost: with kAuto O(blocks of
// the groups behind) for each victim. REQUIRES: group is running.
RoomOutcome MakeRoom(CoreState& state, const SequenceGroup& group, int32_t num_blocks);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREEMPTION_H_
