// Memory, copies and waiting on the device that the kernels run on: cudart in the CUDA build, the
// heap and queues (emulator/streams.h) in the emulated one.
//
// Devices: each thread has a current device, 0 until it calls SetDevice. Memory, streams and events
// belong to the device that was current when they were made, a graph to that of the stream that it
// was recorded on. Kernels, products, FillBytes and graphs are launched on streams of the current
// device and touch its memory and pinned memory alone. Copies take any stream of the device that
// has the memory. Events are recorded on streams of their own device, and waited for anywhere. All
// is freed, destroyed and synchronised from any device. The emulated build, which has two devices,
// returns an error for anything else.
//
// Thread safety: as the CUDA runtime; in the emulated build one caller at a time.
// Errors:        0 or a cudaError_t; ErrorText says it in words. What fails on a stream is reported
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
  uint8_t uuid[16] = {};  // no other device has it, of this machine or another
  int32_t index = 0;
  int32_t compute_capability = 0;  // 90: sm_90
  int32_t num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

// Devices of this machine. An error when there is no driver.
int CountDevices(int32_t* count);
// Makes the device of this number the current one of the calling thread. An error when there is no
// driver or no such device.
int SetDevice(int32_t device);
// The current device stays the current one. Errors: those of SetDevice.
int QueryDevice(int32_t device, DeviceInfo* info);

// 256-byte aligned. The emulated build fills the memory with 0xFF bytes, which are NaN in every
// type.
int Allocate(void** pointer, size_t bytes);
// Waits for all streams of the device. Null is nothing.
int Free(void* pointer);

// Host memory that devices copy from and to without a detour.
int AllocatePinned(void** pointer, size_t bytes);
// REQUIRES: no copy that reads or writes the memory is under way.
int FreePinned(void* pointer);

// In stream order. From pinned memory the copy may happen after the call has returned, so that the
// memory may be reused only when something later on the stream is known to be done; other host
// memory is read before the call returns. What was copied to the host is there when something later
// on the stream is known to be done.
int CopyToDevice(void* device, const void* host, size_t bytes, Stream stream);
int CopyToHost(void* host, const void* device, size_t bytes, Stream stream);
// `count` copies between pinned memory and the device, all in one direction, in no order among
// themselves. No source is written by another of them, no place written twice.
int CopyMany(
    void* const* to, const void* const* from, const size_t* bytes, size_t count, Stream stream);
// Inside of the device; may be recorded.
int CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream);
// Rows of a matrix of floats into columns of another one, on the device.
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
// their arguments have now, and products. LaunchGraph runs the record, any number of times; memory
// that it refers to must still be the same memory. The default stream cannot be recorded.
//
// The thread that records calls none of these meanwhile: Allocate, Free, AllocatePinned and
// FreePinned; Synchronize of the recorded stream; QueryEvent and SynchronizeEvent of events that
// were recorded on it; WaitForEvent of others there; CopyMany, LaunchGraph and copies from and to
// host memory that is not pinned there. They return an error, and so does EndGraph then: recording
// is cudaStreamCaptureModeThreadLocal, and such a call makes it invalid.
using Graph = void*;
int BeginGraph(Stream stream);
// On the thread that began. Null and an error when the recording has become invalid.
int EndGraph(Stream stream, Graph* graph);
int LaunchGraph(Graph graph, Stream stream);
// Launches that are under way are done all the same.
int DestroyGraph(Graph graph);
// Whether the stream is between BeginGraph and EndGraph.
int IsRecording(Stream stream, bool* is_recording);

const char* ErrorText(int error);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_RUNTIME_H_
