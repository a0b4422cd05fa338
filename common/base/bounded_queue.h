// BoundedQueue passes values from many threads to one, and never grows past its capacity. Of a
// number of places more, only PushReserved takes any: what it pushes finds one however full the
// queue is of the rest.
//
// Thread safety: Push, Pop, Close and size may be called from any thread.
// Cost:          one short critical section per call; Pop wakes when something arrives.
//
// A standard mutex, not abseil's: ThreadSanitizer sees the former, while Debian's abseil is not
// instrumented and every use of its mutex would be reported as a race.
#ifndef QUIRE_COMMON_BASE_BOUNDED_QUEUE_H_
#define QUIRE_COMMON_BASE_BOUNDED_QUEUE_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/time/time.h"

namespace quire {

template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity, size_t num_reserved = 0)
      : capacity_(capacity), num_reserved_(num_reserved) {}

  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Appends value. Returns false, and leaves the queue unchanged, when it is full or closed.
  [[nodiscard]] bool Push(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    return items_.size() < capacity_ && Append(std::move(value));
  }

  // The same with the reserved places.
  [[nodiscard]] bool PushReserved(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    return items_.size() < capacity_ + num_reserved_ && Append(std::move(value));
  }

  // Appends value whatever the size. For the few events that must not be lost and are bounded by
  // something else (one abort per live request, one reply per worker). False only when closed.
  bool PushAlways(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    return Append(std::move(value));
  }

  // Takes everything there is, oldest first; waits at most timeout for the first item. Empty means
  // that the time passed or that the queue is closed and drained.
  std::deque<T> PopAll(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return IsReady(); });
    return std::exchange(items_, {});
  }

  // Takes the oldest item; waits for one. Empty only when the queue is closed and drained.
  std::optional<T> Pop() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return IsReady(); });
    if (items_.empty()) {
      return std::nullopt;
    }
    T value = std::move(items_.front());
    items_.pop_front();
    return value;
  }

  // No Push succeeds afterwards; what is queued can still be taken.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return items_.size();
  }

 private:
  // REQUIRES: mutex_ is held.
  bool Append(T value) {
    if (closed_) {
      return false;
    }
    items_.push_back(std::move(value));
    changed_.notify_one();
    return true;
  }

  // REQUIRES: mutex_ is held.
  bool IsReady() const { return !items_.empty() || closed_; }

  const size_t capacity_;
  const size_t num_reserved_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // notified under mutex_
  // Guarded by mutex_.
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_BOUNDED_QUEUE_H_
