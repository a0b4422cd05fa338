#include "scheduler/core/admission.h"

#include <algorithm>

#include "common/base/math.h"

namespace quire {

bool FitsContext(int64_t num_tokens, const StepLimits& limits) {
  return num_tokens < limits.max_model_len;
}

int32_t NumBlocksInStep(int32_t num_tokens, int32_t num_step_tokens, const StepLimits& limits) {
  const int32_t num_all = DivCeil(num_tokens, limits.block_size_tokens);
  if (limits.sliding_window == 0) {
    return num_all;
  }
  const int64_t num_reached = int64_t{limits.sliding_window} + num_step_tokens - 2;
  return static_cast<int32_t>(
      std::min<int64_t>(num_all, DivCeil(num_reached, int64_t{limits.block_size_tokens}) + 1));
}

int64_t NumBlocksAtMost(int32_t num_sequences, int64_t num_tokens, const StepLimits& limits) {
  const int64_t block_size = limits.block_size_tokens;
  const int64_t num_all = num_sequences * DivCeil(num_tokens, block_size);
  if (limits.sliding_window == 0) {
    return num_all;
  }
  // NumBlocksInStep bounds the blocks of a sequence with n tokens in the step by
  // ceil((W + n - 2) / B) + 1, which equals floor((W + n + B - 3) / B) + 1. A sum of floors is at
  // most the floor of the sum, and the sum of n over all sequences is at most max_tokens_per_step.
  const int64_t num_windows_tokens = num_sequences * (limits.sliding_window + block_size - 3);
  const int64_t num_behind_window =
      num_sequences + (num_windows_tokens + limits.max_tokens_per_step) / block_size;
  return std::min(num_all, num_behind_window);
}

int64_t NumBlocksToCompute(const SequenceGroup& group,
                           int32_t num_shared_blocks,
                           const StepLimits& limits) {
  int32_t num_sequences = 0;
  int64_t num_blocks = 0;
  int64_t num_tokens_max = 0;
  for (const Sequence& sequence : group.sequences()) {
    if (!sequence.is_finished()) {
      ++num_sequences;
      num_blocks += DivCeil(sequence.num_tokens(), limits.block_size_tokens);
      num_tokens_max = std::max<int64_t>(num_tokens_max, sequence.num_tokens());
    }
  }
  return std::min(num_blocks - num_shared_blocks,
                  NumBlocksAtMost(num_sequences, num_tokens_max, limits));
}

bool FitsPool(const Request& request, int32_t num_sequences, const StepLimits& limits) {
  return num_sequences <= limits.max_sequences &&
         NumBlocksAtMost(num_sequences, request.num_tokens_at_most(), limits) <=
             limits.num_blocks - 1;
}

bool FitsEver(const SequenceGroup& group, const StepLimits& limits) {
  return group.request().num_tokens_at_most() <= limits.max_model_len &&
         FitsPool(group.request(), group.num_live_sequences(), limits);
}

AllocStatus Admit(const SequenceGroup& group, const StepLimits& limits, const Room& room) {
  if (!FitsEver(group, limits)) {
    return AllocStatus::kNever;
  }
  const int64_t num_blocks = NumBlocksToCompute(group, room.num_shared_blocks, limits);
  int64_t num_available = int64_t{room.num_free_blocks} - room.num_watermark_blocks;
  bool has_room =
      num_blocks <= num_available && group.num_live_sequences() <= room.num_free_handles;
  return has_room ? AllocStatus::kOk : AllocStatus::kLater;
}

}  // namespace quire
