// Preemption takes the blocks of running groups when a group ahead of them needs them. Victims are
// whole groups, the last in the policy's order first (the newest, under first come, first served).
// A victim is recomputed later, with prompt and output as one new prompt, or waits in host memory.
//
// PreemptionMode::kAuto considers the groups behind the one in need whose rank value equals that of
// the last group. It takes the group that frees the most blocks for its cost, in the cheaper way
// (PreemptionCost). A group that was preempted three times is taken only if there is no other.
//
// No group is preempted for a group behind it. So the first running group always gets what it needs
// (admission has seen that it fits the pool), and every group becomes the first in time: there is
// no livelock. A group that finds no room and no group behind it keeps its blocks and sits the step
// out; it is the next victim when a group ahead of it needs room. Under kAuto a victim may be ahead
// of groups that run on, and waits for them. No group starts before the victim, and the first
// running group always advances, so the running groups end one by one and free their blocks for the
// victim.
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
  kNoRoom,     // not in this step: no group is behind it, or blocks are still leaving for the host
};

// Takes the group's blocks and handles: swaps the blocks out, or drops them. Cost: O(its blocks).
// REQUIRES: running, without a slice.
void Preempt(CoreState& state, SequenceGroup& group);

// Frees num_blocks blocks for group, by preemption if need be. Blocks of a swapped victim are free
// only once the worker has copied them; until then `group` waits. Cost: with kAuto O(blocks of the
// groups behind) for each victim. REQUIRES: group is running.
RoomOutcome MakeRoom(CoreState& state, const SequenceGroup& group, int32_t num_blocks);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREEMPTION_H_
