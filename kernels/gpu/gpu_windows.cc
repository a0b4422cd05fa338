#include "kernels/gpu/gpu_windows.h"

#include <string>

#include "common/base/error.h"
#include "kernels/gpu/gpu_memory.h"

namespace quire {
namespace {

absl::Status NoMemory(const gpu::GpuApi& api, const char* what, int error) {
  return Error(absl::StatusCode::kResourceExhausted,
               "MEMORY",
               std::string("windows: the device cannot ") + what + ": " + api.error_text(error));
}

}  // namespace

int64_t GpuWindows::PageBytes(const gpu::GpuApi& api) {
  size_t bytes = 0;
  RequireGpu(api, api.window_page_bytes(&bytes), "window page bytes");
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<std::unique_ptr<WindowMemory>> GpuWindows::Create(const gpu::GpuApi& api,
                                                                 gpu::Stream stream,
                                                                 const WindowShape& shape) {
  gpu::Windows windows;
  const int error = api.create_windows({.block_bytes = static_cast<size_t>(shape.block_bytes),
                                        .num_blocks = shape.num_blocks,
                                        .num_places = shape.num_places},
                                       &windows);
  if (error != 0) {
    return NoMemory(api, "allocate so many blocks and places", error);
  }
  std::unique_ptr<WindowMemory> made(new GpuWindows(api, stream, shape, windows));
  if (absl::Status status = made->Clear(); !status.ok()) {
    return status;
  }
  return made;
}

GpuWindows::~GpuWindows() { api_.destroy_windows(handle_); }

absl::Status GpuWindows::Map(int64_t place, BlockId block, int64_t count) {
  const int error = api_.map_places(handle_, place, block, count);
  return error == 0 ? absl::OkStatus() : NoMemory(api_, "map blocks", error);
}

absl::Status GpuWindows::Unmap(int64_t place, int64_t count) {
  const int error = api_.unmap_places(handle_, place, count);
  return error == 0 ? absl::OkStatus() : NoMemory(api_, "unmap blocks", error);
}

absl::Status GpuWindows::Clear() {
  const auto bytes = static_cast<size_t>(shape().num_blocks * shape().block_bytes);
  RequireGpu(api_, api_.fill_bytes(pool(), 0, bytes, stream_), "clear");
  return absl::OkStatus();
}

}  // namespace quire
