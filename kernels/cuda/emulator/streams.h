// The streams of the emulated devices: queues of operations that run when they are waited for.
//
// An operation on a stream runs only when it is forced: by Synchronize, by an event that is waited
// for or queried often enough, by another stream that waits for such an event, or by Free. Only the
// default stream runs its operations at once.
//
// A copy between host and device begins as early as it may, when it is the first of its stream, and
// ends as late as it may. Meanwhile its destination holds 0xFF bytes; a change of the source and a
// write to the destination are faults.
//
// An operation that needs other ranks does not run before they have come. Waiting for it in any way
// except QueryEvent is a fault: a rank may never come.
//
// While a stream is recorded, its operations go into the recording. Forbidden calls return an error
// and invalidate the recording, as in cudaStreamCaptureModeThreadLocal.
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

// A point on a stream.
struct Mark {
  StreamQueue* stream = nullptr;  // valid until it has happened
  bool has_happened = false;
  int num_queries = 0;
  std::chrono::steady_clock::time_point time;  // when it happened
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
  // Returns 0, or why the recording takes no more operations.
  int RecordingError() const;
  // As RefuseWhileRecording, for calls that a stream refuses while it is recorded.
  int RefuseIfRecorded();
  // Adds the copies, in no order among themselves. Ignores operation.run.
  void AddCopies(Operation operation, std::vector<HostCopy> copies);
  std::shared_ptr<Mark> AddMark();
  void AddWait(std::shared_ptr<Mark> mark);

  void RunUntil(const Mark& mark);
  // The same, but stops at an operation whose ranks have not come.
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
    std::vector<std::vector<std::byte>> sources;  // the copies' sources when they began
    bool has_begun = false;
    std::shared_ptr<Mark> mark;      // happens when the stream reaches this task
    std::shared_ptr<Mark> awaited;   // the stream waits here for this mark
    uint64_t num_place_changes = 0;  // NumPlaceChanges() at enqueueing
  };

  void Push(Task task);
  void RunFirst();
  bool IsFirstReady() const;
  // Removes marks and fulfilled waits from the front, then begins the first task's copies. Returns
  // whether a mark has happened.
  bool Settle();
  // Settles all streams until no mark happens: one stream's mark may release another.
  static void SettleAll();
  static void Begin(Task* task);
  static int Land(const Task& task);
  static int Run(const Task& task);

  const int32_t device_;
  const bool runs_at_once_;
  std::deque<Task> tasks_;
  int error_ = 0;
};

// Null handle: the current device's default stream. Returns null if there is no such stream.
StreamQueue* FindStream(void* handle);
void* NewStream();
void EraseStream(StreamQueue* stream);
// Runs all operations on the device's streams.
void RunAllStreams(int32_t device);

// For calls that a recording thread must not make: returns an error and invalidates its recording.
// Returns 0 if it does not record.
int RefuseWhileRecording();

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_STREAMS_H_
