// What benchmarks need of a device beyond kernels/cuda/runtime.h: a clock in stream order, copies
// inside the device, many copies by one call. The emulated build measures nothing; it is there so
// that the benchmarks can be tried without a GPU.
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

using Event = void*;
int CreateEvent(Event* event);
int DestroyEvent(Event event);
int RecordEvent(Event event, Stream stream);
// What is enqueued on the stream from now on runs after the event.
int WaitForEvent(Event event, Stream stream);
// Both have happened: the stream they were recorded on was waited for.
int ElapsedMilliseconds(Event begin, Event end, float* milliseconds);

int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream);

// count copies between pinned host memory and the device, either direction, in no particular order.
// kUnsupported where this CUDA has no such call. Not on the default stream.
int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_DEVICE_H_
