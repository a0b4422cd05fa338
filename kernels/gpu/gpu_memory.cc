#include "kernels/gpu/gpu_memory.h"

#include <cstring>
#include <string>

#include "common/base/error.h"
#include "common/base/exit_codes.h"
#include "common/base/log.h"
#include "common/base/lossy_writer.h"

namespace quire {
namespace {

absl::Status NoRoom(const char* where, int64_t bytes) {
  return Error(absl::StatusCode::kResourceExhausted,
               "MEMORY",
               std::string("memory of steps: ") + where + " has no room for so much (got " +
                   std::to_string(bytes) + " bytes)");
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

absl::Status GpuScratch::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) {
    return absl::OkStatus();
  }
  RequireGpu(api_, api_.free(data_), "free");
  data_ = nullptr;
  capacity_bytes_ = 0;
  if (api_.allocate(&data_, static_cast<size_t>(bytes)) != 0) {
    data_ = nullptr;
    return NoRoom("the GPU", bytes);
  }
  capacity_bytes_ = bytes;
  return absl::OkStatus();
}

PinnedScratch::~PinnedScratch() { api_.free_pinned(data_); }

absl::Status PinnedScratch::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) {
    return absl::OkStatus();
  }
  RequireGpu(api_, api_.free_pinned(data_), "free pinned");
  data_ = nullptr;
  capacity_bytes_ = 0;
  void* data = nullptr;
  if (api_.allocate_pinned(&data, static_cast<size_t>(bytes)) != 0) {
    return NoRoom("the host", bytes);
  }
  data_ = static_cast<std::byte*>(data);
  capacity_bytes_ = bytes;
  return absl::OkStatus();
}

void RequireMemory(const absl::Status& reserved) {
  if (!reserved.ok()) {
    LogError("a step found no memory; the worker ends",
             {{"text", std::string(reserved.message())}});
    ExitNow(kExitDevice);
  }
}

}  // namespace quire
