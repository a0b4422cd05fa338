// Memory, copies and waiting on the device that the kernels run on: cudart in the CUDA build, the
// heap and queues (emulator/streams.h) in the emulated build.
//
// Devices: each thread has a current device, 0 until it calls SetDevice. Memory, streams and events
// belong to the device that was current at their creation, a graph to its stream's device. Kernels,
// products, FillBytes and graphs run on streams of the current device, and touch only its memory
// and pinned memory. Copies take any stream of the device that has the memory. Events are recorded
// on streams of their own device, and waited for anywhere. Freeing, destroying and synchronizing
// work from any device. The emulated build, which has two devices, returns an error for any other
// use.
//
// Thread safety: as the CUDA runtime; in the emulated build one caller at a time.
// Errors:        0 or a cudaError_t; ErrorText says it in words. A failure on a stream is reported
//                when the stream is waited for.
// Source:        CUDA C++ Programming Guide, "Multi-Device System".
#ifndef QUIRE_KERNELS_CUDA_RUNTIME_H_
#define QUIRE_KERNELS_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

struct DeviceInfo {
  char name[64] = {};
  uint8_t uuid[16] = {};  // unique among all devices of all machines
  int32_t index = 0;
  int32_t compute_capability = 0;  // 90: sm_90
  int32_t num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Returns the number of devices. An error if there is no driver.
int CountDevices(int32_t* count);
// Makes `device` the calling thread's current device. An error if there is no driver or no such
// device.
int SetDevice(int32_t device);
// Leaves the current device unchanged. Errors: those of SetDevice.
int QueryDevice(int32_t device, DeviceInfo* info);

// 256-byte aligned. The emulated build fills it with 0xFF bytes, which are NaN in every type.
int Allocate(void** pointer, size_t bytes);
// Waits for all streams of the device. Does nothing for null.
int Free(void* pointer);

// Page-locked host memory, which devices access directly.
int AllocatePinned(void** pointer, size_t bytes);
// REQUIRES: no copy that reads or writes the memory is under way.
int FreePinned(void* pointer);

// Copies in stream order. A copy from pinned memory may happen after the call returns; other host
// memory is read before. Pinned memory may be reused, and a copy to the host read, once something
// later on the stream is known to be done.
int CopyToDevice(void* device, const void* host, size_t bytes, Stream stream);
int CopyToHost(void* host, const void* device, size_t bytes, Stream stream);
// Makes `count` copies between pinned memory and the device, all in one direction, in any order.
// REQUIRES: no copy writes another's source or destination.
int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream);
// Copies within the device; may be recorded.
int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream);
// Copies a matrix of floats into columns of a wider matrix, on the device.
struct ColumnsCopy {
  float* to = nullptr;
  int64_t to_stride = 0;  // in elements
  const float* from = nullptr;
  int64_t from_stride = 0;
  int64_t num_rows = 0;
  int64_t width = 0;
};
int CopyColumns(const ColumnsCopy& copy, Stream stream);
int FillBytes(void* device, int byte, size_t bytes, Stream stream);

// Waits until everything enqueued before is done, and returns the first error.
int Synchronize(Stream stream);

int CreateStream(Stream* stream);
int DestroyStream(Stream stream);

// A point on a stream: it happens when everything enqueued before RecordEvent is done. Recording
// again moves it.
using Event = void*;
int CreateEvent(Event* event);
int DestroyEvent(Event event);
int RecordEvent(Event event, Stream stream);
// Operations enqueued on the stream from now on run after the event.
int WaitForEvent(Event event, Stream stream);
// Returns whether the event has happened; does not wait.
int QueryEvent(Event event, bool* has_happened);
// Waits until the event has happened.
int SynchronizeEvent(Event event);
// REQUIRES: both events have happened.
int ElapsedMilliseconds(Event begin, Event end, float* milliseconds);

// Between BeginGraph and EndGraph, operations enqueued on the stream are recorded instead of run,
// with their arguments' current values. LaunchGraph runs the record any number of times; memory
// that it refers to must stay allocated. The default stream cannot be recorded.
//
// Meanwhile these calls on the recording thread return an error: Allocate, Free, AllocatePinned and
// FreePinned; on the recorded stream Synchronize, CopyMany, LaunchGraph, copies from and to
// unpinned host memory, and WaitForEvent of events not recorded on it; QueryEvent and
// SynchronizeEvent of events recorded on it. Such a call also invalidates the recording (it is
// cudaStreamCaptureModeThreadLocal), and EndGraph returns an error.
using Graph = void*;
int BeginGraph(Stream stream);
// Called on the thread that began. Returns null and an error if the recording has become invalid.
int EndGraph(Stream stream, Graph* graph);
int LaunchGraph(Graph graph, Stream stream);
// Launches under way still complete.
int DestroyGraph(Graph graph);
// Returns whether the stream is between BeginGraph and EndGraph.
int IsRecording(Stream stream, bool* is_recording);

const char* ErrorText(int error);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_RUNTIME_H_
