// FaultOfNextBlocks checks the hints of an unanswered plan: a hinted block has no holder, and is
// hinted once to sequences and once to the spare window, whose handle has no slice (I20).
//
// Thread safety: free functions.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_NEXT_BLOCK_AUDIT_H_
#define QUIRE_TESTS_SCHEDULER_CORE_NEXT_BLOCK_AUDIT_H_

#include <set>
#include <string>

#include "common/step/step_plan.h"
#include "scheduler/core/block_map.h"

namespace quire {

// Returns "" or the fault of one hinted block. `hinted`: the blocks that were hinted before.
inline std::string FaultOfHint(BlockId block, const BlockMap& map, std::set<BlockId>& hinted) {
  if (block <= kNullBlockId || static_cast<size_t>(block) > map.cells.size()) {
    return "a next block is of the pool";
  }
  const BlockMapCell& cell = map.cells[static_cast<size_t>(block) - 1];
  if (cell.num_active + cell.num_leaving > 0) {
    return "a next block is free";
  }
  return hinted.insert(block).second ? "" : "a block is next for one sequence";
}

// Returns "" or the fault. REQUIRES: each cell of the map is one block, and the map was taken when
// the plan was made.
inline std::string FaultOfNextBlocks(const StepPlan& plan, const BlockMap& map) {
  std::string fault;
  std::set<BlockId> hinted;
  for (const SequenceSlice& slice : plan.slices) {
    if (slice.next_block_id.has_value() && fault.empty()) {
      fault = FaultOfHint(*slice.next_block_id, map, hinted);
    }
    if (!plan.spare.block_ids.empty() && slice.handle == plan.spare.handle) {
      fault = "a spare window has no slice";
    }
  }
  hinted.clear();
  for (const BlockId block : plan.spare.block_ids) {
    fault = fault.empty() ? FaultOfHint(block, map, hinted) : fault;
  }
  return fault;
}

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_NEXT_BLOCK_AUDIT_H_
