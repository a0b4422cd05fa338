// Device functions that benchmarks need beyond kernels/cuda/runtime.h.
//
// Thread safety: as runtime.h.
// Errors:        0 or a cudaError_t, as runtime.h.
#ifndef QUIRE_TESTS_GPU_BENCH_DEVICE_H_
#define QUIRE_TESTS_GPU_BENCH_DEVICE_H_

#include <cstdint>

namespace quire::gpu {

struct DeviceFacts {
  int64_t l2_bytes = 0;
  int32_t driver_version = 0;   // as CUDA writes it, 13000
  int32_t runtime_version = 0;  // the same
};
int QueryFacts(DeviceFacts* facts);

// Between the two a profiler that was told to wait for them records kernels. Without a profiler
// they do nothing.
int StartProfiler();
int StopProfiler();

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_DEVICE_H_
