#include "scheduler/sim/swap_cost.h"

#include <algorithm>

#include "common/base/math.h"

namespace quire {
namespace {

// Time to submit one asynchronous copy, back to back with others. NVIDIA's introduction to CUDA
// graphs measures 3.8 us for a small kernel; a copy is submitted along the same path.
constexpr double kSubmitSeconds = 3.8e-6;

}  // namespace

CopyCost CostOfCopy(const Platform& platform,
                    BlockLayout layout,
                    int32_t block_size_tokens,
                    int64_t num_blocks) {
  const int64_t pieces =
      layout == BlockLayout::kLayerMajor ? int64_t{2} * platform.model.num_layers : 1;
  const double submitted = static_cast<double>(num_blocks * pieces) * kSubmitSeconds;
  // Each GPU moves its share of the heads over its own link.
  const double bytes =
      static_cast<double>(num_blocks * block_size_tokens * platform.model.kv_bytes_per_token()) /
      platform.num_gpus;
  // The copy engine works while the host submits: the slower of the two decides.
  return {.submit_s = submitted, .total_s = std::max(submitted, bytes / platform.gpu.host_rate)};
}

double SwapSeconds(const Platform& platform,
                   BlockLayout layout,
                   int32_t block_size_tokens,
                   int32_t num_tokens) {
  const int64_t num_blocks = DivCeil(num_tokens, block_size_tokens);
  return 2 * CostOfCopy(platform, layout, block_size_tokens, num_blocks).total_s;
}

double RecomputeSeconds(const Platform& platform, int32_t block_size_tokens, int32_t num_tokens) {
  const CostModel cost(platform, block_size_tokens);
  return cost.LinearSeconds(num_tokens) + cost.AttentionSeconds(num_tokens) +
         cost.ReduceSeconds(num_tokens);
}

}  // namespace quire
