// GpuLibrary opens the shared library with the kernels: quire_cuda.so for "cuda", quire_emu.so for
// "emu". It lies beside the program, or in the folder that QUIRE_LIBRARY_PATH names, absolutely.
//
// Thread safety: Open from any thread; the api's functions as they say.
// Errors:        kFailedPrecondition, reason DEVICE: a folder that is not absolute, no such
// library,
//                one of another version, or no device (the message says which and what to do).
#ifndef QUIRE_KERNELS_GPU_GPU_LIBRARY_H_
#define QUIRE_KERNELS_GPU_GPU_LIBRARY_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

#include "kernels/cuda/gpu_api.h"

namespace quire {

class GpuLibrary {
 public:
  // Of a library that is open and stays so.
  GpuLibrary(const gpu::GpuApi& api, const gpu::DeviceInfo& device) : api_(&api), device_(device) {}

  // The library stays open until the process ends: its kernels are registered with the driver. The
  // calling thread's current device stays what it was: CreateGpuBackend changes it.
  static absl::StatusOr<GpuLibrary> Open(std::string_view name, int32_t device);

  const gpu::GpuApi& api() const { return *api_; }
  const gpu::DeviceInfo& device() const { return device_; }

 private:
  const gpu::GpuApi* api_;
  gpu::DeviceInfo device_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_LIBRARY_H_
