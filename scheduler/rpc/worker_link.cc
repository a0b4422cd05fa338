#include "scheduler/rpc/worker_link.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <grpcpp/support/proto_buffer_reader.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/wire/grpc_status.h"
#include "common/wire/step_codec.h"
#include "scheduler/rpc/worker_hello_codec.h"

namespace quire {
namespace {

// Deadline of a Handshake or BeginEpoch call. It is long, because the worker may need time to
// allocate and touch a large pool. A stopped worker is noticed earlier, by its missing reports.
constexpr std::chrono::minutes kCallTimeout(30);
constexpr int64_t kMaxSilenceMs = int64_t{24} * 3600 * 1000;

WorkerPhase PhaseOf(v1::WorkerPhase phase) {
  switch (phase) {
    case v1::WORKER_PHASE_LOADING:
      return WorkerPhase::kLoading;
    case v1::WORKER_PHASE_IDLE:
      return WorkerPhase::kIdle;
    case v1::WORKER_PHASE_BEGINNING_EPOCH:
      return WorkerPhase::kBeginningEpoch;
    case v1::WORKER_PHASE_EXECUTING:
      return WorkerPhase::kExecuting;
    default:
      return WorkerPhase::kUnknown;
  }
}

// Returns the report's holder_silence_ms in nanoseconds: the time since the worker last heard from
// its holder, the newest scheduler that called BeginEpoch. Clamps the time, so that sums with other
// times cannot overflow.
int64_t SilenceNs(const v1::WatchReport& report) {
  return std::clamp<int64_t>(report.holder_silence_ms(), 0, kMaxSilenceMs) * kNanosPerMilli;
}

WorkerReport ReportOf(const v1::WatchReport& report) {
  return {.uuid = report.worker_uuid(),
          .phase = PhaseOf(report.phase()),
          .progress = report.progress(),
          .loaded_bytes = report.loaded_bytes(),
          .total_bytes = report.total_bytes(),
          .scheduler_incarnation = report.scheduler_incarnation(),
          .group_epoch = report.group_epoch(),
          .step_id = report.step_id(),
          .waits_for_rank =
              report.has_waits_for_rank() ? std::optional(report.waits_for_rank()) : std::nullopt,
          .num_window_places = std::max<int64_t>(0, report.num_window_places()),
          .holder_incarnation = report.holder_incarnation(),
          .holder_silence_ns = SilenceNs(report)};
}

// Workers are trusted, so their messages, unlike clients' messages, are not searched for unknown
// fields.
absl::StatusOr<StepResult> ResultOf(const grpc::ByteBuffer& buffer) {
  grpc::ByteBuffer bytes(buffer);  // another reference to the same memory
  grpc::ProtoBufferReader reader(&bytes);
  v1::StepResponse response;
  if (!response.ParseFromZeroCopyStream(&reader)) {
    return InvalidArgument("MALFORMED_PROTO",
                           "response: the bytes are not a valid response message");
  }
  return DecodeResult(response);
}

}  // namespace

template <typename Request, typename Response>
struct WorkerLink::UnaryCall {
  explicit UnaryCall(Request the_request) : request(std::move(the_request)) {
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  }

  grpc::ClientContext context;
  Request request;
  Response response;
};

std::shared_ptr<WorkerLink> WorkerLink::Start(std::shared_ptr<grpc::Channel> channel,
                                              uint64_t scheduler_incarnation,
                                              Callbacks callbacks) {
  std::shared_ptr<WorkerLink> link(new WorkerLink(std::move(channel), std::move(callbacks)));
  link->Watch(scheduler_incarnation);
  return link;
}

WorkerLink::WorkerLink(std::shared_ptr<grpc::Channel> channel, Callbacks callbacks)
    : callbacks_(std::move(callbacks)),
      channel_(std::move(channel)),
      stub_(v1::WorkerService::NewStub(channel_)) {}

void WorkerLink::Watch(uint64_t scheduler_incarnation) {
  watch_ = std::make_shared<WatchStream>(
      *stub_,
      scheduler_incarnation,
      WatchStream::Callbacks{.on_report =
                                 [self = shared_from_this()](const v1::WatchReport& report) {
                                   self->callbacks_.on_report(ReportOf(report));
                                 },
                             .on_end =
                                 [self = shared_from_this()](absl::Status status) {
                                   self->callbacks_.on_watch_end(std::move(status));
                                 }});
}

void WorkerLink::Greet(const v1::HandshakeRequest& request) {
  using Call = UnaryCall<v1::HandshakeRequest, v1::HandshakeResponse>;
  greeting_ = std::make_shared<Call>(request);
  stub_->async()->Handshake(
      &greeting_->context,
      &greeting_->request,
      &greeting_->response,
      [held = Held<Call>{shared_from_this(), greeting_}](const grpc::Status& status) {
        const absl::Status end = FromGrpcStatus(status);
        held.link->callbacks_.on_hello(end.ok() ? HelloOf(held.call->response)
                                                : absl::StatusOr<WorkerHello>(end));
      });
}

void WorkerLink::BeginEpoch(const v1::BeginEpochRequest& request) {
  using Call = UnaryCall<v1::BeginEpochRequest, v1::BeginEpochResponse>;
  beginning_ = std::make_shared<Call>(request);
  stub_->async()->BeginEpoch(
      &beginning_->context,
      &beginning_->request,
      &beginning_->response,
      [held = Held<Call>{shared_from_this(), beginning_}](const grpc::Status& status) {
        held.link->callbacks_.on_epoch_begun(FromGrpcStatus(status));
      });
}

void WorkerLink::OpenSteps() {
  BreakSteps();
  auto on_response = [self = shared_from_this()](const grpc::ByteBuffer& bytes) {
    absl::StatusOr<StepResult> result = ResultOf(bytes);
    if (result.ok()) {
      self->callbacks_.on_answer(*std::move(result));
      return;
    }
    LogError("a worker answered a step with an invalid result",
             {{"cause", result.status().ToString()}});
    const bool is_damaged = ReasonOf(result.status()) == "DAMAGED";
    // Damage happens in transit, not in the step, so a damaged answer counts as a broken
    // connection.
    self->callbacks_.on_steps_end(
        is_damaged ? absl::UnavailableError("worker: its answer was damaged")
                   : absl::DataLossError("worker: answered with an invalid result"));
  };
  steps_ = StepStream::Start(
      channel_,
      StepStream::Callbacks{.on_response = std::move(on_response),
                            .on_end = [self = shared_from_this()](absl::Status status) {
                              self->callbacks_.on_steps_end(std::move(status));
                            }});
}

void WorkerLink::Send(const grpc::ByteBuffer& request) {
  if (steps_ != nullptr) {
    steps_->Send(request);
  }
}

void WorkerLink::BreakSteps() {
  if (steps_ != nullptr) {
    steps_->Cancel();
  }
}

void WorkerLink::Close() {
  if (greeting_ != nullptr) {
    greeting_->context.TryCancel();
  }
  if (beginning_ != nullptr) {
    beginning_->context.TryCancel();
  }
  BreakSteps();
  watch_->Cancel();
}

}  // namespace quire
