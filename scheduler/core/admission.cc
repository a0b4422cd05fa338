#include "scheduler/core/admission.h"

#include <algorithm>

#include "common/base/math.h"

namespace quire {

bool FitsContext(int64_t num_tokens, const StepLimits& limits) {
  return num_tokens < limits.max_model_len;
}

bool FitsPool(const Request& request, int32_t num_sequences, const StepLimits& limits) {
  int64_t num_tokens =
      std::min<int64_t>(static_cast<int64_t>(request.prompt_token_ids.size()) + request.max_tokens,
                        limits.max_model_len);
  int64_t num_blocks = num_sequences * DivCeil(num_tokens, limits.block_size_tokens);
  return num_sequences <= limits.max_sequences && num_blocks <= limits.num_blocks - 1;
}

bool FitsEver(const SequenceGroup& group, const StepLimits& limits) {
  // A beam search under way has counted on so many tokens.
  if (group.beams.has_value() &&
      static_cast<int64_t>(group.request().prompt_token_ids.size()) + group.beams->max_tokens >
          limits.max_model_len) {
    return false;
  }
  bool fits_context = std::all_of(
      group.sequences().begin(), group.sequences().end(), [&limits](const Sequence& sequence) {
        return sequence.is_finished() || FitsContext(sequence.num_tokens(), limits);
      });
  return fits_context && FitsPool(group.request(), group.num_live_sequences(), limits);
}

AllocStatus Admit(const SequenceGroup& group, const StepLimits& limits, const Room& room) {
  if (!FitsEver(group, limits)) {
    return AllocStatus::kNever;
  }
  int64_t num_blocks = 0;
  for (const Sequence& sequence : group.sequences()) {
    if (!sequence.is_finished()) {
      num_blocks += DivCeil(sequence.num_tokens(), limits.block_size_tokens);
    }
  }
  num_blocks -= room.num_shared_blocks;
  int64_t num_available = int64_t{room.num_free_blocks} - room.num_watermark_blocks;
  bool has_room =
      num_blocks <= num_available && group.num_live_sequences() <= room.num_free_handles;
  return has_room ? AllocStatus::kOk : AllocStatus::kLater;
}

}  // namespace quire
