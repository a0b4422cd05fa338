// NameNextBlocks predicts which blocks the next step takes, so that workers can prepare them in
// advance. Decoding sequences that will begin a new block are predicted to get the next free
// blocks, in the order in which the planner serves them. The next new sequence is predicted to get
// the next free handle and the first free blocks (kv_cache_manager.h).
//
// Predictions are only hints. The blocks predicted for decoding sequences are right if every
// sequence goes on decoding. A stop token, a fork or a preemption can make these predictions wrong.
// The predicted handle and blocks are right for a step's first new sequence, unless it begins with
// cached blocks, blocks are short, or an operator pins a prefix. A prompt that is computed in parts
// gets no hint, because a part can need several blocks.
//
// Thread safety: on the thread that owns the state.
// Cost:          O(slices + n log n) for n hints, plus O(n^2) if several blocks share a page.
#ifndef QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_
#define QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_

#include "common/step/step_plan.h"
#include "scheduler/core/core_state.h"

namespace quire {

// Sets SequenceSlice::next_block_id and StepPlan::spare, and nothing else. REQUIRES: an epoch is
// active; state.step has the slices of the plan; the plan takes no more blocks and handles;
// plan.releases is set.
void NameNextBlocks(CoreState& state, StepPlan& plan);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_
