// The streams of the emulated devices: queues of operations that run when somebody waits for them.
//
// Nothing on a stream runs before it is forced: by Synchronize, by an event that is waited for or
// was asked for often enough, by another stream that waits for such an event, by Free. Only the
// default stream runs what it is given at once.
//
// A copy between host and device begins as early as it may, when nothing is before it on its
// stream, and ends as late as it may. From beginning to end its destination is 0xFF bytes; a source
// that is another one at the end than at the beginning, and a destination that somebody wrote to,
// are faults.
//
// An operation that needs other ranks is not run before they have come. Who waits for it without a
// way out, by anything but an event that is asked for, is at fault: a rank may never come.
//
// While a stream is recorded, the operations that it is given go into the recording. What must not
// be done meanwhile gets an error and makes the recording invalid, as with
// cudaStreamCaptureModeThreadLocal.
//
// Thread safety: one caller at a time. Each thread has a current device and a recording of its own.
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

// Of the calling thread.
int32_t CurrentDevice();

class StreamQueue;

// A point on a stream.
struct Mark {
  StreamQueue* stream = nullptr;  // until it has happened
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

  // Into the recording, if there is one.
  int Add(Operation operation);
  // 0, or why what is being recorded takes no more.
  int RecordingError() const;
  // The same as RefuseWhileRecording for what the stream must not be asked for while it is
  // recorded.
  int RefuseIfRecorded();
  // Of the copies, in no order among themselves. The operation's run is not looked at.
  void AddCopies(Operation operation, std::vector<HostCopy> copies);
  std::shared_ptr<Mark> AddMark();
  void AddWait(std::shared_ptr<Mark> mark);

  void RunUntil(const Mark& mark);
  // The same until an operation needs other ranks that have not come.
  void RunUntilBlocked(const Mark& mark);
  void RunAll();
  // The first error of what has run since the last call.
  int TakeError();

  // Null while nothing is being recorded.
  std::unique_ptr<Recording> recording;

 private:
  struct Task {
    Operation operation;
    std::vector<HostCopy> copies;
    std::vector<std::vector<std::byte>> sources;  // of the copies, when they began
    bool has_begun = false;
    std::shared_ptr<Mark> mark;      // happens when the stream comes here
    std::shared_ptr<Mark> awaited;   // the stream comes here after it
    uint64_t num_place_changes = 0;  // when it was enqueued
  };

  void Push(Task task);
  void RunFirst();
  bool IsFirstReady() const;
  // Takes what needs no running from the front, and begins the copies that are there then. Returns
  // whether a mark has happened.
  bool Settle();
  // The same for all streams: a mark of one lets another go on.
  static void SettleAll();
  static void Begin(Task* task);
  static int Land(const Task& task);
  static int Run(const Task& task);

  const int32_t device_;
  const bool runs_at_once_;
  std::deque<Task> tasks_;
  int error_ = 0;
};

// Null handle: the default stream of the current device. Null: there is no such stream.
StreamQueue* FindStream(void* handle);
void* NewStream();
void EraseStream(StreamQueue* stream);
// All that was given to streams of the device.
void RunAllStreams(int32_t device);

// For what a thread must not call while it records: an error, after which its recording is invalid.
// 0 when it does not record.
int RefuseWhileRecording();

}  // namespace quire::gpu::emulator

#endif  // QUIRE_KERNELS_CUDA_EMULATOR_STREAMS_H_
