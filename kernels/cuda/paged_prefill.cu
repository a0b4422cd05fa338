// Prefill: checks the kernels' requirements, and picks the kernel for the device and head_dim. The
// attention itself is in paged_prefill.cuh, paged_prefill_wgmma.cuh and prefill_persistent.cuh.
#include <bit>
#include <cstdint>

#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/paged_prefill.h"

namespace quire::gpu {
namespace {

// Calls body with head_dim as template argument. Returns kUnsupported unless head_dim is 64, 128 or
// 256. Only multiples of 64 are possible, because a swizzled row has 64 elements.
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

// Returns 0 if kernels on warpgroup products (wgmma) can run on the device for these types.
int CheckWgmma(DType activations, DType cache_dtype) {
  // The kernels are compiled for 9.0a, and such code runs only on compute capability 9.0.
  constexpr int32_t kCapability = 90;
  int32_t capability = 0;
  if (int error = QueryComputeCapability(&capability); error != 0) {
    return error;
  }
  if (capability != kCapability || cache_dtype != activations) {
    return kUnsupported;
  }
  return DispatchElement(activations, []<typename T>() { return 0; });
}

// Whether kFastest runs kPersistent instead of kWgmma. False until a measurement on a device shows
// that kPersistent is faster.
constexpr bool kFastestIsPersistent = false;

// Runs kPersistent or kWgmma. Returns kUnsupported if the kernel cannot run.
int RunOnWarpgroups(const PrefillParams& params, Stream stream) {
  const KvCacheLayout& layout = params.attention.cache.layout;
  if (const int error = CheckWgmma(params.activations, layout.dtype); error != 0) {
    return error;
  }
  const PrefillPlan& plan = params.plan;
  const bool is_persistent =
      plan.kernel == PrefillKernel::kPersistent ||
      (plan.kernel == PrefillKernel::kFastest && kFastestIsPersistent && plan.next_item != nullptr);
  if (is_persistent) {
    return DispatchHeadDim(layout.head_dim, [&]<int kHeadDim>() {
      return RunPersistentPrefill<kHeadDim>(params, stream);
    });
  }
  return DispatchWgmmaHeadDim(
      layout.head_dim, [&]<int kHeadDim>() { return RunWgmmaPrefill<kHeadDim>(params, stream); });
}

}  // namespace

int Prefill(const PagedAttentionParams& params,
            const PrefillPlan& plan,
            DType activations,
            Stream stream) {
  const KvCacheLayout& layout = params.cache.layout;
  if (!HasSwizzledRows(layout) || !HasPlainSoftmax(params)) {
    return kUnsupported;
  }
  PrefillParams prefill = {.attention = params, .plan = plan, .activations = activations};
  prefill.score_scale = params.scale * params.k_scale * kLog2E;
  prefill.block_shift = std::countr_zero(static_cast<uint32_t>(layout.block_size_tokens));
  prefill.num_queries_per_kv_head = params.num_heads / layout.num_kv_heads;
  prefill.has_plain_scores = params.alibi_slopes == nullptr && params.scale * params.k_scale > 0.0F;
  if (plan.kernel != PrefillKernel::kMma) {
    const int error = RunOnWarpgroups(prefill, stream);
    if (error != kUnsupported || plan.kernel != PrefillKernel::kFastest) {
      return error;
    }
  }
  return DispatchHeadDim(layout.head_dim,
                         [&]<int kHeadDim>() { return RunPrefill<kHeadDim>(prefill, stream); });
}

}  // namespace quire::gpu
