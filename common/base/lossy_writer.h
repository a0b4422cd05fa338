// LossyWriter writes to a descriptor from a thread of its own, so that its callers never wait for a
// reader or a disk: a terminal that was stopped (Ctrl-S), the full pipe of a log collector, a file
// on a network share that hangs. Servers write all lines about themselves with it.
//
// A thread, not O_NONBLOCK: that flag would hold for all processes that share the terminal or the
// pipe, a description of our own cannot be opened for sockets and for terminals of other users, and
// a disk ignores it.
//
// Text is written in order, each piece by one write(2) if the descriptor takes it at once. While
// nobody reads, kMaxBacklogBytes wait; later text is lost. Text that the descriptor refuses (a full
// disk, a pipe without reader, a closed descriptor) is lost too; if a part of it was written, the
// next text begins on a line of its own.
//
// Thread safety: safe from any thread. After fork(2) the child writes directly, and may wait.
// Cost:          a copy of the text and one short critical section per call.
#ifndef QUIRE_COMMON_BASE_LOSSY_WRITER_H_
#define QUIRE_COMMON_BASE_LOSSY_WRITER_H_

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"

#include "common/base/mutex.h"

#include <sys/types.h>

namespace quire {

class LossyWriter {
 public:
  // A pipe takes up to PIPE_BUF bytes in one piece even if several processes write to it. Longer
  // text is cut, and ends with a newline.
  static constexpr size_t kMaxTextBytes = 4096;
  static constexpr size_t kMaxBacklogBytes = 1 << 20;

  // The thread starts with the first text.
  explicit LossyWriter(int fd) : fd_(fd) {}
  LossyWriter(const LossyWriter&) = delete;
  LossyWriter& operator=(const LossyWriter&) = delete;
  // Its thread may be inside write(2) for ever.
  ~LossyWriter() = delete;

  void Write(std::string_view text);

  // Returns when all text was written, after half a second at most.
  void Flush();

 private:
  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasThread() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void WriteNow(std::string_view text);

  const int fd_;
  bool is_torn_ = false;  // the last text ended in the middle; only for the thread that writes
  Mutex mutex_;
  CondVar queued_;
  CondVar written_;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mutex_);
  size_t backlog_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // queued, or being written
  static constexpr pid_t kNoThread = -1;
  pid_t thread_pid_ ABSL_GUARDED_BY(mutex_) = kNoThread;  // the process that has the thread
};

// Those of descriptors 1 and 2. The process flushes both when it ends by exit, by ExitNow or by a
// signal that a fault of its own raised (SIGABRT, SIGSEGV, ...).
LossyWriter& StandardOutput();
LossyWriter& StandardError();

// Flushes both, for a second at most.
void FlushStandardStreams();

// Ends the process without running destructors, which may wait for threads that hang.
[[noreturn]] void ExitNow(int exit_code);

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_LOSSY_WRITER_H_
