// BoundedQueue passes values from many threads to one. Only PushAlways may exceed the capacity.
//
// Thread safety: any thread.
// Cost:          one short critical section per call; Pop wakes when an item arrives.
#ifndef QUIRE_COMMON_BASE_BOUNDED_QUEUE_H_
#define QUIRE_COMMON_BASE_BOUNDED_QUEUE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace quire {

template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Appends value. Returns false, and leaves the queue unchanged, if the queue is full or closed.
  [[nodiscard]] bool Push(T value) {
    const MutexLock lock(mutex_);
    return items_.size() < capacity_ && Append(std::move(value));
  }

  // Appends value, even past the capacity. Callers use PushAlways for events that must not be lost
  // and whose number is bounded elsewhere (one abort per live request, one reply per worker).
  // Returns false only if the queue is closed.
  bool PushAlways(T value) {
    const MutexLock lock(mutex_);
    return Append(std::move(value));
  }

  // Waits at most timeout for an item, then takes all items, oldest first. Returns an empty deque
  // after the timeout, or if the queue is closed and has no items left.
  std::deque<T> PopAll(absl::Duration timeout) {
    const Instant deadline = SteadyNow() + absl::ToInt64Nanoseconds(timeout);
    const MutexLock lock(mutex_);
    while (!IsReady() && changed_.WaitUntil(mutex_, deadline)) {
    }
    return std::exchange(items_, {});
  }

  // Waits for an item and takes the oldest. Returns nullopt if the queue is closed and has no items
  // left.
  std::optional<T> Pop() {
    const MutexLock lock(mutex_);
    while (!IsReady()) {
      changed_.Wait(mutex_);
    }
    if (items_.empty()) {
      return std::nullopt;
    }
    T value = std::move(items_.front());
    items_.pop_front();
    return value;
  }

  // Refuses every later Push; items already queued can still be taken.
  void Close() {
    const MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }

  size_t size() const {
    const MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  bool Append(T value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (closed_) {
      return false;
    }
    items_.push_back(std::move(value));
    changed_.NotifyOne();
    return true;
  }

  bool IsReady() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !items_.empty() || closed_; }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;  // notified while mutex_ is held
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_BOUNDED_QUEUE_H_
