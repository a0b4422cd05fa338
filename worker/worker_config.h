// WorkerConfig is the command line of quire_worker, checked.
//
// Thread safety: a value type; WorkerConfigFromFlags is called from main.
#ifndef QUIRE_WORKER_WORKER_CONFIG_H_
#define QUIRE_WORKER_WORKER_CONFIG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/model/dtype.h"
#include "common/model/rank_share.h"
#include "common/wire/address.h"
#include "common/wire/tls_files.h"
#include "kernels/cpu/quantization.h"
#include "kernels/gpu/gpu_backend.h"
#include "worker/runtime/fail_points.h"
#include "worker/runtime/kv_pool_sizing.h"

namespace quire {

enum class WorkerDevice : uint8_t { kAuto, kCpu, kCuda, kEmulated };

struct GpuOptions {
  int32_t device_index = 0;
  std::optional<DType> dtype;  // nullopt: the model's type, or bf16 for an fp32 model
  bool use_graphs = true;
  bool batch_invariant = false;
  GpuQuantization quantization = GpuQuantization::kNone;
  std::string gemm_cache_path;      // empty: no file
  double memory_utilization = 0.9;  // fraction of the device's memory that this worker may use
};

struct WorkerConfig {
  std::string model_dir;
  bool has_dummy_weights = false;  // random weights, for benchmarks
  // A local address, unless TLS is on (schedulers then need a certificate) or allows_insecure_bind
  // is true.
  Address listen;
  bool allows_insecure_bind = false;
  std::optional<Address> http;    // a TCP address; nullopt: no HTTP port
  std::shared_ptr<TlsFiles> tls;  // null: plain text
  RankPlace place;
  int32_t num_threads = 0;  // 0: the CPUs that this process may use, divided by ranks_on_host
  int32_t ranks_on_host = 1;
  std::string cpu_isa;  // instruction set; "": the best one of this machine
  CpuQuantization cpu_quantization = CpuQuantization::kNone;
  InputType cpu_input_type = InputType::kInt8;
  WorkerDevice device = WorkerDevice::kAuto;
  GpuOptions gpu;
  KvCacheBudget kv_cache;
  bool kv_cache_bytes_given = false;  // true if --kv-cache-memory-bytes was given
  bool swap_space_given = false;      // true if --swap-space was given
  FailPointList fail_points;
};

// Errors: kInvalidArgument, reason FLAG, message "--flag: rule".
absl::StatusOr<WorkerConfig> WorkerConfigFromFlags(const std::vector<std::string>& positional);

// Returns the file of --gemm-cache=auto: quire/gemm-cache in $XDG_CACHE_HOME or in $HOME/.cache. An
// argument that is null or not absolute counts as not set. Returns "" if neither is set.
std::string DefaultGemmCachePath(const char* xdg_cache_home, const char* home);

// Parses a number of bytes: "4294967296", "4GiB", "512MiB", "64KiB". "4G" means the same as "4GiB".
// Returns nullopt for anything else, and for less than one byte.
std::optional<int64_t> ParseByteSize(std::string_view text);

// Returns the default size of the KV pool: 30 % of the available memory, at most 4 GiB; 1 GiB if
// the available memory is unknown.
int64_t DefaultKvCacheBytes(std::optional<int64_t> available_bytes);

// Returns the default swap space: 4 GiB, at most a quarter of the machine's memory.
int64_t DefaultSwapSpaceBytes(std::optional<int64_t> total_bytes);

}  // namespace quire

#endif  // QUIRE_WORKER_WORKER_CONFIG_H_
