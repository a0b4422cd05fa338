#include "worker/worker_backend.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"
#include "kernels/api/weight_format.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"

namespace quire {
namespace {

absl::Status WithFlag(std::string_view flag, const absl::Status& status) {
  return Error(status.code(), "FLAG", absl::StrCat("--", ToAbsl(flag), ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<KernelBackend>> CreateCpu(const WorkerConfig& config) {
  auto backend = CreateCpuBackend(CpuOptions(config));
  if (!backend.ok()) {
    return WithFlag("cpu-isa", backend.status());
  }
  return backend;
}

// Opens the GPU library for this rank's GPU. The ranks of a machine take the machine's GPUs round
// robin, starting with device_index.
absl::StatusOr<GpuLibrary> OpenGpu(const WorkerConfig& config, std::string_view library_name) {
  const int32_t first = config.gpu.device_index;
  auto library = GpuLibrary::Open(library_name, first);
  if (!library.ok()) {
    return WithFlag("device", library.status());
  }
  int32_t count = 0;
  if (library->api().count_devices(&count) != 0) {
    count = first + 1;  // a lower bound: Open has found this GPU
  }
  if (count < config.ranks_on_host) {
    if (!config.kv_cache_bytes_given) {
      return WithFlag(
          "kv-cache-memory-bytes",
          InvalidArgument("DEVICE",
                          absl::StrCat("must be given if ranks share a GPU (ranks on this machine ",
                                       config.ranks_on_host,
                                       ", GPUs ",
                                       count,
                                       ")")));
    }
    LogWarning("ranks share a GPU; this is slow and only for trials",
               {{"ranks", absl::StrCat(config.ranks_on_host)}, {"gpus", absl::StrCat(count)}});
  }
  const int32_t index = (first + config.place.rank % config.ranks_on_host) % count;
  return index == first ? library : GpuLibrary::Open(library_name, index);
}

// Makes NCCL add in the same order inside and outside of CUDA graphs. By default NCCL registers the
// buffers of graphs, and can choose another algorithm for registered buffers. REQUIRES: the process
// has one thread, because setenv takes no lock.
void ForbidGraphRegistration() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): see above
  ::setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/1);
}

absl::StatusOr<std::unique_ptr<KernelBackend>> CreateGpu(const WorkerConfig& config,
                                                         std::string_view library_name) {
  ForbidGraphRegistration();
  QUIRE_ASSIGN_OR_RETURN(const GpuLibrary library, OpenGpu(config, library_name));
  auto backend = CreateGpuBackend(library,
                                  {.dtype = config.gpu.dtype,
                                   .use_graphs = config.gpu.use_graphs,
                                   // Recording CUDA graphs would take minutes on the emulator.
                                   .records_at_start = library_name == "cuda",
                                   .batch_invariant = config.gpu.batch_invariant,
                                   .quantization = config.gpu.quantization,
                                   .gemm_cache_path = config.gpu.gemm_cache_path});
  if (!backend.ok()) {
    return WithFlag("device", backend.status());
  }
  return backend;
}

}  // namespace

CpuBackendOptions CpuOptions(const WorkerConfig& config) {
  return {.num_threads = config.num_threads,
          .num_sharers = config.ranks_on_host,
          .isa = config.cpu_isa,
          .input_type = config.cpu_input_type,
          .quantization = config.cpu_quantization};
}

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
  if (config.cpu_quantization != CpuQuantization::kNone) {
    LogInfo("computing on the CPU", {{"why", "--quantization"}});
    return CreateCpu(config);
  }
  auto gpu = CreateGpu(config, "cuda");
  // The CPU backend has no fp8 products, and a --quantization flag must not be ignored silently.
  if (gpu.ok() || config.gpu.quantization != GpuQuantization::kNone) {
    return gpu;
  }
  std::string_view why = ToStd(gpu.status().message());
  constexpr std::string_view kFlag = "--device: ";  // dropped: the user has not given this flag
  why.remove_prefix(why.starts_with(kFlag) ? kFlag.size() : 0);
  LogInfo("computing on the CPU", {{"why", std::string(why)}});
  return CreateCpu(config);
}

absl::Status CheckKvBackend(const WorkerConfig& config, const KernelBackend& backend) {
  return config.kv_cache.backend == KvBackend::kPaged || backend.window_page_bytes() > 0
             ? absl::OkStatus()
             : FlagError("kv-backend",
                         "vmm: this device cannot map KV blocks into virtual memory, or "
                         "quire_cuda.so was built with a CUDA toolkit before 12.5");
}

absl::Status CheckRankLinks(const WorkerConfig& config, const KernelBackend& backend) {
  const bool is_on_gpu = backend.space().has_value();
  if (config.place.size == 1 || !is_on_gpu || config.listen.is_local() ||
      config.allows_insecure_bind) {
    return absl::OkStatus();
  }
  return FlagError("listen",
                   "other machines reach this address, and NCCL does not encrypt the data between "
                   "GPU ranks; give --allow-insecure-bind if the network is isolated");
}

absl::Status CheckQuantization(const WorkerConfig& config,
                               const ModelConfig& model,
                               const RankShare& share) {
  const bool is_on_cpu = config.cpu_quantization != CpuQuantization::kNone;
  if (!is_on_cpu && config.gpu.quantization == GpuQuantization::kNone) {
    return absl::OkStatus();
  }
  if (!model.quantization.groups.empty()) {
    return FlagError("quantization",
                     "the model's weights are quantized already (quantization_config), so start "
                     "without this flag");
  }
  const std::pair<std::string_view, int64_t> widths[] = {
      {"hidden_size", model.hidden_size},
      {"head_dim, times the heads of a rank,", share.heads.count * model.head_dim},
      {"the part of intermediate_size of a rank", share.intermediate.count},
      {"word_embed_proj_dim", model.embedding_dim}};
  for (const auto& [name, width] : widths) {
    if (is_on_cpu && width % kInputGroup != 0) {
      return FlagError("quantization",
                       absl::StrCat("weights are rounded in groups, so ",
                                    ToAbsl(name),
                                    " must be a multiple of ",
                                    kInputGroup,
                                    " (got ",
                                    width,
                                    "); start without this flag"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
