// SchedulerConfig is the command line of quire_scheduler, checked. Flags have the names that users
// of vLLM know.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_SCHEDULER_CONFIG_H_
#define QUIRE_SCHEDULER_SCHEDULER_CONFIG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/model/dtype.h"
#include "common/model/model_config.h"
#include "common/wire/address.h"
#include "common/wire/api_keys.h"
#include "common/wire/tls_files.h"
#include "scheduler/group/worker_group.h"
#include "scheduler/loop/scheduler_loop.h"
#include "scheduler/rpc/served_model.h"

namespace quire {

struct SchedulerConfig {
  ServedModelSource model;
  std::vector<Address> workers;  // by rank
  std::string host = "127.0.0.1";
  int32_t port = 50051;  // gRPC; 0: a free one
  std::string http_host = "127.0.0.1";
  int32_t http_port = 8000;                 // 0: a free one
  std::optional<Address> admin;             // none: no admin calls; port 0: a free one
  std::shared_ptr<TlsFiles> tls;            // of both gRPC ports; null: plain text
  std::shared_ptr<TlsFiles> worker_tls;     // of the links to workers; likewise
  std::shared_ptr<ApiKeys> api_keys;        // of who may call the gRPC port; null: anybody
  std::shared_ptr<ApiKeys> admin_api_keys;  // likewise, of the admin port
  int32_t max_sequences = 256;
  std::optional<int32_t> max_tokens_per_step;  // none: the workers' choice
  int32_t block_size_tokens = 16;
  std::optional<DType> kv_cache_dtype;
  std::optional<int32_t> num_blocks_override;
  std::optional<int32_t> max_model_len;
  bool allow_changed_numerics = false;
  bool stands_by = true;  // while another scheduler has the workers
  bool has_reflection = false;
  bool requires_cache_salt = false;
  bool logs_requests = false;
  GroupTiming group_timing;
  LoopConfig loop;
  std::string step_log;              // file; empty: none
  std::string pinned_prefixes_file;  // likewise
  absl::Duration shutdown_timeout = absl::Seconds(25);
};

// From the flags and the positional arguments (the model directory may be one).
// Errors: kInvalidArgument FLAG, message "--flag: rule".
absl::StatusOr<SchedulerConfig> SchedulerConfigFromFlags(
    const std::vector<std::string>& positional);

// What the model rules out: more workers than it can be split over, and --max-model-len beyond its
// positions, which no worker would agree to.
// Errors: kInvalidArgument FLAG.
absl::Status CheckFlagsOfModel(const SchedulerConfig& config, const ModelConfig& model);

// A line of the log with what was chosen, by a flag or for want of one.
void LogSettings(const SchedulerConfig& config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SCHEDULER_CONFIG_H_
