// Turns types and sizes known at run time into template arguments. Each function calls body with
// such an argument and returns body's result, or returns kUnsupported if there is no kernel.
//
// Usage:
//   return DispatchElement(args.dtype, [&]<typename T>() {
//     return DispatchHeadDim(args.head_dim, [&]<int kHeadDim>() {
//       return QUIRE_LAUNCH((Rotate<T, kHeadDim>), grid, cta, 0, stream, params);
//     });
//   });
//
// Thread safety: any thread of the host may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_DISPATCH_H_
#define QUIRE_KERNELS_CUDA_DEVICE_DISPATCH_H_

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// Template argument: Bf16 or F16, the types of activations.
template <typename Body>
int DispatchElement(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kBF16:
      return body.template operator()<Bf16>();
    case DType::kF16:
      return body.template operator()<F16>();
    default:
      return kUnsupported;
  }
}

// Template argument: Bf16, F16 or float.
template <typename Body>
int DispatchElementOrFloat(DType dtype, Body&& body) {
  if (dtype == DType::kF32) {
    return body.template operator()<float>();
  }
  return DispatchElement(dtype, body);
}

// Template arguments: the activations' type T, and the cache's type, which is T or F8E4M3.
template <typename Body>
int DispatchCacheElement(DType dtype, DType cache_dtype, Body&& body) {
  return DispatchElement(dtype, [&]<typename T>() {
    if (cache_dtype == DType::kF8E4M3) {
      return body.template operator()<T, F8E4M3>();
    }
    return cache_dtype == dtype ? body.template operator()<T, T>() : kUnsupported;
  });
}

template <typename Body>
int DispatchHeadDim(int32_t head_dim, Body&& body) {
  switch (head_dim) {
    case 64:
      return body.template operator()<64>();
    case 80:
      return body.template operator()<80>();
    case 96:
      return body.template operator()<96>();
    case 112:
      return body.template operator()<112>();
    case 128:
      return body.template operator()<128>();
    case 256:
      return body.template operator()<256>();
    default:
      return kUnsupported;
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_DISPATCH_H_
