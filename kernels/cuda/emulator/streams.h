// The streams of the emulated devices: queues of operations that run when they are waited for.
//
// An operation on a stream runs only when something forces it: Synchronize, Free, an event that is
// waited for or queried often enough, or another stream that waits for such an event. Only the
// default stream runs its operations at once.
//
// A copy between host and device begins as early as possible, when it becomes the first operation
// of its stream, and ends as late as possible. Between the two, the destination holds 0xFF bytes,
// and a change of the source or a write to the destination is a fault.
//
// An operation that needs other ranks does not run before the ranks have arrived. Until then,
// waiting for the operation in any way except QueryEvent is a fault, because a rank may never
// arrive.
//
// While a stream is recorded, its operations are added to the recording. Forbidden calls
// (runtime.h) return an error and invalidate the recording, as in cudaStreamCaptureModeThreadLocal.
//
// Thread safety: one caller at a time. Each thread has its own current device and recording.
// Source:        CUDA C++ Programming Guide, "Asynchronous Concurrent Execution", "Multi-Device
//                System", "Creating a Graph Using Stream Capture".
#ifndef QUIRE_KERNELS_CUDA_EMULATOR_STREAMS_H_
#define QUIRE_KERNELS_CUDA_EMULATOR_STREAMS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cuda/emulator/operation.h"

namespace quire::gpu::emulator {

// Returns the calling thread's current device.
int32_t CurrentDevice();

class StreamQueue;

// A point on a stream. The mark happens when all operations before the point are done.
struct Mark {
  StreamQueue* stream = nullptr;  // valid until the mark has happened
  bool has_happened = false;
  int num_queries = 0;
  std::chrono::steady_clock::time_point time;  // the time at which the mark happened
};

struct HostCopy {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

struct Recording {
  std::vector<Operation> operations;
  std::thread::id thread = std::this_thread::get_id();
  bool is_invalid = false;
};

class StreamQueue {
 public:
  StreamQueue(int32_t device, bool runs_at_once) : device_(device), runs_at_once_(runs_at_once) {}

  int32_t device() const { return device_; }
  bool is_default() const { return runs_at_once_; }

  // Adds the operation to the recording, if there is one, else to the stream.
  int Add(Operation operation);
  // Returns cudaErrorStreamCaptureInvalidated if `recording` exists and is invalid, else 0.
  int RecordingError() const;
  // If this stream is being recorded, invalidates the recording and returns an error, else returns
  // 0. Called by every function that is forbidden on a stream while it is being recorded.
  int RefuseIfRecorded();
  // Adds the copies as one task, within which the copies have no order. Ignores operation.run.
  void AddCopies(Operation operation, std::vector<HostCopy> copies);
  std::shared_ptr<Mark> AddMark();
  void AddWait(std::shared_ptr<Mark> mark);

  void RunUntil(const Mark& mark);
  // Does the same as RunUntil, but stops at an operation whose ranks have not arrived.
  void RunUntilBlocked(const Mark& mark);
  void RunAll();
  // Returns and clears the first error since the last call.
  int TakeError();

  // Null while nothing is being recorded.
  std::unique_ptr<Recording> recording;

 private:
  struct Task {
    Operation operation;
    std::vector<HostCopy> copies;
    std::vector<std::vector<std::byte>> sources;  // what the copies' sources held when Begin ran
    bool has_begun = false;
    std::shared_ptr<Mark> mark;      // if not null, this task is the mark
    std::shared_ptr<Mark> awaited;   // if not null, this task is a wait for the mark
    uint64_t num_place_changes = 0;  // NumPlaceChanges() when the task was enqueued
  };

  void Push(Task task);
  void RunFirst();
  bool IsFirstReady() const;
  // Removes tasks from the front of the queue as long as the first task is a mark or awaits a mark
  // that has happened. A mark happens when it is removed. After that, begins the copies of the task
  // that is now the first. Returns whether a mark happened.
  bool Settle();
  // Calls Settle on all streams until no more mark happens, because one stream's mark can end
  // another stream's wait.
  static void SettleAll();
  static void Begin(Task* task);
  static int Land(const Task& task);
  // next: the operation of the next task, or null if there is no next task.
  static int Run(const Task& task, const Operation* next);

  const int32_t device_;
  const bool runs_at_once_;
  std::deque<Task> tasks_;
  int error_ = 0;
};

// Returns the stream. For a null handle, returns the current device's default stream. Returns null
// if there is no such stream.
StreamQueue* FindStream(void* handle);
void* NewStream();
void EraseStream(StreamQueue* stream);
// Runs all operations on the device's streams.
void RunAllStreams(int32_t device);

// If the calling thread is recording a stream, invalidates the recording and returns an error, else
// returns 0. Called by every function that is forbidden on a thread while it records.
int RefuseWhileRecording();

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_STREAMS_H_
