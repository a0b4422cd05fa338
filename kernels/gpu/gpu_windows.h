// GpuWindows holds a KV pool on the device, and windows: further addresses at which blocks of the
// pool can be read (kernels/cuda/windows.h).
//
// Thread safety: as WindowMemory; a thread must call KernelBackend::BindThread before it calls Map
//                or Unmap.
// Errors:        a failing device ends the process, as in GpuBackend.
#ifndef QUIRE_KERNELS_GPU_GPU_WINDOWS_H_
#define QUIRE_KERNELS_GPU_GPU_WINDOWS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/api/window_memory.h"
#include "kernels/cuda/gpu_api.h"

namespace quire {

class GpuWindows final : public WindowMemory {
 public:
  // Returns the page size of windows on the current device, or 0 if the device cannot map windows.
  static int64_t PageBytes(const gpu::GpuApi& api);
  // Allocates on the current device; the pool is zeroed. Errors: kResourceExhausted, reason MEMORY.
  static absl::StatusOr<std::unique_ptr<WindowMemory>> Create(const gpu::GpuApi& api,
                                                              gpu::Stream stream,
                                                              const WindowShape& shape);
  ~GpuWindows() override;

  // A device can have a block mapped into every place (an address range in the windows) at the same
  // time. Only the device's address space limits the number of places.
  int64_t max_mapped_places() const override { return shape().num_places; }
  absl::Status Map(int64_t place, BlockId block, int64_t count) override;
  absl::Status Unmap(int64_t place, int64_t count) override;
  absl::Status Clear() override;

 private:
  GpuWindows(const gpu::GpuApi& api,
             gpu::Stream stream,
             const WindowShape& shape,
             const gpu::Windows& windows)
      : WindowMemory(shape, windows.pool, windows.places),
        api_(api),
        stream_(stream),
        handle_(windows.handle) {}

  const gpu::GpuApi& api_;
  const gpu::Stream stream_;
  void* const handle_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_WINDOWS_H_
