#include "worker/worker_backend.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "worker/kv_cache/available_memory.h"

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
  auto backend = CreateCpuBackend({.num_threads = config.num_threads,
                                   .num_sharers = config.ranks_on_host,
                                   .isa = config.cpu_isa});
  if (!backend.ok()) {
    return WithFlag("cpu-isa", backend.status());
  }
  return backend;
}

// The library with the GPU of this rank: the ranks of a machine take one after another, around.
absl::StatusOr<GpuLibrary> OpenGpu(const WorkerConfig& config, std::string_view library_name) {
  const int32_t first = config.gpu.device_index;
  auto library = GpuLibrary::Open(library_name, first);
  if (!library.ok()) {
    return WithFlag("device", library.status());
  }
  int32_t count = first + 1;  // at least: this one is there
  static_cast<void>(library->api().count_devices(&count));
  if (count < config.ranks_on_host) {
    if (!config.kv_cache_bytes_given) {
      return WithFlag(
          "kv-cache-memory-bytes",
          InvalidArgument("DEVICE",
                          absl::StrCat("ranks share a GPU, so say what each may take (ranks here ",
                                       config.ranks_on_host,
                                       ", GPUs ",
                                       count,
                                       ")")));
    }
    LogWarning("ranks share a GPU: slow, for trials",
               {{"ranks", absl::StrCat(config.ranks_on_host)}, {"gpus", absl::StrCat(count)}});
  }
  const int32_t index = (first + config.place.rank % config.ranks_on_host) % count;
  return index == first ? library : GpuLibrary::Open(library_name, index);
}

absl::StatusOr<std::unique_ptr<KernelBackend>> CreateGpu(const WorkerConfig& config,
                                                         std::string_view library_name) {
  QUIRE_ASSIGN_OR_RETURN(const GpuLibrary library, OpenGpu(config, library_name));
  auto backend = CreateGpuBackend(library,
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

absl::Status NoMemory(std::string_view rule, int64_t got_bytes, int64_t limit_bytes) {
  return Error(absl::StatusCode::kResourceExhausted,
               "MEMORY",
               absl::StrCat(ToAbsl(rule), " (got ", got_bytes, " bytes, limit ", limit_bytes, ")"));
}

// The null block and one more, of the smallest kind that a scheduler may ask for: with less no
// scheduler can serve a request.
absl::Status CheckHoldsBlocks(const KvCacheBudget& budget,
                              const KernelBackend& backend,
                              const ModelConfig& config) {
  const KvCacheSpec smallest = {.num_layers = config.num_layers,
                                .num_kv_heads = config.num_kv_heads,
                                .head_dim = config.head_dim,
                                .block_size_tokens = 1,
                                .dtype = DType::kF8E4M3};
  const int64_t needed_bytes = 2 * backend.LayoutFor(smallest).block_bytes();
  if (budget.num_blocks_override == 0 && budget.bytes < needed_bytes) {
    return NoMemory("KV cache: two blocks of one token take more", needed_bytes, budget.bytes);
  }
  return absl::OkStatus();
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

absl::Status CheckMemory(const WorkerConfig& config,
                         const std::optional<DeviceSpace>& device,
                         std::optional<int64_t> total_bytes) {
  // Pools are taken page by page, so the kernel would say yes and end the process later.
  int64_t left_bytes = total_bytes.value_or(std::numeric_limits<int64_t>::max());
  if (config.kv_cache_bytes_given) {
    const int64_t limit = device.has_value() ? device->free_bytes : left_bytes;
    if (config.kv_cache.bytes > limit) {
      return NoMemory("--kv-cache-memory-bytes: more than there is", config.kv_cache.bytes, limit);
    }
    left_bytes -= device.has_value() ? 0 : config.kv_cache.bytes;
  }
  if (config.kv_cache.swap_space_bytes > left_bytes) {
    return NoMemory("--swap-space: more than there is beside the KV cache",
                    config.kv_cache.swap_space_bytes,
                    left_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<KvCacheBudget> SizeKvCache(const WorkerConfig& config,
                                          const KernelBackend& backend,
                                          Model& model) {
  KvCacheBudget budget = config.kv_cache;
  if (!backend.space().has_value()) {
    if (const auto total = TotalMemoryBytes(); total.has_value()) {
      budget.most_bytes = *total - budget.swap_space_bytes;
    }
  }
  if (config.kv_cache_bytes_given || !backend.space().has_value()) {
    QUIRE_RETURN_IF_ERROR(CheckHoldsBlocks(budget, backend, model.config()));
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
  QUIRE_RETURN_IF_ERROR(CheckHoldsBlocks(budget, backend, model.config()));
  return budget;
}

}  // namespace quire
