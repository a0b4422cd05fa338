// NameNextBlocks says which block each sequence will probably append in the next step, for workers
// that prepare blocks ahead of need. Sequences that decode and begin a block then get the next free
// blocks, in the order in which the planner serves them.
//
// It is a guess. Right are all blocks that are appended in the next step as long as everybody just
// decodes on; who comes, ends by a stop token, forks or is preempted may shift the others. Prompts
// get no hint: they may need several blocks.
//
// Thread safety: as CoreState.
// Cost:          O(slices + n log n) for n hints. No allocation in steady use.
#ifndef QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_
#define QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_

#include "common/step/step_plan.h"
#include "scheduler/core/core_state.h"

namespace quire {

// Sets SequenceSlice::next_block_id. Nothing else changes. REQUIRES: an epoch; state.step has the
// slices of the plan, which takes no more blocks.
void NameNextBlocks(CoreState& state, StepPlan& plan);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_NEXT_BLOCKS_H_
