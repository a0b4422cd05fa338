// BodyMemory bounds the total size of the request bodies that one server holds. A BodyCharge is one
// body's share of that total; its destructor returns the share.
//
// Thread safety: BodyMemory: any thread. BodyCharge: one thread at a time.
#ifndef QUIRE_COMMON_HTTP_BODY_MEMORY_H_
#define QUIRE_COMMON_HTTP_BODY_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace quire {

class BodyMemory {
 public:
  explicit BodyMemory(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Takes `bytes` bytes. Returns false, and takes nothing, if fewer are left.
  [[nodiscard]] bool Take(size_t bytes) {
    size_t used = used_bytes_.load();
    do {
      if (bytes > max_bytes_ - used) {
        return false;
      }
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
    return true;
  }

  void Return(size_t bytes) { used_bytes_ -= bytes; }

  size_t used_bytes() const { return used_bytes_.load(); }

 private:
  const size_t max_bytes_;
  std::atomic<size_t> used_bytes_ = 0;
};

class BodyCharge {
 public:
  BodyCharge() = default;
  explicit BodyCharge(std::shared_ptr<BodyMemory> memory) : memory_(std::move(memory)) {}
  ~BodyCharge() { Release(); }
  BodyCharge(BodyCharge&& other) noexcept
      : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyCharge& operator=(BodyCharge&& other) noexcept {
    if (this != &other) {
      Release();
      memory_ = std::move(other.memory_);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }

  // Raises the charge to `bytes`. Returns false, and changes nothing, if the memory is exhausted.
  // REQUIRES: the charge was constructed with a memory; `bytes` is at least the present charge.
  [[nodiscard]] bool RaiseTo(size_t bytes) {
    if (!memory_->Take(bytes - bytes_)) {
      return false;
    }
    bytes_ = bytes;
    return true;
  }

 private:
  void Release() {
    if (memory_ != nullptr) {
      memory_->Return(std::exchange(bytes_, 0));
    }
  }

  std::shared_ptr<BodyMemory> memory_;
  size_t bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_BODY_MEMORY_H_
