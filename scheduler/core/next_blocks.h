// NameNextBlocks predicts blocks that the next step takes, for workers that prepare blocks ahead of
// need. Each decoding sequence that will begin a new block is predicted to get one of the next free
// blocks, in the order in which the planner will serve the sequences. The next new sequence is
// predicted to get the next free handle and the first free blocks (kv_cache_manager.h).
//
// Predictions are only hints. The blocks of decoding sequences are right if every sequence decodes
// on. A stop token, a fork or a preemption can make them wrong. The handle and blocks of the new
// sequence are right for the first new sequence of a step, unless it begins with cached blocks,
// blocks are short, or an operator pins a prefix. A prompt in parts gets no hint, because a part
// can need several blocks.
//
// Thread safety: as CoreState.
// Cost:          O(slices + n log n) for n hints. One allocation.
#ifndef QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_
#define QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_

#include "common/step/step_plan.h"
#include "scheduler/core/core_state.h"

namespace quire {

// Sets SequenceSlice::next_block_id and StepPlan::spare, and nothing else. REQUIRES: an epoch;
// state.step has the slices of the plan; the plan will take no more blocks and handles, and has its
// releases.
void NameNextBlocks(CoreState& state, StepPlan& plan);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_
