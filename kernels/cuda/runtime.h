// Devices, their memory, copies, streams, events and graphs. The CUDA build calls cudart. The
// emulated build uses the heap, and queues as streams (emulator/streams.h).
//
// Devices: each thread has a current device, 0 until it calls SetDevice. Memory, streams and events
// belong to the device that was current at their creation, a graph to its stream's device. Kernels,
// products, FillBytes and graphs must run on streams of the current device, and may use only that
// device's memory and pinned memory. A copy must use a stream of the device that has the memory. An
// event must be recorded on streams of its own device; any stream may wait for it. Objects of any
// device may be freed, destroyed and waited for, whichever device is current. The emulated build
// has two devices, and returns an error if a caller breaks these rules.
//
// Thread safety: any thread in the CUDA build; one caller at a time in the emulated build.
// Errors:        0 or a cudaError_t, which ErrorText translates to words. A failure on a stream is
//                reported when the stream is waited for.
// Source:        CUDA C++ Programming Guide, "Multi-Device System".
#ifndef QUIRE_KERNELS_CUDA_RUNTIME_H_
#define QUIRE_KERNELS_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// cudaErrorMemoryAllocation: too little memory on the device, or too little pinned memory.
inline constexpr int kOutOfMemory = 2;

struct DeviceInfo {
  char name[64] = {};
  uint8_t uuid[16] = {};  // unique among all devices of all machines
  int32_t index = 0;
  int32_t compute_capability = 0;  // 90 for sm_90
  int32_t num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Sets *count to the number of devices. Returns an error if there is no driver.
int CountDevices(int32_t* count);
// Makes `device` the calling thread's current device. Returns an error if there is no driver or no
// such device.
int SetDevice(int32_t device);
// Fills *info. Leaves the current device unchanged. Errors: those of SetDevice.
int QueryDevice(int32_t device, DeviceInfo* info);

// Allocates memory of the current device, 256-byte aligned. The emulated build fills the memory
// with 0xFF bytes, which are NaN in every type.
int Allocate(void** pointer, size_t bytes);
// Frees the memory after waiting for all streams of its device. Does nothing for null.
int Free(void* pointer);

// Allocates page-locked host memory, which devices access directly.
int AllocatePinned(void** pointer, size_t bytes);
// REQUIRES: no copy that reads or writes the memory is under way.
int FreePinned(void* pointer);

// Copies in stream order. Reads unpinned host memory before it returns, but may read pinned memory
// later. REQUIRES: the caller changes a pinned source only after a later operation on the stream is
// known to be done.
int CopyToDevice(void* device, const void* host, size_t bytes, Stream stream);
// Copies in stream order. The host may read the copied bytes when a later operation on the stream
// is known to be done.
int CopyToHost(void* host, const void* device, size_t bytes, Stream stream);
// Makes `count` copies between pinned memory and the device, all in one direction, in any order.
// REQUIRES: no destination overlaps the source or destination of another copy.
int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream);
// Copies within the device. The copy may be recorded in a graph.
int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream);
// Copies a matrix of floats into columns of a wider matrix, on the device.
struct ColumnsCopy {
  float* to = nullptr;
  int64_t to_stride = 0;  // distance between rows, in elements
  const float* from = nullptr;
  int64_t from_stride = 0;
  int64_t num_rows = 0;
  int64_t width = 0;
};
int CopyColumns(const ColumnsCopy& copy, Stream stream);
int FillBytes(void* device, int byte, size_t bytes, Stream stream);

// Waits until all operations enqueued on the stream are done, and returns their first error.
int Synchronize(Stream stream);

int CreateStream(Stream* stream);
int DestroyStream(Stream stream);

// A point on a stream. The event happens when all operations enqueued before RecordEvent are done.
// Recording the event again moves it to a new point.
using Event = void*;
int CreateEvent(Event* event);
// Creates an event that ElapsedMilliseconds can read. Such an event costs more to record.
int CreateTimedEvent(Event* event);
int DestroyEvent(Event event);
int RecordEvent(Event event, Stream stream);
// Operations that are enqueued on the stream after this call run after the event.
int WaitForEvent(Event event, Stream stream);
// Sets *has_happened to whether the event has happened, without waiting.
int QueryEvent(Event event, bool* has_happened);
// Waits until the event has happened.
int SynchronizeEvent(Event event);
// Sets *milliseconds to the time from begin to end. REQUIRES: both events are timed and have
// happened.
int ElapsedMilliseconds(Event begin, Event end, float* milliseconds);

// Between BeginGraph and EndGraph, operations enqueued on the stream are recorded instead of run,
// with their arguments' current values. LaunchGraph can run the recorded operations any number
// of times; memory that these operations use must stay allocated. The default stream cannot be
// recorded.
//
// During the recording these calls on the recording thread return an error:
//   - Allocate, Free, AllocatePinned and FreePinned;
//   - on the recorded stream: Synchronize, CopyMany, LaunchGraph, copies from and to unpinned host
//     memory, and WaitForEvent of events that were not recorded on this stream;
//   - QueryEvent and SynchronizeEvent of events recorded on the recorded stream.
// Each such call also invalidates the recording (cudaStreamCaptureModeThreadLocal), so that
// EndGraph returns an error.
using Graph = void*;
int BeginGraph(Stream stream);
// Ends the recording, and allocates the graph's memory on the device. Returns an error, and leaves
// *graph undefined, if the recording has become invalid or if the device lacks memory
// (kOutOfMemory). REQUIRES: the calling thread is the one that called BeginGraph.
int EndGraph(Stream stream, Graph* graph);
int LaunchGraph(Graph graph, Stream stream);
// Destroys the graph. Its launches under way still complete.
int DestroyGraph(Graph graph);
// Sets *is_recording to whether the stream is between BeginGraph and EndGraph.
int IsRecording(Stream stream, bool* is_recording);

const char* ErrorText(int error);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_RUNTIME_H_
