#include "worker/runtime/next_step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace quire {
namespace {

// Returns whether the slice's first new block is `next_block_id`; kNullBlockId stands for any.
// Later blocks have no influence on a slice of one token.
bool HasNextBlock(const SequenceSlice& slice, BlockId next_block_id) {
  return next_block_id == kNullBlockId ||
         (!slice.new_block_ids.empty() && slice.new_block_ids.front() == next_block_id);
}

}  // namespace

std::vector<ScheduledSlice> PredictNextStep(const StepPlan& plan,
                                            const std::vector<ScheduledSlice>& slices,
                                            const SequenceTable& sequences,
                                            const StepLimits& limits) {
  std::vector<ScheduledSlice> predicted;
  predicted.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!sequences.View(slices[i].handle).has_value() ||
        plan.slices[i].forced_token_id.has_value()) {
      return {};
    }
    const SequenceState& sequence = *slices[i].sequence;
    const int32_t num_tokens = sequence.num_known_tokens();
    const bool needs_block =
        int64_t{num_tokens} > std::ssize(sequence.block_ids) * int64_t{limits.block_size_tokens};
    const BlockId next_block_id =
        needs_block ? plan.slices[i].next_block_id.value_or(kNullBlockId) : kNullBlockId;
    if (sequence.num_computed_tokens + 1 != num_tokens || num_tokens >= limits.max_model_len ||
        (needs_block && next_block_id == kNullBlockId)) {
      return {};
    }
    predicted.push_back({.handle = slices[i].handle,
                         .num_tokens = 1,
                         .sequence = slices[i].sequence,
                         .next_block_id = next_block_id});
  }
  return predicted;
}

// Lengths need no check: a predicted sequence lacks K and V of one token, so its slice has one
// token. A plan with introductions never matches, because they can give a handle to another
// sequence.
bool IsPredicted(const StepPlan& plan, const std::vector<ScheduledSlice>& predicted) {
  return plan.introductions.empty() &&
         std::equal(plan.slices.begin(),
                    plan.slices.end(),
                    predicted.begin(),
                    predicted.end(),
                    [](const SequenceSlice& slice, const ScheduledSlice& expected) {
                      return slice.handle == expected.handle &&
                             !slice.forced_token_id.has_value() &&
                             HasNextBlock(slice, expected.next_block_id);
                    });
}

}  // namespace quire
