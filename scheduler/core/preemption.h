// Preemption takes the blocks of a running group, the victim, when a group ahead of it needs
// blocks. The victim is the last running group in the policy's order (under first come, first
// served, the newest group). A victim is recomputed later (its prompt and output as one new
// prompt), or its blocks wait in host memory.
//
// Under PreemptionMode::kAuto the candidates are the running groups that are behind the group in
// need and have the same rank value as the last running group. The victim is the candidate that
// frees the most blocks for its cost. The victim is swapped or recomputed, whichever costs less
// (PreemptionCost). A group that was preempted three times is chosen only if there is no other
// candidate.
//
// No group is preempted for a group behind it. So the first running group always gets the blocks
// that it needs: admission has checked that the group fits the pool. Every group is the first one
// at some time, so there is no livelock. If no group is behind the group in need, the group in need
// keeps its blocks and gets no slice in this step. This group is the next victim when a group ahead
// of it needs room. Under kAuto the victim can be ahead of groups that continue to run. The victim
// then waits for their blocks. No group starts before the victim, and the first running group
// always advances. So the running groups end one by one and free their blocks for the victim.
//
// Thread safety: free functions on the thread that owns the state.
// Source:        PagedAttention, Kwon et al. 2023, section 4.5.
#ifndef QUIRE_SCHEDULER_CORE_PREEMPTION_H_
#define QUIRE_SCHEDULER_CORE_PREEMPTION_H_

#include <cstdint>

#include "scheduler/core/core_state.h"

namespace quire {

enum class RoomOutcome : uint8_t {
  kHadRoom,
  kPreempted,  // there is room now, because groups were preempted
  // No room in this step: no group is behind the group in need, or blocks are still being copied to
  // host memory.
  kNoRoom,
};

// Takes the group's blocks and handles: swaps the blocks out, or drops them. Cost: O(blocks of the
// group). REQUIRES: the group is running and has no slice.
void Preempt(CoreState& state, SequenceGroup& group);

// Tries to make num_blocks blocks free for `group`, by preemption if necessary. Blocks of a swapped
// victim become free when the worker has copied them; until then `group` waits. Cost: with kAuto
// O(blocks of the groups behind `group`) for each victim. REQUIRES: `group` is running.
RoomOutcome MakeRoom(CoreState& state, const SequenceGroup& group, int32_t num_blocks);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREEMPTION_H_
