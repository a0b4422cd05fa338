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
  int32_t driver_version = 0;   // in CUDA's form: 13000 for 13.0
  int32_t runtime_version = 0;  // in the same form
};
int QueryFacts(DeviceFacts* facts);

// A profiler that was told to wait records the kernels between the two calls. Without a profiler
// the calls do nothing.
int StartProfiler();
int StopProfiler();

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_DEVICE_H_
