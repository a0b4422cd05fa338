#include "kernels/gpu/gpu_memory.h"

#include <bit>
#include <cstring>
#include <string>

#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"

namespace quire {
namespace {

// Rounds up to a power of two, so that a slowly growing batch does not reallocate at every step.
int64_t GrownBytes(int64_t bytes) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

}  // namespace

void RequireGpu(const gpu::GpuApi& api, int error, const char* what) {
  if (error != 0) {
    LogError("the device failed; the worker ends",
             {{"operation", what},
              {"error", std::to_string(error)},
              {"text", std::string(api.error_text(error))}});
    ExitNow(kExitDevice);
  }
}

absl::Status GpuMemory::Clear() {
  RequireGpu(api_, api_.fill_bytes(data(), 0, static_cast<size_t>(size_bytes()), stream_), "clear");
  return absl::OkStatus();
}

absl::Status GpuHostMemory::Clear() {
  std::memset(data(), 0, static_cast<size_t>(size_bytes()));
  return absl::OkStatus();
}

GpuScratch::~GpuScratch() { api_.free(data_); }

bool GpuScratch::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) {
    return false;
  }
  RequireGpu(api_, api_.free(data_), "free");
  capacity_bytes_ = GrownBytes(bytes);
  RequireGpu(api_, api_.allocate(&data_, static_cast<size_t>(capacity_bytes_)), "allocate");
  return true;
}

PinnedScratch::~PinnedScratch() { api_.free_pinned(data_); }

void PinnedScratch::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) {
    return;
  }
  RequireGpu(api_, api_.free_pinned(data_), "free pinned");
  capacity_bytes_ = GrownBytes(bytes);
  void* data = nullptr;
  RequireGpu(
      api_, api_.allocate_pinned(&data, static_cast<size_t>(capacity_bytes_)), "allocate pinned");
  data_ = static_cast<std::byte*>(data);
}

}  // namespace quire
