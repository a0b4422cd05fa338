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

int CreateEvent(Event* event) { return cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event)); }

int DestroyEvent(Event event) { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

int RecordEvent(Event event, Stream stream) {
  return cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream));
}

int WaitForEvent(Event event, Stream stream) {
  return cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0);
}

int ElapsedMilliseconds(Event begin, Event end, float* milliseconds) {
  return cudaEventElapsedTime(
      milliseconds, static_cast<cudaEvent_t>(begin), static_cast<cudaEvent_t>(end));
}

int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return cudaMemcpyAsync(
      to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream));
}

int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream) {
#if CUDART_VERSION >= 13000
  cudaMemcpyAttributes attributes = {};
  // The sources are read in stream order: what is copied may have been written by a kernel before.
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first_of_attributes = 0;
  return cudaMemcpyBatchAsync(to,
                              from,
                              bytes,
                              count,
                              &attributes,
                              &first_of_attributes,
                              1,
                              static_cast<cudaStream_t>(stream));
#else
  static_cast<void>(to), static_cast<void>(from), static_cast<void>(bytes);
  static_cast<void>(count), static_cast<void>(stream);
  return kUnsupported;
#endif
}

}  // namespace quire::gpu
