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
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/flags/flag_check.h"
#include "common/model/rank_share.h"
#include "common/step/step_plan_check.h"
#include "common/wire/worker_address.h"
#include "scheduler/port_flags.h"

ABSL_FLAG(std::string,
          model,
          "",
          "Hugging Face model directory (may also be given without --model).");
ABSL_FLAG(std::string,
          served_model_name,
          "",
          "Names that requests may use, separated by commas. Empty: the directory's name.");
ABSL_FLAG(
    std::string,
    generation_config,
    "auto",
    "Sampling defaults: auto (generation_config.json of the model), none, or the directory of "
    "another generation_config.json.");
ABSL_FLAG(std::string,
          workers,
          "",
          "Address of the worker, unix:/path or host:port. One per rank, in order of rank. Empty: "
          "where a worker of this user listens that was not told.");
ABSL_FLAG(int32_t,
          step_timeout,
          5,
          "Seconds that a worker may stand still in a step, doing no part of any operation, before "
          "it is taken for stuck. A slow step that gets on is never cut short.");
ABSL_FLAG(
    int32_t,
    worker_timeout,
    300,
    "Seconds that requests wait while there is no worker, none that gets on with loading its "
    "model, or workers are lost before each token. Then they end with UNAVAILABLE, and new ones "
    "are refused until workers are there, or give a token.");
ABSL_FLAG(bool,
          standby,
          true,
          "Wait while another scheduler works with the workers, and take them over when they have "
          "heard nothing of it for two seconds. Without it: take them at once at the start, so "
          "that the requests of an older one end.");
ABSL_FLAG(int32_t,
          cut_off_timeout,
          0,
          "Seconds. When nothing was heard of any worker for so long, another scheduler may have "
          "them: requests end with UNAVAILABLE, for clients to go on there, and this scheduler "
          "stands by. 0: requests wait for --worker-timeout.");
ABSL_FLAG(bool,
          allow_changed_numerics,
          false,
          "Let a worker of another instruction set or cache type go on where another one stopped: "
          "streams then go on with other bits than they would have had.");
ABSL_FLAG(bool,
          enable_log_requests,
          false,
          "Log a line for each request when it has ended: its id, counts and times, and the trace "
          "that its client named in the metadata (W3C traceparent).");
ABSL_FLAG(int32_t, max_num_seqs, 256, "Most sequences in a step.");
ABSL_FLAG(
    int32_t,
    max_num_batched_tokens,
    0,
    "Most tokens in a step; 0: as many as keep the workers' matrix products full, on a CPU 256, or "
    "512 with AMX. Beside running sequences, which a step of prompt tokens holds up, see "
    "--target-inter-token-ms.");
ABSL_FLAG(int32_t, block_size, 16, "Tokens in a KV block.");
ABSL_FLAG(
    std::string,
    kv_cache_dtype,
    "auto",
    "How K and V are stored: auto, float32, bfloat16, float16, fp8 (e4m3), or on a CPU int8.");
ABSL_FLAG(int32_t,
          num_gpu_blocks_override,
          0,
          "KV blocks to use, at most what the worker has. 0: all of them.");
ABSL_FLAG(
    std::string,
    preemption_mode,
    "auto",
    "What happens to the KV blocks of a preempted request: recompute (dropped, computed again), "
    "swap (to host memory and back; see --swap-space of the worker: what finds no place there is "
    "computed again), or auto (the request and the way that cost least, by how long steps took).");
ABSL_FLAG(std::string,
          scheduling_policy,
          "fcfs",
          "Whose turn it is: fcfs (first come, first served), priority (requests name one, the "
          "smaller the earlier) or fair (tenants share the service equally, and none may "
          "hold more of the queue than it leaves free).");
ABSL_FLAG(int32_t,
          priority_ageing,
          10,
          "Seconds of waiting that are worth one priority level, with the priority policy.");
ABSL_FLAG(int32_t,
          target_inter_token_ms,
          0,
          "Milliseconds that a stream is to wait for its next token at most: prompts beside it get "
          "as many tokens of a step as leave it about so long, by how long steps took. 0: three "
          "times what a step takes without prompts. -1: whatever a full step takes.");
ABSL_FLAG(bool,
          enable_prefix_caching,
          true,
          "Requests begin with KV blocks that others of the same salt have computed.");
ABSL_FLAG(
    bool,
    require_cache_salt,
    false,
    "Refuse requests without cache_salt, except those that bypass the prefix cache: those who "
    "share no salt cannot find out by timing what others have asked.");
ABSL_FLAG(double,
          max_pinned_share,
          0.5,
          "Most of the KV cache that pinned prefixes may take, a fraction in [0, 0.9].");
ABSL_FLAG(
    std::string,
    pinned_prefixes_file,
    "",
    "File that keeps pinned prefixes: they are pinned again at the next start. It holds prompts in "
    "plain token ids: keep it as secret as they are. Where it cannot be used the server serves, "
    "and "
    "PinPrefix fails. Empty: they end with the scheduler.");
ABSL_FLAG(int32_t,
          max_model_len,
          0,
          "Most tokens of a sequence, prompt and output. 0: what model and KV cache allow.");
ABSL_FLAG(
    int32_t,
    max_queued_requests,
    1024,
    "Most requests that wait; later ones are refused. Resumed ones have places of their own.");
ABSL_FLAG(int64_t,
          max_queued_tokens,
          1'000'000,
          "Most prompt tokens of requests that wait; later ones are refused.");
ABSL_FLAG(
    std::string,
    step_log,
    "",
    "Regular file for everything that scheduling depends on, for `quire replay`. It holds prompts "
    "and "
    "output in plain token ids and the key of the block hashes: keep it as secret as they are. It "
    "grows without bound. A file that is there is kept as FILE.previous. Empty: none.");
ABSL_FLAG(
    int32_t,
    shutdown_timeout,
    25,
    "Seconds that accepted requests may take to finish after SIGTERM; another one ends them.");

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
  source.model_dir = absl::GetFlag(FLAGS_model);
  if (positional.size() > 1 || (!positional.empty() && !source.model_dir.empty())) {
    return FlagError("model", "one model directory, given once");
  }
  if (!positional.empty()) {
    source.model_dir = positional.front();
  }
  if (source.model_dir.empty()) {
    return FlagError("model", "a model directory is needed");
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
    return FlagError(
        "workers",
        absl::StrCat(
            "one address per rank is needed (got ", workers.size(), ", limit ", kMaxRanks, ")"));
  }
  std::vector<Address> addresses;
  for (const std::string& worker : workers) {
    absl::StatusOr<Address> address = ParseAddress(worker);
    if (!address.ok()) {
      return FlagError("workers", ToStd(address.status().message()));
    }
    if (!address->is_unix() && address->port == 0) {
      return FlagError("workers", "needs a port");
    }
    const auto is_same = [&](const Address& other) {
      return other.ToString() == address->ToString();
    };
    if (std::any_of(addresses.begin(), addresses.end(), is_same)) {
      return FlagError(
          "workers", absl::StrCat("each rank has an address of its own (got ", worker, " twice)"));
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

// Returns nullopt for 0, which means that the flag was not given.
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
        absl::StrCat("must be in [0, 0.9] (got ", config->loop.core.max_pinned_share, ")"));
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

// REQUIRES: SetLimits has been called, since pinning needs prefix_caching and max_pinned_share > 0.
absl::Status SetPinning(SchedulerConfig* config) {
  config->pinned_prefixes_file = absl::GetFlag(FLAGS_pinned_prefixes_file);
  const CoreConfig& core = config->loop.core;
  if (!config->pinned_prefixes_file.empty() &&
      (!core.prefix_caching || core.max_pinned_share == 0.0)) {
    return FlagError("pinned-prefixes-file",
                     "nothing can be pinned without --enable-prefix-caching, or with "
                     "--max-pinned-share=0");
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
                   absl::StrCat("more than the positions of the model (got ",
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
