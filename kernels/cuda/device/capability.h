// Capabilities of the current device. The emulated device is an H200; tests may reduce its shared
// memory.
//
// Thread safety: as the CUDA runtime.
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

// Sets *capability, for example to 90 for sm_90. Returns 0 or a cudaError_t.
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
    cudaGetLastError();  // clears the error, else a later launch would report it
    return static_cast<int>(error);
  }
  *capability = major * 10 + minor;
#else
  *capability = 90;
#endif
  return 0;
}

// Sets *num_sms to the number of SMs. Returns 0 or a cudaError_t. The emulated device has 3,
// although it runs CTAs one after another, because with a single CTA tests would not cover the
// division of work among CTAs.
inline int QuerySms(int32_t* num_sms) {
#ifdef __CUDACC__
  int device = 0;
  int value = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears the error, else a later launch would report it
    return static_cast<int>(error);
  }
  *num_sms = value;
#else
  *num_sms = 3;
#endif
  return 0;
}

// Sets *bytes to the largest shared memory that a CTA can have. Returns 0 or a cudaError_t.
inline int QuerySharedBytes(int32_t* bytes) {
#ifdef __CUDACC__
  int device = 0;
  int value = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears the error, else a later launch would report it
    return static_cast<int>(error);
  }
  *bytes = value;
#else
  *bytes = static_cast<int32_t>(emulator::SharedBytesLimit());
#endif
  return 0;
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
