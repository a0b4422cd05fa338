// Mutex, MutexLock and CondVar are the standard library's, annotated: a member says which mutex
// guards it (ABSL_GUARDED_BY), a private function which one its caller holds
// (ABSL_EXCLUSIVE_LOCKS_REQUIRED), and clang-tidy refuses code that does otherwise.
//
// Not abseil's: ThreadSanitizer sees a standard mutex, while Debian's abseil is not instrumented
// and every use of its mutex would be reported as a race.
//
// A condition is waited for in a loop around Wait: clang does not look into a predicate.
//
// Thread safety: a Mutex and a CondVar may be used from any thread, a MutexLock from the one that
//                made it.
// Cost:          that of std::mutex, std::unique_lock and std::condition_variable.
#ifndef QUIRE_COMMON_BASE_MUTEX_H_
#define QUIRE_COMMON_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

#include "common/base/clock.h"

namespace quire {

// Locked by a MutexLock alone.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  friend class CondVar;

  std::mutex mutex_;
};

// Holds the mutex from here to the end of the scope, but for what is between Unlock and Lock.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // In turns, Unlock first. The destructor gives back what is held then.
  void Unlock() ABSL_UNLOCK_FUNCTION() { lock_.unlock(); }
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { lock_.lock(); }

 private:
  std::unique_lock<std::mutex> lock_;
};

class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Gives the mutex back, waits for a notification, and takes the mutex again. May also return
  // without a notification.
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // The same until then at most, by SteadyNow. False: that time has passed.
  bool WaitUntil(Mutex& mutex, Instant deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const std::chrono::steady_clock::time_point at{std::chrono::nanoseconds(deadline)};
    const bool is_before = condition_.wait_until(lock, at) == std::cv_status::no_timeout;
    lock.release();
    return is_before;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_MUTEX_H_
