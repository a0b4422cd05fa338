#include "scheduler/core/next_blocks.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace quire {
namespace {

// Returns true if the sequence will go on decoding after this step, and will need a new block then.
bool TakesBlockNext(const UnansweredStep::Slice& slice, const KvCacheManager& kv_cache) {
  return slice.samples && kv_cache.NumBlocksToAppend(slice.sequence->table, 1) > 0 &&
         slice.sequence->num_output_tokens() + 1 < slice.group->request().max_tokens;
}

// Orders slices as StepPlanner::PlanRunning will order them in the next step. The order in this
// step can differ, because groups that just started were planned last.
bool IsServedBefore(const UnansweredStep::Slice& a, const UnansweredStep::Slice& b) {
  return a.group == b.group ? a.sequence->sequence_index() < b.sequence->sequence_index()
                            : a.group->rank() < b.group->rank();
}

void NameNextOfSlices(CoreState& state, StepPlan& plan) {
  UnansweredStep& step = state.step;
  const KvCacheManager& kv_cache = state.epoch->kv_cache;
  step.growing.clear();
  for (size_t i = 0; i < step.slices.size(); ++i) {
    if (TakesBlockNext(step.slices[i], kv_cache)) {
      step.growing.push_back(i);
    }
  }
  std::sort(step.growing.begin(), step.growing.end(), [&step](size_t a, size_t b) {
    return IsServedBefore(step.slices[a], step.slices[b]);
  });
  std::vector<const BlockTable*> tables;
  for (const size_t i : step.growing) {
    tables.push_back(&step.slices[i].sequence->table);
  }
  step.next_blocks.clear();
  kv_cache.PeekNextBlocks(tables, step.next_blocks);
  for (size_t k = 0; k < step.next_blocks.size(); ++k) {
    if (step.next_blocks[k] != kNullBlockId) {
      plan.slices[step.growing[k]].next_block_id = step.next_blocks[k];
    }
  }
}

// The blocks named for the next new sequence must stay the same while other sequences grow.
static_assert(kMaxSpareBlocks <= KvCacheManager::kNumFrontBlocks);

void NameSpareWindow(const Epoch& epoch, StepPlan& plan) {
  if (const std::optional<SequenceHandle> handle = epoch.handles.Next()) {
    plan.spare.handle = *handle;
    epoch.kv_cache.PeekFirstBlocks(MaxSpareBlocks(epoch.limits), plan.spare.block_ids);
  }
}

}  // namespace

void NameNextBlocks(CoreState& state, StepPlan& plan) {
  NameNextOfSlices(state, plan);
  NameSpareWindow(*state.epoch, plan);
}

}  // namespace quire
