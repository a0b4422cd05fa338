// QueryComputeCapability: what the current device can do; 90 is sm_90. The emulated device is an
// H200.
//
// Thread safety: as the CUDA runtime.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_CAPABILITY_H_
#define QUIRE_KERNELS_CUDA_DEVICE_CAPABILITY_H_

#include <cstdint>

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// 0 or a cudaError_t.
inline int QueryComputeCapability(int32_t* capability) {
#ifdef __CUDACC__
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // reported here; a later launch must not report it again
    return static_cast<int>(error);
  }
  *capability = major * 10 + minor;
#else
  *capability = 90;
#endif
  return 0;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_CAPABILITY_H_
