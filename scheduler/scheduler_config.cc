#include "scheduler/scheduler_config.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/math.h"
#include "common/base/shortest_decimal.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"
#include "common/model/rank_share.h"
#include "common/step/step_plan_check.h"
#include "common/wire/worker_address.h"
#include "scheduler/kv_event_flags.h"
#include "scheduler/port_flags.h"

ABSL_FLAG(std::string,
          model,
          "",
          "Hugging Face model directory, or GGUF file. The flag name may be left out: "
          "quire_scheduler MODEL.");
ABSL_FLAG(
    std::string,
    served_model_name,
    "",
    "Names that requests may use, separated by commas. Empty: the name of the directory or file.");
ABSL_FLAG(std::string,
          generation_config,
          "auto",
          "Source of the sampling defaults: auto (those of the model), none, or a "
          "directory with a generation_config.json.");
ABSL_FLAG(std::string,
          workers,
          "",
          "Addresses of the workers, separated by commas, one for each rank in order of rank: "
          "unix:/path or host:port. Empty: the default address of one worker of this user.");
ABSL_FLAG(int32_t,
          step_timeout,
          5,
          "Seconds without any progress in a step after which a worker counts as stuck. A slow "
          "step that makes progress is never cut short.");
ABSL_FLAG(
    int32_t,
    worker_timeout,
    300,
    "Seconds that requests wait while no worker is ready or makes progress loading its model, or "
    "while workers are lost before every token. Then requests end with UNAVAILABLE, and new ones "
    "are refused until workers are ready or have computed a token.");
ABSL_FLAG(bool,
          standby,
          true,
          "Stand by while another scheduler has the workers, and take them over once they have not "
          "heard from it for two seconds. false: take them over at the start, which ends the other "
          "scheduler's requests.");
ABSL_FLAG(int32_t,
          cut_off_timeout,
          0,
          "Seconds without contact to any worker after which this scheduler stands by, because "
          "another one may have the workers. Requests end with UNAVAILABLE, so that clients resume "
          "them there. 0: never; requests wait for --worker-timeout.");
ABSL_FLAG(bool,
          allow_changed_numerics,
          false,
          "Accept a replacement worker with another instruction set or KV cache type. Open streams "
          "then continue with different rounding, so their tokens may differ.");
ABSL_FLAG(bool,
          enable_log_requests,
          false,
          "Log one line when a request ends: its id, token counts, times, and the trace of the "
          "client's traceparent metadata (W3C).");
ABSL_FLAG(int32_t, max_num_seqs, 256, "Maximum number of sequences in a step.");
ABSL_FLAG(int32_t,
          max_num_batched_tokens,
          0,
          "Maximum number of tokens in a step. 0: the size at which the workers' matrix products "
          "are efficient (256 on a CPU, 512 with AMX). While sequences decode, "
          "--target-inter-token-ms limits prompt tokens further.");
ABSL_FLAG(int32_t,
          block_size,
          16,
          "Number of tokens in a KV block, a power of two. On a GPU at least 8.");
ABSL_FLAG(
    std::string,
    kv_cache_dtype,
    "auto",
    "Data type of the KV cache: auto, float32, bfloat16, float16, fp8 (e4m3), or on a CPU int8.");
ABSL_FLAG(int32_t,
          num_gpu_blocks_override,
          0,
          "Number of KV blocks to use, at most as many as every worker has. 0: all.");
ABSL_FLAG(std::string,
          preemption_mode,
          "auto",
          "How a request is preempted when KV blocks run out: recompute (its blocks are dropped "
          "and computed again), swap (its blocks are copied to host memory and back; recompute if "
          "the workers' --swap-space is full), or auto (the request and the way with the lowest "
          "cost, estimated from step times).");
ABSL_FLAG(std::string,
          scheduling_policy,
          "fcfs",
          "Order of requests: fcfs (first come, first served), priority (by the request's "
          "priority, lower values first) or fair (tenants share the service equally, and a tenant "
          "may hold no more of the queue than it leaves free).");
ABSL_FLAG(int32_t,
          priority_ageing,
          10,
          "With --scheduling-policy=priority: seconds of waiting that raise a request by one "
          "priority level.");
ABSL_FLAG(int32_t,
          target_inter_token_ms,
          0,
          "Target for the milliseconds between two tokens of a stream. While sequences decode, a "
          "step takes only as many prompt tokens as keep the target, estimated from step times. 0: "
          "three times the duration of a step without prompts. -1: no target.");
ABSL_FLAG(bool,
          enable_prefix_caching,
          true,
          "Reuse KV blocks that requests with the same cache_salt have computed for the same "
          "prompt beginning.");
ABSL_FLAG(bool,
          require_cache_salt,
          false,
          "Refuse requests that have no cache_salt and do not set bypass_prefix_cache. Clients "
          "with different salts cannot learn each other's prompts from response times.");
ABSL_FLAG(double,
          max_pinned_share,
          0.5,
          "Maximum share of the KV cache for pinned prefixes, in [0, 0.9].");
ABSL_FLAG(
    std::string,
    pinned_prefixes_file,
    "",
    "File that stores pinned prefixes, so that the next start pins them again. It contains prompts "
    "as plain token ids: protect it like the prompts. If it cannot be used, the server serves, but "
    "PinPrefix fails. Empty: no file; pinned prefixes end with the scheduler.");
ABSL_FLAG(int32_t,
          max_model_len,
          0,
          "Maximum number of tokens of a sequence, prompt plus output. 0: as many as the model and "
          "the KV cache allow.");
ABSL_FLAG(int32_t,
          max_queued_requests,
          1024,
          "Maximum number of waiting requests; further requests are refused. Resumed requests have "
          "a separate limit.");
ABSL_FLAG(int64_t,
          max_queued_tokens,
          1'000'000,
          "Maximum number of prompt tokens of waiting requests together; further requests are "
          "refused. Resumed requests have a separate limit.");
ABSL_FLAG(
    std::string,
    step_log,
    "",
    "Regular file that records all input of scheduling, for `quire replay`. It contains prompts "
    "and output as plain token ids and the key of the block hashes: protect it like the prompts. "
    "It grows without bound. An existing file is renamed to FILE.previous. Empty: no file.");
ABSL_FLAG(int32_t,
          shutdown_timeout,
          25,
          "Seconds that accepted requests may take to finish after SIGTERM. A second signal ends "
          "them at once.");

namespace quire {
namespace {

constexpr double kMaxPinnedShare = 0.9;
constexpr int32_t kMaxShutdownSeconds = 24 * 3600;
constexpr int32_t kMaxWaitSeconds = 24 * 3600;
constexpr int32_t kMaxPriorityAgeingSeconds = 24 * 3600;

absl::Status CheckBlockSize(int32_t block_size_tokens) {
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("block-size", block_size_tokens, 1, kMaxBlockSizeTokens));
  if (!std::has_single_bit(static_cast<uint32_t>(block_size_tokens))) {
    return FlagError("block-size",
                     absl::StrCat("must be a power of two (got ", block_size_tokens, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ServedModelSource> ModelSource(const std::vector<std::string>& positional) {
  ServedModelSource source;
  source.model_path = absl::GetFlag(FLAGS_model);
  if (positional.size() > 1 || (!positional.empty() && !source.model_path.empty())) {
    return FlagError("model", "must be one model, given once");
  }
  if (!positional.empty()) {
    source.model_path = positional.front();
  }
  if (source.model_path.empty()) {
    return FlagError("model", "a model directory or GGUF file is needed");
  }
  source.names = absl::StrSplit(absl::GetFlag(FLAGS_served_model_name), ',', absl::SkipEmpty());
  source.generation_config = absl::GetFlag(FLAGS_generation_config);
  return source;
}

absl::StatusOr<std::vector<Address>> WorkerAddresses() {
  const std::vector<std::string> workers =
      absl::StrSplit(absl::GetFlag(FLAGS_workers), ',', absl::SkipEmpty());
  if (workers.empty()) {
    const absl::StatusOr<Address> address = DefaultWorkerAddress();
    if (!address.ok()) {
      return FlagError("workers", ToStd(address.status().message()));
    }
    return std::vector<Address>{*address};
  }
  if (workers.size() > size_t{kMaxRanks}) {
    return FlagError("workers",
                     absl::StrCat("must have one address for each rank (got ",
                                  workers.size(),
                                  ", limit ",
                                  kMaxRanks,
                                  ")"));
  }
  std::vector<Address> addresses;
  for (const std::string& worker : workers) {
    absl::StatusOr<Address> address = ParseAddress(worker);
    if (!address.ok()) {
      return FlagError("workers", ToStd(address.status().message()));
    }
    if (!address->is_unix() && address->port == 0) {
      return FlagError("workers", "every host address needs a port");
    }
    const auto is_same = [&](const Address& other) {
      return other.ToString() == address->ToString();
    };
    if (std::any_of(addresses.begin(), addresses.end(), is_same)) {
      return FlagError(
          "workers",
          absl::StrCat("every rank must have a different address (got ", worker, " twice)"));
    }
    addresses.push_back(*std::move(address));
  }
  return addresses;
}

absl::Status SetWaiting(SchedulerConfig* config) {
  const int32_t step_seconds = absl::GetFlag(FLAGS_step_timeout);
  const int32_t worker_seconds = absl::GetFlag(FLAGS_worker_timeout);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("step-timeout", step_seconds, 1, kMaxWaitSeconds));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("worker-timeout", worker_seconds, 1, kMaxWaitSeconds));
  const int32_t cut_off_seconds = absl::GetFlag(FLAGS_cut_off_timeout);
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("cut-off-timeout", cut_off_seconds, 0, kMaxWaitSeconds));
  config->group_timing.cut_off_ns = cut_off_seconds * kNanosPerSecond;
  config->group_timing.step_timeout_ns = step_seconds * kNanosPerSecond;
  config->loop.worker_timeout_ns = worker_seconds * kNanosPerSecond;
  config->allow_changed_numerics = absl::GetFlag(FLAGS_allow_changed_numerics);
  config->stands_by = absl::GetFlag(FLAGS_standby);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<DType>> KvCacheDType() {
  const std::string name = absl::GetFlag(FLAGS_kv_cache_dtype);
  if (name == "auto") {
    return std::optional<DType>();
  }
  if (name == "fp8" || name == "fp8_e4m3") {
    return DType::kF8E4M3;
  }
  if (name == NameOf(DType::kInt8)) {
    return DType::kInt8;
  }
  const std::optional<DType> dtype = DTypeFromName(name);
  if (!dtype.has_value()) {
    return FlagError("kv-cache-dtype", "must be auto, float32, bfloat16, float16, fp8 or int8");
  }
  return dtype;
}

// Converts a flag for which 0 means "not set".
std::optional<int32_t> NoneIfZero(int32_t value) {
  return value == 0 ? std::nullopt : std::make_optional(value);
}

absl::StatusOr<PreemptionMode> Preemption() {
  const auto mode = ParsePreemptionMode(absl::GetFlag(FLAGS_preemption_mode));
  if (!mode.has_value()) {
    return FlagError("preemption-mode", "must be auto, recompute or swap");
  }
  return *mode;
}

absl::Status SetPolicy(CoreConfig* core) {
  const std::string policy = absl::GetFlag(FLAGS_scheduling_policy);
  if (policy == "priority") {
    core->scheduling_policy = SchedulingPolicyKind::kPriority;
  } else if (policy == "fair") {
    core->scheduling_policy = SchedulingPolicyKind::kFairShare;
  } else if (policy != "fcfs") {
    return FlagError("scheduling-policy", "must be fcfs, priority or fair");
  }
  const int32_t ageing = absl::GetFlag(FLAGS_priority_ageing);
  core->priority_ageing = ageing * kNanosPerSecond;
  return CheckFlagRange("priority-ageing", ageing, 0, kMaxPriorityAgeingSeconds);
}

absl::Status SetTargetInterToken(CoreConfig* core) {
  constexpr int32_t kMaxTargetMs = 3'600'000;
  const int32_t target_ms = absl::GetFlag(FLAGS_target_inter_token_ms);
  core->target_inter_token = target_ms < 0 ? kInfiniteFuture : target_ms * kNanosPerMilli;
  return CheckFlagRange("target-inter-token-ms", target_ms, -1, kMaxTargetMs);
}

absl::Status SetLimits(SchedulerConfig* config) {
  config->max_sequences = absl::GetFlag(FLAGS_max_num_seqs);
  if (absl::GetFlag(FLAGS_max_num_batched_tokens) != 0) {
    config->max_tokens_per_step = absl::GetFlag(FLAGS_max_num_batched_tokens);
  }
  config->block_size_tokens = absl::GetFlag(FLAGS_block_size);
  config->num_blocks_override = NoneIfZero(absl::GetFlag(FLAGS_num_gpu_blocks_override));
  config->max_model_len = NoneIfZero(absl::GetFlag(FLAGS_max_model_len));
  config->loop.core.max_queued_requests = absl::GetFlag(FLAGS_max_queued_requests);
  config->loop.core.max_queued_tokens = absl::GetFlag(FLAGS_max_queued_tokens);
  config->loop.core.max_resumed_requests =
      config->loop.core.max_queued_requests + int64_t{2} * config->max_sequences;
  QUIRE_ASSIGN_OR_RETURN(config->loop.core.preemption_mode, Preemption());
  QUIRE_RETURN_IF_ERROR(SetPolicy(&config->loop.core));
  QUIRE_RETURN_IF_ERROR(SetTargetInterToken(&config->loop.core));
  config->loop.core.prefix_caching = absl::GetFlag(FLAGS_enable_prefix_caching);
  config->requires_cache_salt = absl::GetFlag(FLAGS_require_cache_salt);
  config->logs_requests = absl::GetFlag(FLAGS_enable_log_requests);
  config->loop.core.max_pinned_share = absl::GetFlag(FLAGS_max_pinned_share);
  if (!(config->loop.core.max_pinned_share >= 0.0 &&
        config->loop.core.max_pinned_share <= kMaxPinnedShare)) {
    return FlagError(
        "max-pinned-share",
        absl::StrCat(
            "must be in [0, 0.9] (got ", ShortestDecimal(config->loop.core.max_pinned_share), ")"));
  }
  constexpr int32_t kAny = std::numeric_limits<int32_t>::max();
  QUIRE_RETURN_IF_ERROR(
      CheckFlagRange("max-num-seqs", config->max_sequences, 1, kMaxSequencesLimit));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange("max-num-batched-tokens",
                                       config->max_tokens_per_step.value_or(1),
                                       1,
                                       kMaxTokensPerStepLimit));
  QUIRE_RETURN_IF_ERROR(CheckBlockSize(config->block_size_tokens));
  QUIRE_RETURN_IF_ERROR(CheckFlagRange(
      "num-gpu-blocks-override", config->num_blocks_override.value_or(2), 2, kMaxBlocksLimit));
  QUIRE_RETURN_IF_ERROR(
      CheckFlagRange("max-model-len", config->max_model_len.value_or(2), 2, kMaxModelLenLimit));
  QUIRE_RETURN_IF_ERROR(
      CheckFlagRange("max-queued-requests", config->loop.core.max_queued_requests, 1, kAny));
  return CheckFlagRange("max-queued-tokens",
                        config->loop.core.max_queued_tokens,
                        1,
                        std::numeric_limits<int64_t>::max());
}

// REQUIRES: SetLimits was called, because this function reads prefix_caching and max_pinned_share.
absl::Status SetPinning(SchedulerConfig* config) {
  config->pinned_prefixes_file = absl::GetFlag(FLAGS_pinned_prefixes_file);
  const CoreConfig& core = config->loop.core;
  if (!config->pinned_prefixes_file.empty() &&
      (!core.prefix_caching || core.max_pinned_share == 0.0)) {
    return FlagError("pinned-prefixes-file",
                     "needs --enable-prefix-caching and a --max-pinned-share above 0");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SchedulerConfig> SchedulerConfigFromFlags(
    const std::vector<std::string>& positional) {
  SchedulerConfig config;
  QUIRE_ASSIGN_OR_RETURN(config.model, ModelSource(positional));
  QUIRE_ASSIGN_OR_RETURN(config.workers, WorkerAddresses());
  QUIRE_ASSIGN_OR_RETURN(config.kv_cache_dtype, KvCacheDType());
  QUIRE_RETURN_IF_ERROR(SetPorts(&config));
  QUIRE_RETURN_IF_ERROR(SetLimits(&config));
  QUIRE_RETURN_IF_ERROR(SetWaiting(&config));
  config.step_log = absl::GetFlag(FLAGS_step_log);
  QUIRE_RETURN_IF_ERROR(SetPinning(&config));
  QUIRE_RETURN_IF_ERROR(SetKvEvents(&config));
  const int32_t shutdown_seconds = absl::GetFlag(FLAGS_shutdown_timeout);
  QUIRE_RETURN_IF_ERROR(
      CheckFlagRange("shutdown-timeout", shutdown_seconds, 0, kMaxShutdownSeconds));
  config.shutdown_timeout = absl::Seconds(shutdown_seconds);
  return config;
}

absl::Status CheckFlagsOfModel(const SchedulerConfig& config, const ModelConfig& model) {
  const auto share =
      ShareOf(model, {.rank = 0, .size = static_cast<int32_t>(config.workers.size())});
  if (!share.ok()) {
    return FlagError("workers", ToStd(share.status().message()));
  }
  const int32_t limit = model.max_position_embeddings;
  if (config.max_model_len.value_or(0) <= limit) {
    return absl::OkStatus();
  }
  return FlagError("max-model-len",
                   absl::StrCat("must be at most the model's number of positions (got ",
                                *config.max_model_len,
                                ", limit ",
                                limit,
                                ")"));
}

void LogSettings(const SchedulerConfig& config) {
  const auto trust = [](const TlsFiles* tls) {
    return tls == nullptr ? "none" : tls->has_authorities() ? "mutual" : "server";
  };
  const auto on = [](bool is_on) { return is_on ? "on" : "off"; };
  LogInfo("scheduler settings",
          {{"block_size", absl::StrCat(config.block_size_tokens)},
           {"kv_cache_dtype", absl::GetFlag(FLAGS_kv_cache_dtype)},
           {"max_num_seqs", absl::StrCat(config.max_sequences)},
           {"max_num_batched_tokens", absl::StrCat(absl::GetFlag(FLAGS_max_num_batched_tokens))},
           {"scheduling_policy", absl::GetFlag(FLAGS_scheduling_policy)},
           {"preemption_mode", absl::GetFlag(FLAGS_preemption_mode)},
           {"target_inter_token_ms", absl::StrCat(absl::GetFlag(FLAGS_target_inter_token_ms))},
           {"standby", on(config.stands_by)},
           {"prefix_caching", on(config.loop.core.prefix_caching)},
           {"tls", trust(config.tls.get())},
           {"worker_tls", trust(config.worker_tls.get())},
           {"api_keys", on(config.api_keys != nullptr)},
           {"admin_api_keys", on(config.admin_api_keys != nullptr)}});
}

}  // namespace quire
