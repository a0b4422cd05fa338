#include "worker/rpc/worker_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/wire/dtype_codec.h"
#include "common/wire/grpc_status.h"
#include "common/wire/kv_backend_codec.h"
#include "common/wire/step_codec.h"
#include "common/wire/worker_protocol.h"
#include "worker/rpc/message_reader.h"

namespace quire {
namespace {

// Upper bound on waiting tasks. Schedulers never queue nearly as many.
constexpr size_t kMaxWaitingTasks = 64;
// A holder counts as dead if it has been silent for longer than this (GroupTiming::standby_ns).
constexpr int64_t kMaxHolderSilenceMs = 2'000;
// Larger requests are parsed into a temporary message instead of step_request_, so that their
// memory is freed afterwards.
constexpr size_t kMaxKeptRequestBytes = 4 << 20;

absl::Status QueueFull() {
  return Error(absl::StatusCode::kResourceExhausted,
               "QUEUE_FULL",
               "worker: too many calls are queued, or the worker is shutting down");
}

absl::Status Loading() {
  return Error(absl::StatusCode::kUnavailable, "LOADING", "worker: is still loading its model");
}

absl::Status Mismatch(std::string_view field, int64_t got, int64_t want) {
  return WithMetadata(Error(absl::StatusCode::kFailedPrecondition,
                            "CONFIG_MISMATCH",
                            absl::StrCat(ToAbsl(field),
                                         ": does not match the worker (got ",
                                         got,
                                         ", the worker has ",
                                         want,
                                         ")")),
                      "field",
                      field);
}

absl::Status CheckHandshake(const v1::HandshakeRequest& request, const RankShare& share) {
  if (request.protocol_version() != kWorkerProtocolVersion) {
    return Mismatch("protocol_version", request.protocol_version(), kWorkerProtocolVersion);
  }
  if (request.tensor_parallel_size() != share.size) {
    return Mismatch("tensor_parallel_size", request.tensor_parallel_size(), share.size);
  }
  if (request.rank() != share.rank) {
    return Mismatch("rank", request.rank(), share.rank);
  }
  return absl::OkStatus();
}

void AddKvMemory(const KvMemory& memory, v1::HandshakeResponse* response) {
  if (memory.backend.has_value()) {
    response->set_kv_backend(ToProto(*memory.backend));
  }
  response->set_window_page_bytes(memory.page_bytes);
  response->set_block_padding_bytes(memory.padding_bytes);
  if (memory.max_places.has_value()) {
    response->set_max_window_places(*memory.max_places);
  }
}

// Incarnations are wall-clock times in nanoseconds, and the newest scheduler has the greatest one.
// Refuses an incarnation far in the future, because the worker would then refuse every later
// scheduler.
absl::Status CheckClock(uint64_t scheduler_incarnation) {
  if (scheduler_incarnation <= WallClockNanos() + kNanosPerYear) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kFailedPrecondition,
               "PROTOCOL_VIOLATION",
               absl::StrCat("scheduler_incarnation: more than a year ahead of the worker's clock "
                            "(got ",
                            scheduler_incarnation,
                            ")"));
}

// Checks that the digest matches the plan. A damaged plan, or a plan from a peer with another
// digest function, must not be executed.
absl::Status CheckDigest(const StepPlan& plan) {
  if (DigestOf(plan) == plan.digest) {
    return absl::OkStatus();
  }
  return Error(
      absl::StatusCode::kInternal, "PROTOCOL_VIOLATION", "plan_digest: does not match the plan");
}

}  // namespace

WorkerService::WorkerService(WorkerProgress& progress)
    : progress_(progress), reporter_(progress), thread_(kMaxWaitingTasks, progress) {}

WorkerService::~WorkerService() { Stop(); }

void WorkerService::Serve(WorkerIdentity identity, StepExecutor& executor) {
  identity_ = std::move(identity);
  executor_ = &executor;
  QUIRE_CHECK(thread_.Run([&executor] { executor.BindThread(); }));
  progress_.FinishLoad();
  is_loaded_.store(true, std::memory_order_release);
  // A scheduler that got the error LOADING waits for this report.
  reporter_.ReportNow();
}

void WorkerService::Stop() {
  // Notes that the shutdown waits for the executor. If the executor hangs, the reporter then ends
  // the process.
  progress_.AddWaiter();
  if (CheckIsLoaded().ok()) {
    // Ends the executor's wait for another rank, which may be stopping too and never answer.
    executor_->AbortGroup();
  }
  bool is_queued = thread_.Run([this] {
    EndStreams(Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "worker: is shutting down"));
  });
  static_cast<void>(is_queued);  // false if Stop was called before
  thread_.Stop();
  reporter_.Stop();
}

void WorkerService::OnReadiness(std::function<void(bool)> callback) {
  reporter_.OnLook([this, callback = std::move(callback)] { callback(is_ready()); });
}

absl::Status WorkerService::CheckIsLoaded() const {
  return is_loaded() ? absl::OkStatus() : Loading();
}

grpc::ServerUnaryReactor* WorkerService::Handshake(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto answer = AnswerHandshake(*request);
  if (answer.ok()) {
    response->Swap(&*answer);
  }
  reactor->Finish(ToGrpcStatus(answer.status()));
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::BeginEpoch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status status = CheckIsLoaded(); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  auto parsed = std::make_shared<v1::BeginEpochRequest>();
  if (absl::Status status = ReadMessage(*request, parsed.get()); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  if (absl::Status status = CheckClock(parsed->scheduler_incarnation()); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  if (absl::Status status = progress_.Ask(parsed->scheduler_incarnation(), parsed->group_epoch());
      !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  // Reports at once, so that the previous holder learns of the takeover.
  reporter_.ReportNow();
  // The executor can be waiting for another rank in a step. AbortGroup ends the wait, and the step
  // fails. The other rank leaves its step too, since it also gets a BeginEpoch.
  executor_->AbortGroup();
  progress_.AddWaiter();
  // `response` stays valid until the call is finished.
  bool is_queued = thread_.Run([this, reactor, parsed, response] {
    progress_.RemoveWaiter();
    auto answer = DoBeginEpoch(*parsed);
    if (answer.ok()) {
      response->Swap(&*answer);
    }
    reactor->Finish(ToGrpcStatus(answer.status()));
  });
  if (!is_queued) {
    progress_.RemoveWaiter();
    reactor->Finish(ToGrpcStatus(QueueFull()));
  }
  return reactor;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* WorkerService::Steps(
    grpc::CallbackServerContext* /*context*/) {
  auto handler = [this](const std::shared_ptr<StepsCall>& stream, const grpc::ByteBuffer& bytes) {
    if (absl::Status status = CheckIsLoaded(); !status.ok()) {
      stream->Fail(status);
    } else if (!thread_.Run([this, stream, bytes] { DoStep(stream, bytes); })) {
      stream->Fail(QueueFull());
    }
  };
  return StepsCall::Start(handler).get();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WorkerService::Watch(
    grpc::CallbackServerContext* /*context*/, const grpc::ByteBuffer* request) {
  v1::WatchRequest parsed;
  const absl::Status status = ReadMessage(*request, &parsed);
  return reporter_.Watch(parsed.scheduler_incarnation(), status).get();
}

absl::StatusOr<DType> WorkerService::KvCacheDtype(v1::DType requested) const {
  if (requested == v1::DTYPE_UNSPECIFIED) {
    return executor_->sizing().DefaultKvCacheDtype();
  }
  auto dtype = FromProto(requested);
  if (!dtype.has_value()) {
    return InvalidArgument(
        "ENUM_VALUE",
        absl::StrCat("kv_cache_dtype: unknown value (got ", static_cast<int>(requested), ")"));
  }
  return *dtype;
}

void WorkerService::NoteRefusal(uint64_t scheduler_incarnation, std::string_view why) {
  const v1::WatchReport report = progress_.Read().report;
  const bool has_other_holder = report.holder_incarnation() != 0 &&
                                report.holder_incarnation() != scheduler_incarnation &&
                                report.holder_silence_ms() < kMaxHolderSilenceMs;
  if (!has_other_holder) {
    refusal_.Note(why, SteadyNow());
  }
}

absl::StatusOr<grpc::ByteBuffer> WorkerService::AnswerHandshake(const grpc::ByteBuffer& bytes) {
  QUIRE_RETURN_IF_ERROR(CheckIsLoaded());
  v1::HandshakeRequest request;
  QUIRE_RETURN_IF_ERROR(ReadMessage(bytes, &request));
  const absl::StatusOr<v1::HandshakeResponse> response = Introduce(request);
  if (!response.ok()) {
    NoteRefusal(request.scheduler_incarnation(),
                absl::StrCat(ReasonOf(response.status()), " ", response.status().message()));
    return response.status();
  }
  if (request.refused_uuid() == progress_.uuid()) {
    NoteRefusal(request.scheduler_incarnation(), request.refusal());
  }
  return WriteMessage(*response);
}

absl::StatusOr<v1::HandshakeResponse> WorkerService::Introduce(
    const v1::HandshakeRequest& request) const {
  QUIRE_RETURN_IF_ERROR(CheckHandshake(request, executor_->model().share()));
  QUIRE_ASSIGN_OR_RETURN(DType dtype, KvCacheDtype(request.kv_cache_dtype()));
  QUIRE_ASSIGN_OR_RETURN(KvCacheSpec spec,
                         executor_->sizing().SpecFor(request.block_size_tokens(), dtype));
  QUIRE_RETURN_IF_ERROR(executor_->sizing().CheckOverride(spec));
  const ModelConfig& config = executor_->model().config();
  v1::HandshakeResponse response;
  response.set_protocol_version(kWorkerProtocolVersion);
  response.set_worker_uuid(progress_.uuid());
  response.set_version(identity_.version);
  response.set_config_hash(HashOf(config));
  response.set_model_hash(identity_.model_hash);
  response.set_weights_sum(executor_->model().weights_sum());
  response.set_block_bytes(executor_->sizing().BlockBytes(spec));
  response.set_num_blocks_max(executor_->sizing().MaxBlocks(spec));
  response.set_num_host_blocks_max(executor_->sizing().MaxHostBlocks(spec));
  response.set_kv_cache_dtype(ToProto(dtype));
  response.set_determinism_fingerprint(identity_.determinism_fingerprint);
  response.set_vocab_size(config.vocab_size);
  response.set_full_step_tokens(executor_->full_step_tokens());
  response.set_wants_next_blocks(executor_->wants_next_blocks());
  response.set_rendezvous(executor_->rendezvous());
  AddKvMemory(executor_->sizing().MemoryOf(spec), &response);
  return response;
}

absl::StatusOr<grpc::ByteBuffer> WorkerService::DoBeginEpoch(const v1::BeginEpochRequest& request) {
  // Reads num_aborts before checking the claim. If a newer scheduler asks meanwhile, either the
  // check of the claim fails, or the newer scheduler's AbortGroup ends the wait for other ranks.
  const uint64_t num_aborts = executor_->num_aborts();
  QUIRE_RETURN_IF_ERROR(
      progress_.CheckClaim(request.scheduler_incarnation(), request.group_epoch()));
  QUIRE_ASSIGN_OR_RETURN(DType dtype, KvCacheDtype(request.kv_cache_dtype()));
  const EpochParams params = {
      .scheduler_incarnation = request.scheduler_incarnation(),
      .group_epoch = request.group_epoch(),
      .limits = {.num_blocks = request.num_blocks(),
                 .num_host_blocks = request.num_host_blocks(),
                 .block_size_tokens = request.block_size_tokens(),
                 .max_sequences = request.max_sequences(),
                 .max_tokens_per_step = request.max_tokens_per_step(),
                 .max_model_len = request.max_model_len_tokens(),
                 .sliding_window = request.sliding_window_tokens(),
                 .wants_next_blocks = request.wants_next_blocks()},
      .kv_cache_dtype = dtype,
      .rope_length = request.rope_length_tokens(),
      .group_secret = request.group_secret(),
      .num_aborts = num_aborts,
      .rendezvous = {request.rendezvous().begin(), request.rendezvous().end()}};
  progress_.BeginEpoch(executor_->sizing().PoolBytes(params.limits, params.kv_cache_dtype));
  const absl::Status begun = executor_->BeginEpoch(params);
  const StepOrder& order = executor_->order();
  progress_.EndBeginEpoch(order.scheduler_incarnation(),
                          order.group_epoch(),
                          order.last_done(),
                          executor_->num_places());
  QUIRE_RETURN_IF_ERROR(begun);
  refusal_.Clear();
  EndStreams(StaleGroup(request.group_epoch()));
  LogInfo("epoch begins",
          {{"incarnation", absl::StrCat(request.scheduler_incarnation())},
           {"epoch", absl::StrCat(request.group_epoch())},
           {"blocks", absl::StrCat(request.num_blocks())},
           {"sequences", absl::StrCat(request.max_sequences())}});
  return WriteMessage(v1::BeginEpochResponse());
}

void WorkerService::DoStep(const std::shared_ptr<StepsCall>& stream,
                           const grpc::ByteBuffer& request) {
  if (stream->has_failed()) {
    return;
  }
  auto response = ExecuteStep(request);
  if (response.ok()) {
    Remember(stream);
    stream->Answer(*std::move(response));
    executor_->WhenAnswered();
    return;
  }
  LogWarning("step refused",
             {{"reason", ReasonOf(response.status())},
              {"message", std::string(response.status().message())}});
  stream->Fail(response.status());
}

absl::StatusOr<grpc::ByteBuffer> WorkerService::ExecuteStep(const grpc::ByteBuffer& bytes) {
  v1::StepRequest large;
  v1::StepRequest& request = bytes.Length() > kMaxKeptRequestBytes ? large : step_request_;
  QUIRE_RETURN_IF_ERROR(ReadMessage(bytes, &request));
  QUIRE_ASSIGN_OR_RETURN(StepPlan plan, DecodePlan(request));
  QUIRE_RETURN_IF_ERROR(CheckDigest(plan));
  QUIRE_RETURN_IF_ERROR(
      progress_.CheckClaim(plan.header.scheduler_incarnation, plan.header.group_epoch));
  const StepOrder& order = executor_->order();
  const auto verdict = order.Classify(plan.header, plan.digest);
  const bool is_new = verdict.ok() && *verdict == StepOrder::Verdict::kExecute;
  if (is_new) {
    progress_.BeginStep(plan.header.step_id);
  }
  auto result = executor_->Execute(plan);
  if (is_new) {
    progress_.EndStep(order.last_done(), executor_->num_places());
  }
  QUIRE_RETURN_IF_ERROR(result.status());
  EncodeResult(**result, &step_response_);
  return WriteMessage(step_response_);
}

void WorkerService::Remember(const std::shared_ptr<StepsCall>& stream) {
  auto is_this = [&stream](const std::weak_ptr<StepsCall>& other) {
    return !other.owner_before(stream) && !stream.owner_before(other);
  };
  if (std::any_of(streams_.begin(), streams_.end(), is_this)) {
    return;
  }
  std::erase_if(streams_, [](const auto& other) { return other.expired(); });
  streams_.push_back(stream);
}

void WorkerService::EndStreams(const absl::Status& status) {
  for (const std::weak_ptr<StepsCall>& weak : streams_) {
    if (std::shared_ptr<StepsCall> stream = weak.lock()) {
      stream->Fail(status);
    }
  }
  streams_.clear();
}

}  // namespace quire
