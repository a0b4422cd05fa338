#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include "tests/gpu/bench_device.h"

namespace quire::gpu {

int QueryFacts(DeviceFacts* facts) {
  int device = 0;
  int l2_bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  error = error != cudaSuccess ? error
                               : cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device);
  error = error != cudaSuccess ? error : cudaDriverGetVersion(&facts->driver_version);
  error = error != cudaSuccess ? error : cudaRuntimeGetVersion(&facts->runtime_version);
  facts->l2_bytes = l2_bytes;
  return error;
}

int StartProfiler() { return cudaProfilerStart(); }
int StopProfiler() { return cudaProfilerStop(); }

}  // namespace quire::gpu
