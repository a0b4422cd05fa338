// Each line with "wrong" forgets a lock; run_clang_tidy_test.py expects an error there, and none
// elsewhere.
#include "absl/base/thread_annotations.h"

#include "common/base/mutex.h"

namespace quire {

class Counter {
 public:
  void Add() {
    const MutexLock lock(mutex_);
    AddLocked();
    changed_.NotifyAll();
  }

  void AddWithoutLock() {
    AddLocked();  // wrong
  }

  int Get() {
    return count_;  // wrong
  }

  void WaitForOne() {
    MutexLock lock(mutex_);
    while (count_ == 0) {
      changed_.Wait(mutex_);
    }
    lock.Unlock();
    lock.Lock();
    --count_;
    lock.Unlock();
    ++count_;  // wrong
  }

  void WaitWithoutLock() {
    changed_.Wait(mutex_);  // wrong
  }

 private:
  void AddLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++count_; }

  Mutex mutex_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

void AddOne(Counter& counter) { counter.Add(); }

}  // namespace quire
