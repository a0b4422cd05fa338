// LossyWriter writes to a descriptor from a separate thread, so that its callers never wait for a
// slow output: a terminal that was stopped (Ctrl-S), the full pipe of a log collector, a file on a
// network share that hangs. Servers write their log and all other output with a LossyWriter.
//
// O_NONBLOCK cannot replace the thread: the flag applies to every process that shares the terminal
// or pipe, and disks ignore the flag. A process that reopened the terminal or pipe would have a
// flag of its own, but sockets and other users' terminals cannot be reopened.
//
// Texts are written in order, each by one write(2) if the descriptor takes the whole text at once.
// While the descriptor blocks, up to kMaxBacklogBytes are queued; later text is lost. Text that the
// descriptor refuses (a full disk, a pipe without reader, a closed descriptor) is lost too. If only
// a part of a text could be written, the next text begins on a new line.
//
// Thread safety: safe from any thread. After fork(2) the child process lacks the separate thread;
//                there Write writes directly and can block.
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
  // Equal to PIPE_BUF: a pipe takes writes of up to this size atomically, even from several
  // processes. Write cuts longer text to this size and ends the text with a newline.
  static constexpr size_t kMaxTextBytes = 4096;
  static constexpr size_t kMaxBacklogBytes = 1 << 20;

  // The first Write starts the thread.
  explicit LossyWriter(int fd) : fd_(fd) {}
  LossyWriter(const LossyWriter&) = delete;
  LossyWriter& operator=(const LossyWriter&) = delete;
  // Deleted, because the thread can hang inside write(2) for ever.
  ~LossyWriter() = delete;

  void Write(std::string_view text);

  // Waits until all text is written, at most half a second.
  void Flush();

 private:
  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasThread() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  void WriteNow(std::string_view text);

  const int fd_;
  bool is_torn_ = false;  // true: only a part of the last text was written; used by WriteNow alone
  Mutex mutex_;
  CondVar queued_;
  CondVar written_;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mutex_);
  size_t backlog_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // text that is queued or being written
  static constexpr pid_t kNoThread = -1;
  pid_t thread_pid_ ABSL_GUARDED_BY(mutex_) = kNoThread;  // id of the process that has the thread
};

// Return the writers of descriptors 1 and 2. The process flushes both writers when it ends by exit,
// by ExitNow or by the signal of a crash (SIGABRT, SIGSEGV, ...).
LossyWriter& StandardOutput();
LossyWriter& StandardError();

// Flushes the writers of both standard streams; takes at most a second.
void FlushStandardStreams();

// Ends the process without running destructors, since destructors may wait for threads that hang.
[[noreturn]] void ExitNow(int exit_code);

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_LOSSY_WRITER_H_
