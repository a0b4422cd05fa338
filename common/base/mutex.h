// Mutex, MutexLock and CondVar are std::mutex, std::unique_lock and std::condition_variable with
// thread-safety annotations. ABSL_GUARDED_BY on a member names the mutex that guards the member.
// ABSL_EXCLUSIVE_LOCKS_REQUIRED on a private function names the mutex that callers must hold.
// clang-tidy refuses code that violates the annotations.
//
// abseil's mutex is not used: Debian's abseil is not instrumented, so ThreadSanitizer would report
// every use of that mutex as a race.
//
// Wait takes no predicate, because clang's analysis does not look into predicates. Write a loop
// around Wait instead.
//
// Thread safety: Mutex and CondVar: any thread. MutexLock: the thread that made it.
// Cost:          as std::mutex, std::unique_lock and std::condition_variable.
#ifndef QUIRE_COMMON_BASE_MUTEX_H_
#define QUIRE_COMMON_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

#include "common/base/clock.h"

namespace quire {

// Has no lock function of its own; use a MutexLock.
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

// Holds the mutex until the end of the scope, except between Unlock and Lock.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Call Unlock and Lock alternately, Unlock first. The destructor unlocks the mutex if it is
  // locked.
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

  // Unlocks the mutex, waits for a notification and locks the mutex again. Wakeups may be spurious.
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // Waits like Wait, but at most until deadline (on the clock of SteadyNow). Returns false after
  // the deadline.
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
