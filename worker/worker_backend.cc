#include "worker/worker_backend.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"

namespace quire {
namespace {

// A step of the usual largest size. A larger one takes its workspace from the slack.
constexpr int32_t kMaxUsualTokens = 8192;
constexpr int32_t kMaxUsualSequences = 512;
// For what is not known yet: graphs, the inputs of steps, partial results of long contexts.
constexpr int64_t kMaxSlackBytes = int64_t{1} << 30;

absl::Status WithFlag(std::string_view flag, const absl::Status& status) {
  return Error(status.code(), "FLAG", absl::StrCat("--", ToAbsl(flag), ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<KernelBackend>> CreateCpu(const WorkerConfig& config) {
  auto backend = CreateCpuBackend({.num_threads = config.num_threads, .isa = config.cpu_isa});
  if (!backend.ok()) {
    return WithFlag("cpu-isa", backend.status());
  }
  return backend;
}

absl::StatusOr<std::unique_ptr<KernelBackend>> CreateGpu(const WorkerConfig& config,
                                                         std::string_view library_name) {
  auto library = GpuLibrary::Open(library_name, config.gpu.device_index);
  if (!library.ok()) {
    return WithFlag("device", library.status());
  }
  auto backend = CreateGpuBackend(*library,
                                  {.dtype = config.gpu.dtype,
                                   .use_graphs = config.gpu.use_graphs,
                                   .batch_invariant = config.gpu.batch_invariant,
                                   .quantization = config.gpu.quantization,
                                   .gemm_cache_path = config.gpu.gemm_cache_path});
  if (!backend.ok()) {
    return WithFlag("device", backend.status());
  }
  return backend;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelBackend>> CreateBackend(const WorkerConfig& config) {
  switch (config.device) {
    case WorkerDevice::kCpu:
      return CreateCpu(config);
    case WorkerDevice::kCuda:
      return CreateGpu(config, "cuda");
    case WorkerDevice::kEmulated:
      return CreateGpu(config, "emu");
    case WorkerDevice::kAuto:
      break;
  }
  auto gpu = CreateGpu(config, "cuda");
  // What was asked for is not silently left out.
  if (gpu.ok() || config.gpu.quantization != GpuQuantization::kNone) {
    return gpu;
  }
  LogInfo("computing on the CPU", {{"gpu", std::string(gpu.status().message())}});
  return CreateCpu(config);
}

absl::StatusOr<KvCacheBudget> SizeKvCache(const WorkerConfig& config,
                                          const KernelBackend& backend,
                                          Model& model) {
  KvCacheBudget budget = config.kv_cache;
  if (config.kv_cache_bytes_given || !backend.space().has_value()) {
    return budget;
  }
  QUIRE_RETURN_IF_ERROR(model.Reserve(kMaxUsualTokens, kMaxUsualSequences));
  const DeviceSpace space = *backend.space();
  const auto total = static_cast<double>(space.total_bytes);
  const auto kept = static_cast<int64_t>((1.0 - config.gpu.memory_utilization) * total);
  const int64_t slack = std::min(kMaxSlackBytes, space.total_bytes / 20);
  budget.bytes = space.free_bytes - kept - slack;
  if (budget.bytes <= 0) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 absl::StrCat("the device has no memory left for a KV cache (free ",
                              space.free_bytes,
                              " of ",
                              space.total_bytes,
                              " bytes): raise --gpu-memory-utilization or take a smaller model"));
  }
  return budget;
}

}  // namespace quire
