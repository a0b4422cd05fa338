#include "kernels/gpu/gpu_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

absl::Status DeviceError(const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "DEVICE", "device: " + what);
}

// Returns the library's folder. Fails if the path is not absolute: a relative path would depend on
// the working directory, and with an empty path dlopen would search its default folders.
absl::StatusOr<std::filesystem::path> LibraryFolder() {
  std::error_code error;
  std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing in the process changes the environment
  if (const char* given = std::getenv("QUIRE_LIBRARY_PATH"); given != nullptr) {
    folder = given;
  }
  if (!folder.is_absolute()) {
    return DeviceError("QUIRE_LIBRARY_PATH: must be an absolute path (got \"" + folder.string() +
                       "\")");
  }
  return folder;
}

std::string LastError() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc keeps one message a thread
  const char* text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

}  // namespace

absl::StatusOr<GpuLibrary> GpuLibrary::Open(std::string_view name, int32_t device) {
  QUIRE_ASSIGN_OR_RETURN(const std::filesystem::path folder, LibraryFolder());
  const std::string file = folder / ("quire_" + std::string(name) + ".so");
  if (std::error_code ignored; !std::filesystem::exists(file, ignored)) {
    return DeviceError("no GPU library is installed (" + file + ")");
  }
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    return DeviceError("cannot open the GPU library: " + LastError());
  }
  auto get = reinterpret_cast<gpu::GpuApiFunction>(dlsym(library, gpu::kGpuApiSymbol));
  const gpu::GpuApi* api = get == nullptr ? nullptr : get();
  if (api == nullptr || api->version != gpu::kGpuApiVersion) {
    return DeviceError(file +
                       " has another version than this program; install both from one build");
  }
  gpu::DeviceInfo info;
  if (const int error = api->query_device(device, &info); error != 0) {
    return DeviceError("no GPU " + std::to_string(device) + ": " + api->error_text(error));
  }
  return GpuLibrary(*api, info);
}

}  // namespace quire
