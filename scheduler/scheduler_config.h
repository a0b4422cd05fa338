// SchedulerConfig is the checked command line of quire_scheduler. Flags have vLLM's names where
// vLLM has them.
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
#include "scheduler/kv_events/kv_event_publisher.h"
#include "scheduler/loop/scheduler_loop.h"
#include "scheduler/rpc/served_model.h"

namespace quire {

struct SchedulerConfig {
  ServedModelSource model;
  std::vector<Address> workers;  // one for each rank
  std::string host = "127.0.0.1";
  int32_t port = 50051;  // gRPC port; 0: any free port
  std::string http_host = "127.0.0.1";
  int32_t http_port = 8000;                 // 0: any free port
  std::optional<Address> local;             // a Unix socket for this user; nullopt: none
  std::optional<Address> admin;             // nullopt: no admin port; port 0: any free port
  std::shared_ptr<TlsFiles> tls;            // for the gRPC and the admin port; null: plain text
  std::shared_ptr<TlsFiles> worker_tls;     // for the links to workers; null: plain text
  std::shared_ptr<ApiKeys> api_keys;        // for the gRPC port; null: any caller is admitted
  std::shared_ptr<ApiKeys> admin_api_keys;  // for the admin port; null: any caller is admitted
  int32_t max_sequences = 256;
  std::optional<int32_t> max_tokens_per_step;  // nullopt: the workers' choice
  int32_t block_size_tokens = 16;
  std::optional<DType> kv_cache_dtype;
  std::optional<int32_t> num_blocks_override;
  std::optional<int32_t> max_model_len;
  bool allow_changed_numerics = false;
  bool stands_by = true;  // whether to wait while another scheduler holds the workers
  bool has_reflection = false;
  bool requires_cache_salt = false;
  bool logs_requests = false;
  GroupTiming group_timing;
  LoopConfig loop;
  std::optional<KvEventSettings> kv_events;  // nullopt: no KV events
  std::string step_log;                      // path; empty: no step log
  std::string pinned_prefixes_file;          // path; empty: pins are not saved
  absl::Duration shutdown_timeout = absl::Seconds(25);
};

// Reads the flags and the positional arguments. The model directory can be given either way.
// Errors: kInvalidArgument FLAG, message "--flag: rule".
absl::StatusOr<SchedulerConfig> SchedulerConfigFromFlags(
    const std::vector<std::string>& positional);

// Checks the flags against the model. Refuses more workers than the model can be divided into, and
// a --max-model-len above the model's positions, because every worker would refuse such a length.
// Errors: kInvalidArgument FLAG.
absl::Status CheckFlagsOfModel(const SchedulerConfig& config, const ModelConfig& model);

// Logs one line with the main settings, including settings that have their default.
void LogSettings(const SchedulerConfig& config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SCHEDULER_CONFIG_H_
