// NameNextBlocks predicts which block each sequence appends in the next step, for workers that
// prepare blocks ahead of need. Each decoding sequence that will begin a new block is predicted to
// get one of the next free blocks, in the order in which the planner will serve the sequences.
//
// The prediction is only a hint. It is right for all blocks if every sequence decodes on. An
// arrival, a stop token, a fork or a preemption can make it wrong. A prompt gets no hint, because a
// prompt can need several blocks.
//
// Thread safety: as CoreState.
// Cost:          O(slices + n log n) for n hints. No allocation in steady use.
#ifndef QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_
#define QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_

#include "common/step/step_plan.h"
#include "scheduler/core/core_state.h"

namespace quire {

// Sets SequenceSlice::next_block_id and nothing else. REQUIRES: an epoch; state.step has the slices
// of the plan; the plan will take no more blocks.
void NameNextBlocks(CoreState& state, StepPlan& plan);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_
