// GpuLibrary opens the shared library with the kernels: quire_cuda.so for "cuda", quire_emu.so for
// "emu". The library is beside the program, or in the folder whose absolute path is in
// QUIRE_LIBRARY_PATH.
//
// Thread safety: Open is safe from any thread. For the api's functions see gpu_api.h.
// Errors:        kFailedPrecondition, reason DEVICE: the folder is not absolute, the library
//                does not exist or has another version, or there is no such device. The message
//                says which.
#ifndef QUIRE_KERNELS_GPU_GPU_LIBRARY_H_
#define QUIRE_KERNELS_GPU_GPU_LIBRARY_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

#include "kernels/cuda/gpu_api.h"

namespace quire {

class GpuLibrary {
 public:
  // REQUIRES: the library that `api` belongs to stays open.
  GpuLibrary(const gpu::GpuApi& api, const gpu::DeviceInfo& device) : api_(&api), device_(device) {}

  // The library stays open until the process ends, because its kernels are registered with the
  // driver. Leaves the calling thread's current device unchanged; CreateGpuBackend changes it.
  static absl::StatusOr<GpuLibrary> Open(std::string_view name, int32_t device);

  const gpu::GpuApi& api() const { return *api_; }
  const gpu::DeviceInfo& device() const { return device_; }

 private:
  const gpu::GpuApi* api_;
  gpu::DeviceInfo device_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_LIBRARY_H_
