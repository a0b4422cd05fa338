#include "worker/worker_config.h"

#include <algorithm>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "worker/kv_cache/available_memory.h"

ABSL_FLAG(std::string,
          model,
          "",
          "Hugging Face model directory (may also be given without --model).");
ABSL_FLAG(std::string,
          listen,
          "127.0.0.1:50061",
          "Where the scheduler dials: unix:/path or host:port; port 0 takes any free one.");
ABSL_FLAG(
    bool,
    allow_insecure_bind,
    false,
    "Listen on an address that other machines reach, unencrypted. For isolated networks only.");
ABSL_FLAG(std::string, device, "auto", "What computes: auto or cpu.");
ABSL_FLAG(std::string,
          cpu_isa,
          "",
          "Instruction set: avx512bf16, avx512, avx2 or portable. Empty: the best here.");
ABSL_FLAG(std::string, load_format, "auto", "Format of the weights: auto or safetensors.");
ABSL_FLAG(int32_t, threads, 0, "Compute threads. 0: as many as this process may run on.");
ABSL_FLAG(
    std::string,
    kv_cache_memory_bytes,
    "",
    "Memory of the KV cache, for example 4GiB. Empty: 30 % of what is available, at most 4 GiB.");
ABSL_FLAG(int32_t,
          num_gpu_blocks_override,
          0,
          "Blocks of the KV cache, whatever they take. 0: what the memory holds.");

namespace quire {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;
constexpr int32_t kMaxThreads = 1024;

absl::Status FlagError(std::string_view flag, std::string_view rule) {
  return InvalidArgument("FLAG", absl::StrCat("--", ToAbsl(flag), ": ", ToAbsl(rule)));
}

absl::StatusOr<std::string> ModelDir(const std::vector<std::string>& positional) {
  std::string model_dir = absl::GetFlag(FLAGS_model);
  if (positional.size() > 1 || (!positional.empty() && !model_dir.empty())) {
    return FlagError("model", "one model directory, given once");
  }
  if (!positional.empty()) {
    model_dir = positional.front();
  }
  if (model_dir.empty()) {
    return FlagError("model", "a model directory is needed");
  }
  return model_dir;
}

absl::Status CheckDevice() {
  std::string device = absl::GetFlag(FLAGS_device);
  if (device == "auto" || device == "cpu") {
    return absl::OkStatus();
  }
  return FlagError("device", "this worker computes on the CPU only: auto or cpu");
}

absl::Status CheckLoadFormat() {
  std::string format = absl::GetFlag(FLAGS_load_format);
  if (format == "auto" || format == "safetensors") {
    return absl::OkStatus();
  }
  return FlagError("load-format", "must be auto or safetensors");
}

absl::StatusOr<Address> ListenAddress() {
  absl::StatusOr<Address> address = ParseAddress(absl::GetFlag(FLAGS_listen));
  if (!address.ok()) {
    return FlagError("listen", ToStd(address.status().message()));
  }
  if (!address->is_local() && !absl::GetFlag(FLAGS_allow_insecure_bind)) {
    return FlagError("listen",
                     "other machines reach this address and the connection is not encrypted: use "
                     "a loopback address or a Unix socket, or give --allow-insecure-bind");
  }
  return address;
}

absl::StatusOr<KvCacheBudget> Budget() {
  KvCacheBudget budget;
  budget.num_blocks_override = absl::GetFlag(FLAGS_num_gpu_blocks_override);
  if (budget.num_blocks_override < 0 || budget.num_blocks_override == 1) {
    return FlagError("num-gpu-blocks-override", "must be 0 or at least 2 (one is the null block)");
  }
  std::string text = absl::GetFlag(FLAGS_kv_cache_memory_bytes);
  if (text.empty()) {
    budget.bytes = DefaultKvCacheBytes(AvailableMemoryBytes());
    return budget;
  }
  std::optional<int64_t> bytes = ParseByteSize(text);
  if (!bytes.has_value()) {
    return FlagError("kv-cache-memory-bytes", "must be a number of bytes, for example 4GiB");
  }
  budget.bytes = *bytes;
  return budget;
}

// How far to shift for "", "k", "kib", "mib", ...
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

absl::StatusOr<WorkerConfig> WorkerConfigFromFlags(const std::vector<std::string>& positional) {
  WorkerConfig config;
  QUIRE_ASSIGN_OR_RETURN(config.model_dir, ModelDir(positional));
  QUIRE_RETURN_IF_ERROR(CheckDevice());
  QUIRE_RETURN_IF_ERROR(CheckLoadFormat());
  QUIRE_ASSIGN_OR_RETURN(config.listen, ListenAddress());
  config.num_threads = absl::GetFlag(FLAGS_threads);
  if (config.num_threads < 0 || config.num_threads > kMaxThreads) {
    return FlagError("threads", absl::StrCat("must be in [0, ", kMaxThreads, "]"));
  }
  config.cpu_isa = absl::GetFlag(FLAGS_cpu_isa);
  QUIRE_ASSIGN_OR_RETURN(config.kv_cache, Budget());
  return config;
}

}  // namespace quire
