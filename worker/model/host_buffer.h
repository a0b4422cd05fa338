// HostBuffer is uninitialised memory aligned for vector instructions. Growing it loses what it
// held.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_WORKER_MODEL_HOST_BUFFER_H_
#define QUIRE_WORKER_MODEL_HOST_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "common/base/math.h"

namespace quire {

class HostBuffer {
 public:
  static constexpr int64_t kAlignmentBytes = 64;  // a cache line and the widest vector

  // Makes room for `bytes`, keeping the memory when it is already large enough. Returns false when
  // there is no memory.
  [[nodiscard]] bool Reserve(int64_t bytes) {
    if (bytes > capacity_) {
      data_.reset();
      capacity_ = 0;
      const int64_t rounded = RoundUp(bytes, kAlignmentBytes);
      data_.reset(static_cast<std::byte*>(
          std::aligned_alloc(static_cast<size_t>(kAlignmentBytes), static_cast<size_t>(rounded))));
      capacity_ = data_ == nullptr ? 0 : rounded;
    }
    return bytes <= capacity_;
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  float* floats() { return reinterpret_cast<float*>(data_.get()); }
  int64_t capacity() const { return capacity_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t capacity_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_HOST_BUFFER_H_
