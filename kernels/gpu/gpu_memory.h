// The device memory and pinned host memory that GpuBackend uses.
//
// Thread safety: one caller at a time (the executor thread).
#ifndef QUIRE_KERNELS_GPU_GPU_MEMORY_H_
#define QUIRE_KERNELS_GPU_GPU_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/api/device_memory.h"
#include "kernels/cuda/gpu_api.h"

namespace quire {

// If `error` is not 0, logs it and ends the process (kExitDevice). gpu_backend.h says why.
void RequireGpu(const gpu::GpuApi& api, int error, const char* what);

// Pinned host memory.
class GpuHostMemory final : public DeviceMemory {
 public:
  GpuHostMemory(const gpu::GpuApi& api, void* data, int64_t size_bytes)
      : DeviceMemory(data, size_bytes), api_(api) {}
  ~GpuHostMemory() override { api_.free_pinned(data()); }

  absl::Status Clear() override;

 private:
  const gpu::GpuApi& api_;
};

class GpuMemory final : public DeviceMemory {
 public:
  GpuMemory(const gpu::GpuApi& api, gpu::Stream stream, void* data, int64_t size_bytes)
      : DeviceMemory(data, size_bytes), api_(api), stream_(stream) {}
  ~GpuMemory() override { api_.free(data()); }

  absl::Status Clear() override;

 private:
  const gpu::GpuApi& api_;
  gpu::Stream stream_;
};

// Device memory that loses its contents when it grows. The contents are undefined at first.
class GpuScratch {
 public:
  explicit GpuScratch(const gpu::GpuApi& api) : api_(api) {}
  ~GpuScratch();
  GpuScratch(const GpuScratch&) = delete;
  GpuScratch& operator=(const GpuScratch&) = delete;

  // If the memory is smaller than `bytes`, replaces it by memory of exactly `bytes`. This changes
  // the address, and waits for the device, because it frees the old memory. Errors:
  // kResourceExhausted, reason MEMORY; the scratch is then empty.
  absl::Status Reserve(int64_t bytes);
  void* data() const { return data_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  const gpu::GpuApi& api_;
  void* data_ = nullptr;
  int64_t capacity_bytes_ = 0;
};

// Pinned host memory that loses its contents when it grows.
class PinnedScratch {
 public:
  explicit PinnedScratch(const gpu::GpuApi& api) : api_(api) {}
  ~PinnedScratch();
  PinnedScratch(const PinnedScratch&) = delete;
  PinnedScratch& operator=(const PinnedScratch&) = delete;

  // As GpuScratch::Reserve, but waits for nothing. REQUIRES: no copy from or to the memory is under
  // way.
  absl::Status Reserve(int64_t bytes);
  std::byte* data() const { return data_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  const gpu::GpuApi& api_;
  std::byte* data_ = nullptr;
  int64_t capacity_bytes_ = 0;
};

// Ends the process (kExitDevice) if memory could not be reserved in the middle of a step.
void RequireMemory(const absl::Status& reserved);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_MEMORY_H_
