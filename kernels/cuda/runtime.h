// Memory, copies and waiting on the device that the kernels run on: cudart in the CUDA build, the
// heap in the emulated one.
//
// Thread safety: as the CUDA runtime; in the emulated build one caller at a time.
// Errors:        0 or a cudaError_t; ErrorText says it in words.
#ifndef QUIRE_KERNELS_CUDA_RUNTIME_H_
#define QUIRE_KERNELS_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

struct DeviceInfo {
  char name[64] = {};
  int32_t index = 0;
  int32_t compute_capability = 0;  // 90: sm_90
  int32_t num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Also makes the device of this number the one that all other calls mean. An error when there is no
// driver or no such device.
int QueryDevice(int32_t device, DeviceInfo* info);

// 256-byte aligned. The emulated build fills the memory with 0xFF bytes, which are NaN in every
// type.
int Allocate(void** pointer, size_t bytes);
int Free(void* pointer);

// Host memory that the device copies from and to without a detour.
int AllocatePinned(void** pointer, size_t bytes);
int FreePinned(void* pointer);

// In stream order. From pinned memory the copy may happen after the call has returned, so that the
// memory may be reused only when something later on the stream is known to be done; other host
// memory is read before the call returns.
int CopyToDevice(void* device, const void* host, size_t bytes, Stream stream);
int CopyToHost(void* host, const void* device, size_t bytes, Stream stream);
// `count` copies between pinned memory and the device, all in one direction, in no order among
// themselves. No source is written by another of them, no place written twice.
int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream);
// Inside of the device; may be recorded.
int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream);
int FillBytes(void* device, int byte, size_t bytes, Stream stream);

// Waits until everything enqueued before is done, and reports what failed meanwhile.
int Synchronize(Stream stream);

int CreateStream(Stream* stream);
int DestroyStream(Stream stream);

// A point on a stream: what was enqueued before it was recorded. Recording again moves it.
using Event = void*;
int CreateEvent(Event* event);
int DestroyEvent(Event event);
int RecordEvent(Event event, Stream stream);
// What is enqueued on the stream from now on runs after the event.
int WaitForEvent(Event event, Stream stream);
// Whether the event has happened; does not wait.
int QueryEvent(Event event, bool* has_happened);
// Waits until it has happened.
int SynchronizeEvent(Event event);
// Between two events that have happened.
int ElapsedMilliseconds(Event begin, Event end, float* milliseconds);

// What is enqueued between the two calls is recorded instead of run: kernels with the values that
// their arguments have now, and products. LaunchGraph runs the record, any number of times. Memory
// must not be allocated, copied from or to the host or waited for while recording.
using Graph = void*;
int BeginGraph(Stream stream);
int EndGraph(Stream stream, Graph* graph);
int LaunchGraph(Graph graph, Stream stream);
int DestroyGraph(Graph graph);
// Whether the stream is between BeginGraph and EndGraph.
int IsRecording(Stream stream, bool* is_recording);

const char* ErrorText(int error);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_RUNTIME_H_
