// Capabilities of the current device. The emulated device is an H200; tests may reduce its shared
// memory.
//
// Thread safety: any thread may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_CAPABILITY_H_
#define QUIRE_KERNELS_CUDA_DEVICE_CAPABILITY_H_

#include <cstdint>

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// Largest shared memory of a CTA, in bytes, by compute capability. A kernel that runs on
// all devices has a version that needs at most kLeastSharedBytes.
inline constexpr int32_t kLeastSharedBytes = 99 * 1024;    // 8.6, 8.9 and 12.x
inline constexpr int32_t kMiddleSharedBytes = 163 * 1024;  // 8.0 and 8.7
inline constexpr int32_t kMostSharedBytes = 227 * 1024;    // 9.0 and 10.x

#ifdef __CUDACC__
// Sets *value to an attribute of the current device. Returns 0 or a cudaError_t.
inline int QueryAttribute(cudaDeviceAttr attribute, int32_t* value) {
  int device = 0;
  int found = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&found, attribute, device);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears the error, else a later launch would report it
    return static_cast<int>(error);
  }
  *value = found;
  return 0;
}
#endif

// Sets *capability, for example to 90 for sm_90. Returns 0 or a cudaError_t.
inline int QueryComputeCapability(int32_t* capability) {
#ifdef __CUDACC__
  int32_t major = 0;
  int32_t minor = 0;
  int error = QueryAttribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error == 0) {
    error = QueryAttribute(cudaDevAttrComputeCapabilityMinor, &minor);
  }
  if (error == 0) {
    *capability = major * 10 + minor;
  }
  return error;
#else
  *capability = 90;
  return 0;
#endif
}

// Sets *num_sms to the number of SMs. Returns 0 or a cudaError_t. The emulated device has 3 SMs,
// although it runs CTAs one after another: with one CTA, tests would not cover the division of work
// among CTAs.
inline int QuerySms(int32_t* num_sms) {
#ifdef __CUDACC__
  return QueryAttribute(cudaDevAttrMultiProcessorCount, num_sms);
#else
  *num_sms = 3;
  return 0;
#endif
}

// Sets *bytes to the largest shared memory that a CTA can have. Returns 0 or a cudaError_t.
inline int QuerySharedBytes(int32_t* bytes) {
#ifdef __CUDACC__
  return QueryAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, bytes);
#else
  *bytes = static_cast<int32_t>(emulator::SharedBytesLimit());
  return 0;
#endif
}

// Calls body with the template argument kMostSharedBytes if a CTA of the current device can have
// kSharedBytes, else with kLeastSharedBytes. Returns body's result, or a cudaError_t. kSharedBytes:
// the shared memory that the kernel needs if body gets kMostSharedBytes.
template <int kSharedBytes, typename Body>
int DispatchSharedBytes(Body&& body) {
  if constexpr (kSharedBytes > kLeastSharedBytes) {
    int32_t bytes = 0;
    if (const int error = QuerySharedBytes(&bytes); error != 0) {
      return error;
    }
    if (bytes < kSharedBytes) {
      return body.template operator()<kLeastSharedBytes>();
    }
  }
  return body.template operator()<kMostSharedBytes>();
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_CAPABILITY_H_
