// What benchmarks need of a device beyond kernels/cuda/runtime.h: facts, and copies inside the
// device. The emulated build measures nothing; it is there so that the benchmarks can be tried
// without a GPU.
//
// Errors: 0 or a cudaError_t, as runtime.h.
#ifndef QUIRE_TESTS_GPU_BENCH_DEVICE_H_
#define QUIRE_TESTS_GPU_BENCH_DEVICE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

struct DeviceFacts {
  int64_t l2_bytes = 0;
  int32_t driver_version = 0;   // as CUDA writes it, 13000
  int32_t runtime_version = 0;  // the same
};
int QueryFacts(DeviceFacts* facts);

int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_DEVICE_H_
