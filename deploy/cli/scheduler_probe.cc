#include "deploy/cli/scheduler_probe.h"

#include <chrono>
#include <utility>

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

// Owned by the probe, not by the callback: a library thread that destroys the last channel of the
// process would wait for its own end (gRPC 1.51).
struct SchedulerProbe::Call {
  grpc::ClientContext context;
  HealthCheckRequest request;
  HealthCheckResponse response;
};

SchedulerProbe::SchedulerProbe(const Address& address) : channel_(DialPublic(address)) {}

SchedulerProbe::~SchedulerProbe() {
  if (call_ == nullptr) {
    return;
  }
  call_->context.TryCancel();
  const MutexLock lock(mutex_);
  while (!has_ended_) {
    ended_.Wait(mutex_);
  }
}

bool SchedulerProbe::Poll(Instant now) {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(has_ended_, false)) {
      call_ = nullptr;
      return is_serving_;
    }
  }
  if (call_ == nullptr && now >= ask_at_) {
    ask_at_ = now + kIntervalNs;
    Ask();
  }
  return false;
}

void SchedulerProbe::Ask() {
  call_ = std::make_unique<Call>();
  call_->request.set_service("liveness");
  call_->context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  grpc::TemplatedGenericStub<HealthCheckRequest, HealthCheckResponse> stub(channel_);
  stub.UnaryCall(&call_->context,
                 kCheck,
                 grpc::StubOptions(),
                 &call_->request,
                 &call_->response,
                 [this, response = &call_->response](const grpc::Status& status) {
                   const MutexLock lock(mutex_);
                   is_serving_ = status.ok() && response->status() == HealthCheckResponse::SERVING;
                   has_ended_ = true;
                   ended_.NotifyOne();
                 });
}

}  // namespace quire
