#include "kernels/gpu/step_memory.h"

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"

namespace quire {

void StepMemory::SetWindows(const std::set<int32_t>& windows) {
  split_starts_.clear();
  for (const int32_t window : windows) {
    split_starts_.try_emplace(window, api_);
  }
}

absl::Status StepMemory::Reserve(const StepNeeds& needs) {
  QUIRE_RETURN_IF_ERROR(staging_.Reserve(needs.input_bytes));
  QUIRE_RETURN_IF_ERROR(inputs_.Reserve(needs.input_bytes));
  QUIRE_RETURN_IF_ERROR(tables_.Reserve(needs.table_bytes));
  QUIRE_RETURN_IF_ERROR(partials_.Reserve(needs.partial_bytes));
  QUIRE_RETURN_IF_ERROR(counters_.Reserve(needs.counter_bytes));
  for (auto& [window, split_start] : split_starts_) {
    QUIRE_RETURN_IF_ERROR(split_start.Reserve(needs.split_start_bytes));
  }
  QUIRE_RETURN_IF_ERROR(ReserveBlockPairs());
  QUIRE_RETURN_IF_ERROR(fp8_rows_.Reserve(needs.fp8_rows_bytes));
  QUIRE_RETURN_IF_ERROR(fp8_scales_.Reserve(needs.fp8_scales_bytes));
  return gathered_parts_.Reserve(needs.gathered_bytes);
}

absl::Status StepMemory::ReserveBlockPairs() {
  return block_pairs_.Reserve(2 * kCopiesPerPass * int64_t{sizeof(BlockId)});
}

void StepMemory::ClearCounters(gpu::Stream stream) {
  const auto bytes = static_cast<size_t>(counters_.capacity_bytes());
  if (bytes > 0) {
    RequireGpu(api_, api_.fill_bytes(counters_.data(), 0, bytes, stream), "clear counters");
  }
}

int32_t* StepMemory::split_starts(int32_t sliding_window) const {
  const auto found = split_starts_.find(sliding_window);
  QUIRE_CHECK(found != split_starts_.end());
  return static_cast<int32_t*>(found->second.data());
}

}  // namespace quire
