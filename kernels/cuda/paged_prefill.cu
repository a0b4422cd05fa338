// Prefill: checks what the kernels take for granted, and picks the one for the device and the
// head_dim. The attention itself is in paged_prefill.cuh and paged_prefill_wgmma.cuh.
#include <bit>
#include <cstdint>

#include "kernels/cuda/device/capability.h"
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

// Head sizes that are whole swizzled rows of 64 elements.
template <typename Body>
int DispatchWgmmaHeadDim(int32_t head_dim, Body&& body) {
  switch (head_dim) {
    case 64:
      return body.template operator()<64>();
    case 128:
      return body.template operator()<128>();
    case 256:
      return body.template operator()<256>();
    default:
      return kUnsupported;
  }
}

// 0 where there is a kernel on warpgroup products for these.
int CheckWgmma(DType dtype, DType cache_dtype, int32_t head_dim) {
  // Code for compute capability 9.0a runs on no other device.
  constexpr int32_t kCapability = 90;
  int32_t capability = 0;
  if (int error = QueryComputeCapability(&capability); error != 0) {
    return error;
  }
  if (capability != kCapability || cache_dtype != dtype) {
    return kUnsupported;
  }
  return DispatchElement(dtype, [&]<typename T>() {
    return DispatchWgmmaHeadDim(head_dim, []<int kHeadDim>() { return 0; });
  });
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
  if (args.kernel != PrefillKernel::kMma) {
    const int error = CheckWgmma(attention.dtype, layout.dtype, layout.head_dim);
    if (error == 0) {
      return DispatchWgmmaHeadDim(layout.head_dim, [&]<int kHeadDim>() {
        return RunWgmmaPrefill<kHeadDim>(params, stream);
      });
    }
    if (error != kUnsupported || args.kernel == PrefillKernel::kWgmma) {
      return error;
    }
  }
  return DispatchHeadDim(layout.head_dim,
                         [&]<int kHeadDim>() { return RunPrefill<kHeadDim>(params, stream); });
}

}  // namespace quire::gpu
