// What the launcher of prefill and the kernels of each head_dim have in common.
//
// Thread safety: functions without state.
#ifndef QUIRE_KERNELS_CUDA_PAGED_PREFILL_H_
#define QUIRE_KERNELS_CUDA_PAGED_PREFILL_H_

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// The arguments of Prefill with what the host works out once.
struct PrefillParams {
  PagedAttentionParams attention;
  PrefillPlan plan;
  DType activations = DType::kBF16;
  int32_t block_shift = 0;              // log2 of the block size
  int32_t num_queries_per_kv_head = 0;  // the group
  // Scores are products q . k times a positive number and nothing else.
  bool has_plain_scores = true;
};

// The cache is of the activations' type or kF8E4M3, else kUnsupported. One .cu file defines each
// head_dim.
template <int kHeadDim>
int RunPrefill(const PrefillParams& params, Stream stream);

// The same on warpgroup products; the cache is of the activations' type, else kUnsupported.
template <int kHeadDim>
int RunWgmmaPrefill(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PAGED_PREFILL_H_
