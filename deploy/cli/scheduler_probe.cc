#include "deploy/cli/scheduler_probe.h"

#include <atomic>
#include <chrono>

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "proto/grpc/health/v1/health.pb.h"

#include "common/wire/channel.h"

namespace quire {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr int64_t kIntervalNs = kNanosPerSecond;
constexpr std::chrono::seconds kDeadline(2);
constexpr char kCheck[] = "/grpc.health.v1.Health/Check";

}  // namespace

struct SchedulerProbe::Call {
  grpc::ClientContext context;
  HealthCheckRequest request;
  HealthCheckResponse response;
  bool is_serving = false;
  std::atomic<bool> has_ended = false;  // set last
};

SchedulerProbe::SchedulerProbe(const Address& address) : channel_(DialPublic(address)) {}

SchedulerProbe::~SchedulerProbe() {
  if (call_ != nullptr) {
    call_->context.TryCancel();
  }
}

bool SchedulerProbe::Poll(Instant now) {
  if (call_ != nullptr) {
    if (!call_->has_ended) {
      return false;
    }
    const bool is_serving = call_->is_serving;
    call_ = nullptr;
    return is_serving;
  }
  if (now < ask_at_) {
    return false;
  }
  ask_at_ = now + kIntervalNs;
  call_ = std::make_shared<Call>();
  call_->request.set_service("liveness");
  call_->context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  grpc::TemplatedGenericStub<HealthCheckRequest, HealthCheckResponse> stub(channel_);
  stub.UnaryCall(&call_->context,
                 kCheck,
                 grpc::StubOptions(),
                 &call_->request,
                 &call_->response,
                 [call = call_](const grpc::Status& status) {
                   call->is_serving =
                       status.ok() && call->response.status() == HealthCheckResponse::SERVING;
                   call->has_ended = true;
                 });
  return false;
}

}  // namespace quire
