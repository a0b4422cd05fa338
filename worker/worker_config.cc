#include "worker/worker_config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/shortest_decimal.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"
#include "common/flags/port_check.h"
#include "common/wire/worker_address.h"
#include "worker/kv_cache/available_memory.h"

ABSL_FLAG(std::string,
          model,
          "",
          "Hugging Face model directory or GGUF file (may also be given without --model).");
ABSL_FLAG(std::string,
          listen,
          "",
          "Address that the scheduler connects to: unix:/path or host:port. Port 0: any free port. "
          "Empty: a Unix socket in a folder that only this user may enter.");
ABSL_FLAG(bool,
          allow_insecure_bind,
          false,
          "Allow --listen and --http-host on addresses that other machines reach without TLS. GPU "
          "ranks on such an address need it even with TLS, because NCCL does not encrypt. For "
          "isolated networks only.");
ABSL_FLAG(std::string, http_host, "127.0.0.1", "Address that the HTTP port listens on.");
ABSL_FLAG(int32_t,
          http_port,
          -1,
          "Port for metrics and health checks. 0: any free port. -1: no HTTP port.");
ABSL_FLAG(std::string,
          ssl_certfile,
          "",
          "Certificate of --listen in PEM, with its chain. Turns on TLS. Files are read again when "
          "they change.");
ABSL_FLAG(std::string, ssl_keyfile, "", "Private key of --ssl-certfile in PEM, not encrypted.");
ABSL_FLAG(std::string,
          ssl_ca_certs,
          "",
          "Certificate authorities in PEM. A scheduler must present a certificate of one of them.");
ABSL_FLAG(int32_t,
          tensor_parallel_size,
          1,
          "Number of workers (ranks) that a model is split over: 1, 2, 4 or 8. Each rank holds its "
          "part of the weights and of every KV block. Must be the same for all ranks.");
ABSL_FLAG(int32_t,
          rank,
          0,
          "Rank of this worker, from 0: its position in the scheduler's --workers.");
ABSL_FLAG(int32_t,
          ranks_on_host,
          1,
          "Number of workers on this machine. Divides the defaults of --threads, "
          "--kv-cache-memory-bytes and --swap-space.");
ABSL_FLAG(std::string,
          device,
          "auto",
          "Device that runs the model: cpu, cuda, emu (the GPU kernels emulated on the CPU; slow, "
          "for tests), or auto (cuda if it works, else cpu).");
ABSL_FLAG(int32_t,
          device_index,
          0,
          "Index of the first GPU to use. The workers of this machine take this GPU and the next "
          "ones in order of rank. They share GPUs if there are fewer than --ranks-on-host.");
ABSL_FLAG(std::string,
          dtype,
          "auto",
          "Data type of a GPU's computations: bfloat16, float16, or auto (the model's type; "
          "bfloat16 for a float32 model).");
ABSL_FLAG(bool, enforce_eager, false, "Do not use graphs (CUDA graphs) on a GPU.");
ABSL_FLAG(
    bool,
    batch_invariant,
    false,
    "Make a request's tokens on a GPU independent of the other requests in the batch. Slower.");
ABSL_FLAG(
    std::string,
    quantization,
    "none",
    "Rounds weights when they are loaded. On a GPU: fp8 rounds the weights of the layers to "
    "8 bits (e4m3), with a scale for each output channel, and their inputs in each step, with "
    "a scale for each token. On a CPU: int8 rounds all matrices to 8 bits, int4 those of the "
    "layers to 4 bits, with a scale for each 32 weights; --activation-type applies. "
    "Quantized weights of GGUF files stay as they are; a directory of quantized weights is "
    "refused. none: no rounding.");
ABSL_FLAG(std::string,
          activation_type,
          "int8",
          "On a CPU: type to which inputs of quantized weights are rounded. int8: 8 bits, with a "
          "scale for each 32 inputs of a token. float32: no rounding; slower with many tokens.");
ABSL_FLAG(std::string,
          gemm_cache,
          "auto",
          "On a GPU: file that keeps the fastest algorithms for matrix products for the next "
          "start. auto: quire/gemm-cache in $XDG_CACHE_HOME or ~/.cache. none: no file.");
ABSL_FLAG(double,
          gpu_memory_utilization,
          0.9,
          "Share of a GPU's memory, in (0, 1], for weights, workspace and KV cache together.");
ABSL_FLAG(std::string,
          cpu_isa,
          "",
          "CPU instruction set: amx, avx512bf16, avx512 (fp32 products also of bf16 weights), avx2 "
          "or portable. Empty: the first of these that the machine has.");
ABSL_FLAG(
    std::string,
    load_format,
    "auto",
    "Source of the weights: auto or safetensors (the files of the model, also GGUF), or dummy "
    "(random weights for benchmarks; only the configuration is read).");
ABSL_FLAG(int32_t,
          threads,
          0,
          "Number of compute threads. 0: one for each CPU that this process may use.");
ABSL_FLAG(std::string,
          kv_cache_memory_bytes,
          "",
          "Memory of the KV cache, for example 4GiB. Empty: on a GPU the memory that "
          "--gpu-memory-utilization leaves, on a CPU 30 % of the available memory, at most 4 GiB.");
ABSL_FLAG(std::string,
          kv_backend,
          "paged",
          "How attention finds the KV blocks of a sequence. paged: through a block table. vmm: the "
          "blocks are mapped one after another into virtual memory.");
ABSL_FLAG(std::string,
          swap_space,
          "",
          "Host memory for the KV blocks of preempted requests, for example 16GiB; pinned with a "
          "GPU. 0: none. It is allocated when a scheduler asks for it. Empty: 4 GiB, or a quarter "
          "of the machine's memory if that is less.");
ABSL_FLAG(int32_t,
          num_gpu_blocks_override,
          0,
          "Number of KV blocks; overrides --kv-cache-memory-bytes. 0: as many as fit in the memory "
          "of the KV cache.");
ABSL_FLAG(
    std::string,
    fail_points,
    "",
    "For tests: fail on purpose, for example crash-before-step=3. worker/README.md lists them.");

namespace quire {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;
constexpr int32_t kMaxThreads = 1024;
// Only a sanity bound: the driver checks whether the GPU exists.
constexpr int32_t kMaxDeviceIndex = 4095;

absl::StatusOr<std::string> ModelDir(const std::vector<std::string>& positional) {
  std::string model_dir = absl::GetFlag(FLAGS_model);
  if (positional.size() > 1 || (!positional.empty() && !model_dir.empty())) {
    return FlagError("model", "must be one model, given once");
  }
  if (!positional.empty()) {
    model_dir = positional.front();
  }
  if (model_dir.empty()) {
    return FlagError("model", "a model directory or GGUF file is needed");
  }
  return model_dir;
}

absl::StatusOr<WorkerDevice> Device() {
  const std::string device = absl::GetFlag(FLAGS_device);
  for (const auto& [name, value] : {std::pair("auto", WorkerDevice::kAuto),
                                    std::pair("cpu", WorkerDevice::kCpu),
                                    std::pair("cuda", WorkerDevice::kCuda),
                                    std::pair("emu", WorkerDevice::kEmulated)}) {
    if (device == name) {
      return value;
    }
  }
  return FlagError("device", absl::StrCat("must be auto, cpu, cuda or emu (got ", device, ")"));
}

// Sets gpu.quantization or cpu_quantization.
absl::Status SetQuantization(WorkerConfig& config) {
  const std::string name = absl::GetFlag(FLAGS_quantization);
  if (name == "none") {
    return absl::OkStatus();
  }
  const bool may_be_cpu =
      config.device == WorkerDevice::kCpu || config.device == WorkerDevice::kAuto;
  if (name == "fp8" && config.device != WorkerDevice::kCpu) {
    config.gpu.quantization = GpuQuantization::kFp8;
  } else if (name == "int8" && may_be_cpu) {
    config.cpu_quantization = CpuQuantization::kInt8;
  } else if (name == "int4" && may_be_cpu) {
    config.cpu_quantization = CpuQuantization::kInt4;
  } else if (name == "fp8") {
    return FlagError("quantization",
                     "fp8 needs a GPU (--device=cuda); the CPU does not support it");
  } else if (name == "int8" || name == "int4") {
    return FlagError("quantization",
                     absl::StrCat(name, " needs a CPU (--device=cpu); GPUs do not support it"));
  } else {
    return FlagError("quantization",
                     absl::StrCat("must be none, fp8, int8 or int4 (got ", name, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<InputType> CpuInputType() {
  const std::string name = absl::GetFlag(FLAGS_activation_type);
  if (name == "int8") {
    return InputType::kInt8;
  }
  if (name == "float32") {
    return InputType::kF32;
  }
  return FlagError("activation-type", absl::StrCat("must be int8 or float32 (got ", name, ")"));
}

std::string GemmCachePath() {
  const std::string path = absl::GetFlag(FLAGS_gemm_cache);
  if (path == "auto") {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing in the process changes the environment
    return DefaultGemmCachePath(std::getenv("XDG_CACHE_HOME"), std::getenv("HOME"));
  }
  return path == "none" ? "" : path;
}

absl::StatusOr<GpuOptions> Gpu() {
  GpuOptions gpu;
  gpu.device_index = absl::GetFlag(FLAGS_device_index);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("device-index", gpu.device_index, 0, kMaxDeviceIndex));
  const std::string dtype = absl::GetFlag(FLAGS_dtype);
  gpu.dtype = DTypeFromName(dtype);
  if (dtype != "auto" && gpu.dtype != DType::kBF16 && gpu.dtype != DType::kF16) {
    return FlagError("dtype", absl::StrCat("must be auto, bfloat16 or float16 (got ", dtype, ")"));
  }
  gpu.use_graphs = !absl::GetFlag(FLAGS_enforce_eager);
  gpu.batch_invariant = absl::GetFlag(FLAGS_batch_invariant);
  gpu.gemm_cache_path = GemmCachePath();
  gpu.memory_utilization = absl::GetFlag(FLAGS_gpu_memory_utilization);
  if (!(gpu.memory_utilization > 0.0 && gpu.memory_utilization <= 1.0)) {
    return FlagError("gpu-memory-utilization",
                     absl::StrCat("must be more than 0 and at most 1 (got ",
                                  ShortestDecimal(gpu.memory_utilization),
                                  ")"));
  }
  return gpu;
}

absl::StatusOr<bool> IsDummy() {
  const std::string format = absl::GetFlag(FLAGS_load_format);
  if (format == "auto" || format == "safetensors" || format == "dummy") {
    return format == "dummy";
  }
  return FlagError("load-format",
                   absl::StrCat("must be auto, safetensors or dummy (got ", format, ")"));
}

// Returns null if no TLS flag is given: connections are then not encrypted. With TLS, a peer must
// always present a certificate, since any peer that connects can command the worker.
absl::StatusOr<std::shared_ptr<TlsFiles>> Tls() {
  const TlsTexts paths = {.certificate = absl::GetFlag(FLAGS_ssl_certfile),
                          .key = absl::GetFlag(FLAGS_ssl_keyfile),
                          .authorities = absl::GetFlag(FLAGS_ssl_ca_certs)};
  if (paths.is_empty()) {
    return nullptr;
  }
  if (paths.certificate.empty() || paths.authorities.empty()) {
    return FlagError("ssl-certfile",
                     "must be given together with --ssl-keyfile and --ssl-ca-certs");
  }
  return TlsFiles::Open(paths);
}

// Returns --listen, or the default address. Links between ranks need no check here: the key that
// encrypts these links comes over this port, and TLS keeps that key secret. CheckRankLinks checks
// the links of GPU ranks, which NCCL does not encrypt. REQUIRES: config.tls and
// config.allows_insecure_bind have been read from the flags.
absl::StatusOr<Address> ListenAddress(const WorkerConfig& config) {
  const std::string text = absl::GetFlag(FLAGS_listen);
  absl::StatusOr<Address> address = text.empty() ? DefaultWorkerAddress() : ParseAddress(text);
  if (!address.ok()) {
    return FlagError("listen", ToStd(address.status().message()));
  }
  if (address->is_local() || config.tls != nullptr || config.allows_insecure_bind) {
    return address;
  }
  return FlagError("listen",
                   "other machines reach this address and the connection is not encrypted: use "
                   "a loopback address, a Unix socket or --ssl-certfile, --ssl-keyfile and "
                   "--ssl-ca-certs, or give --allow-insecure-bind");
}

absl::StatusOr<std::optional<Address>> HttpAddress() {
  const int32_t port = absl::GetFlag(FLAGS_http_port);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("http-port", port, -1, kMaxPort));
  const std::string flag = "http-host";
  QUIRE_ASSIGN_OR_RETURN(
      const Address address,
      HostAddress(flag, absl::GetFlag(FLAGS_http_host), std::max(port, int32_t{0})));
  QUIRE_RETURN_IF_ERROR(
      CheckReachable(flag, address, /*has_tls=*/false, absl::GetFlag(FLAGS_allow_insecure_bind)));
  return port < 0 ? std::nullopt : std::make_optional(address);
}

// Returns this worker's rank and the number of ranks. ShareOf checks later whether the model can be
// split over so many ranks.
absl::StatusOr<RankPlace> Place() {
  const RankPlace place = {.rank = absl::GetFlag(FLAGS_rank),
                           .size = absl::GetFlag(FLAGS_tensor_parallel_size)};
  if (place.size < 1 || place.size > kMaxRanks || kMaxRanks % place.size != 0) {
    return FlagError("tensor-parallel-size",
                     absl::StrCat("must be 1, 2, 4 or 8 (got ", place.size, ")"));
  }
  if (place.rank < 0 || place.rank >= place.size) {
    return FlagError("rank",
                     absl::StrCat("must be in [0, ",
                                  place.size - 1,
                                  "], below --tensor-parallel-size (got ",
                                  place.rank,
                                  ")"));
  }
  return place;
}

absl::StatusOr<KvBackend> KvBackendFromFlag() {
  const std::string name = absl::GetFlag(FLAGS_kv_backend);
  if (name == "paged") {
    return KvBackend::kPaged;
  }
  if (name == "vmm") {
    return KvBackend::kVmm;
  }
  return FlagError("kv-backend", absl::StrCat("must be paged or vmm (got ", name, ")"));
}

absl::StatusOr<KvCacheBudget> Budget() {
  const int32_t sharers = absl::GetFlag(FLAGS_ranks_on_host);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("ranks-on-host", sharers, 1, kMaxRanks));
  KvCacheBudget budget;
  QUIRE_ASSIGN_OR_RETURN(budget.backend, KvBackendFromFlag());
  budget.num_blocks_override = absl::GetFlag(FLAGS_num_gpu_blocks_override);
  if (budget.num_blocks_override < 0 || budget.num_blocks_override == 1) {
    return FlagError("num-gpu-blocks-override",
                     absl::StrCat("must be 0 or at least 2, since one is the null block (got ",
                                  budget.num_blocks_override,
                                  ")"));
  }
  const std::string swap_space = absl::GetFlag(FLAGS_swap_space);
  if (swap_space.empty()) {
    budget.swap_space_bytes = DefaultSwapSpaceBytes(TotalMemoryBytes()) / sharers;
  } else if (swap_space != "0") {
    std::optional<int64_t> bytes = ParseByteSize(swap_space);
    if (!bytes.has_value()) {
      return FlagError(
          "swap-space",
          absl::StrCat(
              "must be a number of bytes, for example 16GiB, or 0 (got ", swap_space, ")"));
    }
    budget.swap_space_bytes = *bytes;
  }
  std::string text = absl::GetFlag(FLAGS_kv_cache_memory_bytes);
  if (text.empty()) {
    budget.bytes = DefaultKvCacheBytes(AvailableMemoryBytes()) / sharers;
    return budget;
  }
  std::optional<int64_t> bytes = ParseByteSize(text);
  if (!bytes.has_value()) {
    return FlagError("kv-cache-memory-bytes",
                     absl::StrCat("must be a number of bytes, for example 4GiB (got ", text, ")"));
  }
  budget.bytes = *bytes;
  return budget;
}

// Returns the binary exponent of a unit: 0 for "" or "b", 10 for "k" or "KiB", 20 for "m" or "MiB",
// 30 for "g" or "GiB", 40 for "t" or "TiB"; capital and small letters are the same.
// Returns nullopt for any other text.
std::optional<int> UnitShift(std::string_view unit) {
  std::string lower = absl::AsciiStrToLower(ToAbsl(unit));
  int shift = 0;
  for (std::string letter : {"k", "m", "g", "t"}) {
    shift += 10;
    if (lower == letter || lower == letter + "ib") {
      return shift;
    }
  }
  return lower.empty() || lower == "b" ? std::optional<int>(0) : std::nullopt;
}

}  // namespace

std::string DefaultGemmCachePath(const char* xdg_cache_home, const char* home) {
  const auto is_absolute = [](const char* path) {
    return path != nullptr && std::filesystem::path(path).is_absolute();
  };
  if (is_absolute(xdg_cache_home)) {
    return std::filesystem::path(xdg_cache_home) / "quire" / "gemm-cache";
  }
  return is_absolute(home) ? std::filesystem::path(home) / ".cache" / "quire" / "gemm-cache" : "";
}

std::optional<int64_t> ParseByteSize(std::string_view text) {
  std::string_view digits = text.substr(0, text.find_first_not_of("0123456789"));
  std::optional<int> shift = UnitShift(text.substr(digits.size()));
  int64_t number = 0;
  if (!shift.has_value() || !absl::SimpleAtoi(ToAbsl(digits), &number) || number < 1) {
    return std::nullopt;
  }
  return CheckedMultiply(number, int64_t{1} << *shift);
}

int64_t DefaultKvCacheBytes(std::optional<int64_t> available_bytes) {
  if (!available_bytes.has_value()) {
    return kGibibyte;
  }
  return std::min(4 * kGibibyte, *available_bytes / 10 * 3);
}

int64_t DefaultSwapSpaceBytes(std::optional<int64_t> total_bytes) {
  return std::min(4 * kGibibyte, total_bytes.value_or(16 * kGibibyte) / 4);
}

absl::StatusOr<WorkerConfig> WorkerConfigFromFlags(const std::vector<std::string>& positional) {
  WorkerConfig config;
  QUIRE_ASSIGN_OR_RETURN(config.model_dir, ModelDir(positional));
  QUIRE_ASSIGN_OR_RETURN(config.device, Device());
  QUIRE_ASSIGN_OR_RETURN(config.gpu, Gpu());
  QUIRE_RETURN_IF_ERROR(SetQuantization(config));
  QUIRE_ASSIGN_OR_RETURN(config.has_dummy_weights, IsDummy());
  QUIRE_ASSIGN_OR_RETURN(config.http, HttpAddress());
  QUIRE_ASSIGN_OR_RETURN(config.place, Place());
  config.allows_insecure_bind = absl::GetFlag(FLAGS_allow_insecure_bind);
  QUIRE_ASSIGN_OR_RETURN(config.tls, Tls());
  QUIRE_ASSIGN_OR_RETURN(config.listen, ListenAddress(config));
  config.num_threads = absl::GetFlag(FLAGS_threads);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("threads", config.num_threads, 0, kMaxThreads));
  config.ranks_on_host = absl::GetFlag(FLAGS_ranks_on_host);
  config.cpu_isa = absl::GetFlag(FLAGS_cpu_isa);
  QUIRE_ASSIGN_OR_RETURN(config.cpu_input_type, CpuInputType());
  QUIRE_ASSIGN_OR_RETURN(config.kv_cache, Budget());
  config.kv_cache_bytes_given = !absl::GetFlag(FLAGS_kv_cache_memory_bytes).empty();
  config.swap_space_given = !absl::GetFlag(FLAGS_swap_space).empty();
  QUIRE_ASSIGN_OR_RETURN(config.fail_points, ParseFailPoints(absl::GetFlag(FLAGS_fail_points)));
  return config;
}

}  // namespace quire
