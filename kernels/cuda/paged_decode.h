// Declarations that the launcher of decode (paged_decode.cu) and the kernels share.
//
// Thread safety: any thread may call the functions.
#ifndef QUIRE_KERNELS_CUDA_PAGED_DECODE_H_
#define QUIRE_KERNELS_CUDA_PAGED_DECODE_H_

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// The arguments of Decode, and values that the host derives from them once.
struct DecodeParams {
  PagedAttentionParams attention;
  DecodePlan plan;
  DType activations = DType::kBF16;
  int32_t block_shift = 0;              // log2 of the block size
  int32_t num_queries_per_kv_head = 0;  // query heads that share one KV head
  // Number of row groups per KV head. The query heads of a KV head are divided into row groups of
  // at most 16. A work item computes one row group over one split of the context.
  int32_t num_row_groups = 0;
};

// RunDecode and CountDecodeCtas return kUnsupported unless the cache has the activations' type or
// kF8E4M3. Each head_dim is instantiated in a separate .cu file.
template <int kHeadDim>
int RunDecode(const DecodeParams& params, Stream stream);
template <int kHeadDim>
int CountDecodeCtas(DType activations, DType cache_dtype, int32_t* num_ctas);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PAGED_DECODE_H_
