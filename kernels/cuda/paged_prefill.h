// Declarations that the launcher of prefill (paged_prefill.cu) and the kernels share.
//
// Thread safety: any thread may call the functions.
#ifndef QUIRE_KERNELS_CUDA_PAGED_PREFILL_H_
#define QUIRE_KERNELS_CUDA_PAGED_PREFILL_H_

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// The arguments of Prefill, and values that the host derives from them once.
struct PrefillParams {
  PagedAttentionParams attention;
  PrefillPlan plan;
  DType activations = DType::kBF16;
  int32_t block_shift = 0;              // log2 of the block size
  int32_t num_queries_per_kv_head = 0;  // query heads that share one KV head
  // Factor that converts a product q . k to a score in base 2. The host computes it, because
  // computing it in the kernel takes a register: at head_dim 256 over e4m3, registers spilled.
  float score_scale = 1.0F;
  // True if each score is q . k times a positive number, without an ALiBi bias.
  bool has_plain_scores = true;
};

// Returns kUnsupported unless the cache has the activations' type or kF8E4M3. Each head_dim is
// instantiated in a separate .cu file.
template <int kHeadDim>
int RunPrefill(const PrefillParams& params, Stream stream);

// Computes the same as RunPrefill up to rounding, by warpgroup products (wgmma). Returns
// kUnsupported unless the cache has the activations' type.
template <int kHeadDim>
int RunWgmmaPrefill(const PrefillParams& params, Stream stream);

// Computes the same as RunWgmmaPrefill, but in a persistent grid whose CTAs take items from the
// counter plan.next_item. Also returns kUnsupported if next_item is null.
template <int kHeadDim>
int RunPersistentPrefill(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PAGED_PREFILL_H_
