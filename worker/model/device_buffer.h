// DeviceBuffer is growable memory of a backend. Growing discards its contents.
//
// Thread safety: one caller at a time (the executor thread).
#ifndef QUIRE_WORKER_MODEL_DEVICE_BUFFER_H_
#define QUIRE_WORKER_MODEL_DEVICE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "kernels/api/kernel_backend.h"

namespace quire {

class DeviceBuffer {
 public:
  // Makes room for `bytes`, keeping the memory if it is already large enough. Errors: those of
  // KernelBackend::Allocate.
  absl::Status Reserve(KernelBackend& backend, int64_t bytes) {
    if (bytes > capacity_bytes()) {
      memory_.reset();
      QUIRE_ASSIGN_OR_RETURN(memory_, backend.Allocate(bytes));
    }
    return absl::OkStatus();
  }

  // Makes room for the values and copies them there.
  template <typename T>
  absl::Status Assign(KernelBackend& backend, std::span<const T> values) {
    const auto bytes = static_cast<int64_t>(values.size_bytes());
    QUIRE_RETURN_IF_ERROR(Reserve(backend, bytes));
    backend.Upload(data(), values.data(), bytes);
    return absl::OkStatus();
  }

  // Replaces the buffer's memory by `memory`.
  void Take(std::unique_ptr<DeviceMemory> memory) { memory_ = std::move(memory); }

  // Returns null until memory was reserved or taken.
  void* data() const { return memory_ == nullptr ? nullptr : memory_->data(); }
  float* floats() const { return static_cast<float*>(data()); }
  int64_t capacity_bytes() const { return memory_ == nullptr ? 0 : memory_->size_bytes(); }

 private:
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_MODEL_DEVICE_BUFFER_H_
