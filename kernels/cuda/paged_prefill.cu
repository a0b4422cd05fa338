// Prefill: checks what the kernels take for granted, and picks the one for the head_dim. The
// attention itself is in paged_prefill.cuh.
#include <bit>
#include <cstdint>

#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/paged_prefill.h"

namespace quire::gpu {
namespace {

// Keys and values of a token lie at the same place of their planes: one look-up serves both.
bool IsSupported(const KvCacheLayout& layout) {
  return layout.key_dim_stride == 1 && layout.key_slot_stride == layout.value_slot_stride &&
         layout.block_size_tokens >= 8 &&
         std::has_single_bit(static_cast<uint32_t>(layout.block_size_tokens));
}

}  // namespace

int Prefill(const PrefillArgs& args, Stream stream) {
  const AttentionArgs& attention = args.attention;
  const KvCacheLayout& layout = attention.cache.layout;
  if (!IsSupported(layout)) {
    return kUnsupported;
  }
  PrefillParams params;
  params.prefill = args;
  params.block_shift = std::countr_zero(static_cast<uint32_t>(layout.block_size_tokens));
  params.num_queries_per_kv_head = attention.num_heads / layout.num_kv_heads;
  params.has_plain_scores = attention.soft_cap <= 0.0F && attention.alibi_slopes == nullptr &&
                            attention.scale * attention.k_scale > 0.0F;
  return DispatchHeadDim(layout.head_dim,
                         [&]<int kHeadDim>() { return RunPrefill<kHeadDim>(params, stream); });
}

}  // namespace quire::gpu
