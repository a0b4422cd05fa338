// What the launcher of decode and the kernels of each head_dim have in common.
//
// Thread safety: functions without state.
#ifndef QUIRE_KERNELS_CUDA_PAGED_DECODE_H_
#define QUIRE_KERNELS_CUDA_PAGED_DECODE_H_

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// The arguments of Decode with what the host works out once.
struct DecodeParams {
  PagedAttentionParams attention;
  DecodePlan plan;
  DType activations = DType::kBF16;
  int32_t block_shift = 0;              // log2 of the block size
  int32_t num_queries_per_kv_head = 0;  // the group
  // A group of more than 16 query heads is computed 16 at a time, by as many items.
  int32_t num_row_groups = 0;
};

// Both: the cache is of the activations' type or kF8E4M3, else kUnsupported. One .cu file defines
// each head_dim.
template <int kHeadDim>
int RunDecode(const DecodeParams& params, Stream stream);
template <int kHeadDim>
int CountDecodeCtas(DType activations, DType cache_dtype, int32_t* num_ctas);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PAGED_DECODE_H_
