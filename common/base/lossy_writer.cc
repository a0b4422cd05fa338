#include "common/base/lossy_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <exception>  // also __verbose_terminate_handler
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"

namespace quire {
namespace {

constexpr int64_t kMaxFlushNs = kNanosPerSecond / 2;
// Time limit of a crash handler, longer than the 2 * kMaxFlushNs that the flush of both streams can
// take.
constexpr unsigned kMaxDyingSeconds = 2;

// Flushes both standard streams, then lets the signal take its default action.
void OnCrash(int signal) {
  // If the crashed thread holds a writer's mutex_, the flush hangs until SIGALRM ends the process.
  ::alarm(kMaxDyingSeconds);
  FlushStandardStreams();
  ::raise(signal);
}

// Returns true if std::thread threw the uncaught exception because a limit forbids more threads.
bool CannotStartThread() {
  const std::exception_ptr exception = std::current_exception();
  try {
    if (exception != nullptr) {
      std::rethrow_exception(exception);
    }
  } catch (const std::system_error& error) {
    return error.code() == std::errc::resource_unavailable_try_again;
  } catch (...) {
  }
  return false;
}

// Prints the exception. The alarm ends the process if a blocked terminal makes the printing hang.
void OnTerminate() {
  ::alarm(kMaxDyingSeconds);
  if (CannotStartThread()) {
    FlushStandardStreams();
    constexpr std::string_view kWhy =
        ": cannot start a thread: a limit of processes (ulimit -u, pids.max) or of address space "
        "(ulimit -v) is too small\n";
    const std::string message = program_invocation_short_name + std::string(kWhy);
    const ssize_t ignored = ::write(STDERR_FILENO, message.data(), message.size());
    static_cast<void>(ignored);
    // kExitUsage, as for a wrong setting: a restarted process would meet the same limit.
    ::_exit(kExitUsage);
  }
  __gnu_cxx::__verbose_terminate_handler();
}

// Makes crashes flush the standard streams. Skips signals that already have a handler, for example
// a sanitizer's.
void FlushAtCrashes() {
  std::set_terminate(OnTerminate);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
    struct sigaction action = {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
      action = {};
      action.sa_handler = OnCrash;
      action.sa_flags = SA_RESETHAND | SA_NODEFER;
      ::sigaction(signal, &action, nullptr);
    }
  }
}

LossyWriter* MakeStandard(int fd) {
  static const bool is_flushed_at_end = [] {
    FlushAtCrashes();
    return std::atexit(FlushStandardStreams) == 0;
  }();
  static_cast<void>(is_flushed_at_end);
  return new LossyWriter(fd);
}

}  // namespace

LossyWriter& StandardOutput() {
  static LossyWriter* const writer = MakeStandard(STDOUT_FILENO);
  return *writer;
}

LossyWriter& StandardError() {
  static LossyWriter* const writer = MakeStandard(STDERR_FILENO);
  return *writer;
}

void FlushStandardStreams() {
  StandardOutput().Flush();
  StandardError().Flush();
}

void ExitNow(int exit_code) {
  FlushStandardStreams();
  std::_Exit(exit_code);
}

void LossyWriter::Write(std::string_view text) {
  if (text.empty()) {
    return;
  }
  std::string piece(text.substr(0, kMaxTextBytes));
  if (piece.size() < text.size()) {
    piece.back() = '\n';
  }
  const MutexLock lock(mutex_);
  if (thread_pid_ == kNoThread) {
    Start();
  }
  if (!HasThread()) {
    WriteNow(piece);
  } else if (backlog_bytes_ + piece.size() <= kMaxBacklogBytes) {
    backlog_bytes_ += piece.size();
    queue_.push_back(std::move(piece));
    queued_.NotifyOne();
  }
}

void LossyWriter::Flush() {
  const Instant deadline = SteadyNow() + kMaxFlushNs;
  const MutexLock lock(mutex_);
  while (backlog_bytes_ > 0 && HasThread() && written_.WaitUntil(mutex_, deadline)) {
  }
}

bool LossyWriter::HasThread() const { return thread_pid_ == ::getpid(); }

// Starts the thread. If a limit on processes forbids new threads, Write writes directly, and the
// next Write tries again to start the thread.
void LossyWriter::Start() {
  // The thread blocks all signals, so that signal handlers run on other threads. The thread's
  // writes can raise SIGPIPE, SIGXFSZ and SIGTTOU. A blocked signal cannot end or stop the process;
  // at most, write(2) returns an error.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { Run(); }).detach();
    thread_pid_ = ::getpid();
  } catch (const std::system_error&) {
    thread_pid_ = kNoThread;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LossyWriter::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (queue_.empty()) {
      queued_.Wait(mutex_);
    }
    const std::string text = std::move(queue_.front());
    queue_.pop_front();
    lock.Unlock();
    WriteNow(text);
    lock.Lock();
    backlog_bytes_ -= text.size();
    written_.NotifyAll();
  }
}

void LossyWriter::WriteNow(std::string_view text) {
  if (is_torn_ && ::write(fd_, "\n", 1) == 1) {
    is_torn_ = false;
  }
  const size_t size = text.size();
  while (!text.empty()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      // EAGAIN means that another process made the descriptor non-blocking.
      pollfd writable = {.fd = fd_, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
    } else if (written == 0 || errno != EINTR) {
      is_torn_ |= text.size() < size;
      return;
    }
  }
}

}  // namespace quire
