// ProgressCounter counts the work of one thread, so that other threads see whether it advances.
//
// Thread safety: one thread at a time may call Add. Any thread may call value, which may lag.
// Cost:          Add is a load and a store, without a lock prefix.
#ifndef QUIRE_KERNELS_API_PROGRESS_COUNTER_H_
#define QUIRE_KERNELS_API_PROGRESS_COUNTER_H_

#include <atomic>
#include <cstdint>

namespace quire {

class ProgressCounter {
 public:
  void Add() {
    value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_PROGRESS_COUNTER_H_
