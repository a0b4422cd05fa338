// SchedulerConfig is the command line of quire_scheduler, checked. Flags have the names that users
// of vLLM know.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_SCHEDULER_CONFIG_H_
#define QUIRE_SCHEDULER_SCHEDULER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/model/dtype.h"
#include "common/wire/address.h"
#include "scheduler/loop/scheduler_loop.h"
#include "scheduler/rpc/served_model.h"

namespace quire {

struct SchedulerConfig {
  ServedModelSource model;
  Address worker;
  std::string host = "127.0.0.1";
  int32_t port = 50051;          // gRPC; 0: a free one
  int32_t http_port = 8000;      // 0: a free one
  std::optional<Address> admin;  // none: no admin calls; port 0: a free one
  int32_t max_sequences = 256;
  int32_t max_tokens_per_step = 2048;
  int32_t block_size_tokens = 16;
  std::optional<DType> kv_cache_dtype;
  std::optional<int32_t> num_blocks_override;
  std::optional<int32_t> max_model_len;
  LoopConfig loop;
  std::string step_log;              // file; empty: none
  std::string pinned_prefixes_file;  // likewise
  absl::Duration shutdown_timeout = absl::Seconds(25);
};

// From the flags and the positional arguments (the model directory may be one).
// Errors: kInvalidArgument FLAG, message "--flag: rule".
absl::StatusOr<SchedulerConfig> SchedulerConfigFromFlags(
    const std::vector<std::string>& positional);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SCHEDULER_CONFIG_H_
