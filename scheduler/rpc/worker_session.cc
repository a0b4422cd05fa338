#include "scheduler/rpc/worker_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/wire/channel.h"
#include "common/wire/dtype_codec.h"
#include "common/wire/grpc_status.h"
#include "common/wire/worker_protocol.h"
#include "scheduler/core/admission.h"

namespace quire {
namespace {

// Far above any block; sums of bytes stay in range.
constexpr int64_t kMaxBlockBytes = int64_t{1} << 32;
constexpr std::chrono::seconds kHandshakeTimeout(5);
// The worker allocates and touches its pool.
constexpr std::chrono::seconds kBeginEpochTimeout(300);

// Grows with every start, without a disk to count on.
uint64_t WallClockNanos() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

absl::Status Mismatch(std::string_view field, std::string_view rule) {
  return Error(absl::StatusCode::kFailedPrecondition,
               "CONFIG_MISMATCH",
               absl::StrCat(ToAbsl(field), ": ", ToAbsl(rule)));
}

}  // namespace

absl::Status CheckHandshake(const v1::HandshakeResponse& response,
                            const GroupSettings& settings,
                            const GroupIdentity& identity) {
  if (response.protocol_version() != kWorkerProtocolVersion) {
    return Mismatch("protocol_version",
                    absl::StrCat("the worker speaks another version (got ",
                                 response.protocol_version(),
                                 ", limit ",
                                 kWorkerProtocolVersion,
                                 ")"));
  }
  if (response.vocab_size() != settings.model.vocab_size) {
    return Mismatch("vocab_size",
                    absl::StrCat("the worker loaded another model (got ",
                                 response.vocab_size(),
                                 ", limit ",
                                 settings.model.vocab_size,
                                 ")"));
  }
  if (response.config_hash() != HashOf(settings.model)) {
    return Mismatch("config_hash", "the worker's config.json is another one");
  }
  if (identity.model_hash.has_value() && response.model_hash() != *identity.model_hash) {
    return Mismatch("model_hash", "the worker's weights are not those of the worker before");
  }
  if (response.block_bytes() < 0 || response.block_bytes() > kMaxBlockBytes) {
    return Mismatch("block_bytes", "no block is of that size");
  }
  const std::optional<DType> dtype = FromProto(response.kv_cache_dtype());
  if (!dtype.has_value() ||
      (settings.kv_cache_dtype.has_value() && dtype != settings.kv_cache_dtype)) {
    return Mismatch("kv_cache_dtype", "the worker cannot store the KV cache as asked");
  }
  return absl::OkStatus();
}

absl::StatusOr<StepLimits> AgreeLimits(const v1::HandshakeResponse& response,
                                       const GroupSettings& settings) {
  StepLimits limits;
  limits.num_blocks = response.num_blocks_max();
  if (settings.num_blocks_override.has_value()) {
    limits.num_blocks = std::min(limits.num_blocks, *settings.num_blocks_override);
  }
  if (limits.num_blocks < 2) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "NO_MEMORY",
                 absl::StrCat("num_blocks: the worker has no memory for the KV cache (got ",
                              limits.num_blocks,
                              ", limit 2)"));
  }
  // As many as the pool has, as in the paper: who does not fit is computed again.
  limits.num_host_blocks =
      settings.wants_host_blocks ? std::min(response.num_host_blocks_max(), limits.num_blocks) : 0;
  limits.block_size_tokens = settings.block_size_tokens;
  limits.max_sequences = settings.max_sequences;
  limits.max_tokens_per_step = settings.max_tokens_per_step;
  limits.vocab_size = settings.model.vocab_size;
  limits.max_model_len = settings.max_model_len.value_or(settings.model.max_position_embeddings);
  const int32_t window = WindowOfAllLayers(settings.model);
  limits.sliding_window = window < limits.max_model_len ? window : 0;
  // Behind a window a sequence may be longer than the pool.
  if (NumBlocksAtMost(1, limits.max_model_len, limits) > limits.num_blocks - 1) {
    limits.max_model_len = (limits.num_blocks - 1) * limits.block_size_tokens;
  }
  return limits;
}

WorkerSession::WorkerSession(Address address, const GroupSettings& settings)
    : address_(std::move(address)), settings_(settings), incarnation_(WallClockNanos()) {
  Redial();
}

void WorkerSession::Redial() { stub_ = v1::WorkerService::NewStub(DialWorker(address_)); }

absl::StatusOr<GroupReady> WorkerSession::Begin(uint64_t group_epoch) {
  Redial();
  QUIRE_ASSIGN_OR_RETURN(const v1::HandshakeResponse response, Handshake());
  QUIRE_RETURN_IF_ERROR(CheckHandshake(response, settings_, identity_));
  QUIRE_ASSIGN_OR_RETURN(const StepLimits limits, AgreeLimits(response, settings_));
  QUIRE_RETURN_IF_ERROR(BeginEpoch(limits, *FromProto(response.kv_cache_dtype()), group_epoch));
  identity_.model_hash = response.model_hash();
  if (settings_.max_model_len.value_or(0) > limits.max_model_len) {
    LogWarning("max_model_len is more than the KV cache holds",
               {{"asked", absl::StrCat(*settings_.max_model_len)},
                {"served", absl::StrCat(limits.max_model_len)}});
  }
  GroupReady ready;
  ready.scheduler_incarnation = incarnation_;
  ready.group_epoch = group_epoch;
  ready.limits = limits;
  ready.determinism_fingerprint = response.determinism_fingerprint();
  ready.block_bytes = response.block_bytes();
  ready.kv_cache_dtype = std::string(NameOf(*FromProto(response.kv_cache_dtype())));
  return ready;
}

absl::StatusOr<v1::HandshakeResponse> WorkerSession::Handshake() {
  v1::HandshakeRequest request;
  request.set_protocol_version(kWorkerProtocolVersion);
  request.set_scheduler_incarnation(incarnation_);
  request.set_block_size_tokens(settings_.block_size_tokens);
  if (settings_.kv_cache_dtype.has_value()) {
    request.set_kv_cache_dtype(ToProto(*settings_.kv_cache_dtype));
  }
  request.set_tensor_parallel_size(1);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kHandshakeTimeout);
  QUIRE_RETURN_IF_ERROR(SetContext(&context));
  v1::HandshakeResponse response;
  const grpc::Status status = stub_->Handshake(&context, request, &response);
  QUIRE_RETURN_IF_ERROR(SetContext(nullptr));
  QUIRE_RETURN_IF_ERROR(FromGrpcStatus(status));
  return response;
}

absl::Status WorkerSession::BeginEpoch(const StepLimits& limits,
                                       DType kv_cache_dtype,
                                       uint64_t group_epoch) {
  v1::BeginEpochRequest request;
  request.set_scheduler_incarnation(incarnation_);
  request.set_group_epoch(group_epoch);
  request.set_num_blocks(limits.num_blocks);
  request.set_num_host_blocks(limits.num_host_blocks);
  request.set_block_size_tokens(limits.block_size_tokens);
  request.set_kv_cache_dtype(ToProto(kv_cache_dtype));
  request.set_max_sequences(limits.max_sequences);
  request.set_max_tokens_per_step(limits.max_tokens_per_step);
  request.set_max_model_len_tokens(limits.max_model_len);
  request.set_sliding_window_tokens(limits.sliding_window);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kBeginEpochTimeout);
  QUIRE_RETURN_IF_ERROR(SetContext(&context));
  v1::BeginEpochResponse response;
  absl::Status status = FromGrpcStatus(stub_->BeginEpoch(&context, request, &response));
  QUIRE_RETURN_IF_ERROR(SetContext(nullptr));
  if (ReasonOf(status) == "STALE_SCHEDULER") {
    // The clock went back. The next attempt comes as the youngest.
    incarnation_ = std::max(incarnation_ + 1, WallClockNanos());
    uint64_t seen = 0;
    if (absl::SimpleAtoi(MetadataOf(status, "scheduler_incarnation"), &seen)) {
      incarnation_ = std::max(incarnation_, seen + 1);
    }
  }
  return status;
}

absl::Status WorkerSession::SetContext(grpc::ClientContext* context) {
  absl::MutexLock lock(&mutex_);
  context_ = context;
  return is_cancelled_ ? absl::CancelledError("worker session: stopped") : absl::OkStatus();
}

void WorkerSession::Cancel() {
  absl::MutexLock lock(&mutex_);
  is_cancelled_ = true;
  if (context_ != nullptr) {
    context_->TryCancel();
  }
}

}  // namespace quire
