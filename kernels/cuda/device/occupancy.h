// CountResidentCtas returns how many CTAs of a kernel the device can hold at once, which is the
// size of a persistent grid.
//
// Thread safety: any thread may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_OCCUPANCY_H_
#define QUIRE_KERNELS_CUDA_DEVICE_OCCUPANCY_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

#ifdef __CUDACC__

template <typename... Parameters>
int CountResidentCtas(void (*kernel)(Parameters...),
                      int num_threads,
                      size_t shared_bytes,
                      int32_t* num_ctas) {
  const void* function = reinterpret_cast<const void*>(kernel);
  int device = 0;
  int num_sms = 0;
  int ctas_per_sm = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = AllowSharedBytes(device, function, shared_bytes);
  }
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &ctas_per_sm, function, num_threads, shared_bytes);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears the error, else a later launch would report it
    return static_cast<int>(error);
  }
  *num_ctas = num_sms * ctas_per_sm;
  return 0;
}

#else

// Sets *num_ctas to 3. The emulator runs CTAs one after another, but with a single CTA tests would
// not cover the division of work among CTAs.
template <typename... Parameters>
int CountResidentCtas(void (*)(Parameters...), int, size_t shared_bytes, int32_t* num_ctas) {
  *num_ctas = 3;
  return shared_bytes <= emulator::SharedBytesLimit() ? 0 : emulator::kErrorInvalidValue;
}

#endif

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_OCCUPANCY_H_
