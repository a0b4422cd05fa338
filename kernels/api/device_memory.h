// DeviceMemory is one allocation in the memory where a backend computes: main memory for the CPU, a
// GPU's memory for a GPU. KernelBackend::Allocate makes it; ~DeviceMemory frees the memory.
//
// Thread safety: one caller at a time (the executor thread).
// Invariants:    data() is at least 64-byte aligned, and does not change.
#ifndef QUIRE_KERNELS_API_DEVICE_MEMORY_H_
#define QUIRE_KERNELS_API_DEVICE_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"

namespace quire {

// Sizes of a device's own memory, such as a GPU's.
struct DeviceSpace {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Zeroes all bytes. Operations started after the call see zeros.
  virtual absl::Status Clear() = 0;

 protected:
  DeviceMemory(void* data, int64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

 private:
  void* data_;
  int64_t size_bytes_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_DEVICE_MEMORY_H_
