#include "worker/rpc/watch_call.h"

#include <utility>

#include "common/base/check.h"
#include "common/wire/grpc_status.h"

namespace quire {

std::shared_ptr<WatchCall> WatchCall::Start(uint64_t scheduler_incarnation) {
  std::shared_ptr<WatchCall> call(new WatchCall(scheduler_incarnation));
  call->self_ = call;
  return call;
}

void WatchCall::Send(const grpc::ByteBuffer& report) {
  {
    const MutexLock lock(mutex_);
    if (is_writing_ || end_.has_value()) {
      return;
    }
    is_writing_ = true;
    report_ = report;
  }
  // Called without the lock, since gRPC may call back on the same thread.
  StartWrite(&report_);
}

void WatchCall::End(const absl::Status& status) {
  QUIRE_CHECK(!status.ok());
  EndWith(ToGrpcStatus(status));
}

bool WatchCall::has_ended() const {
  const MutexLock lock(mutex_);
  return end_.has_value();
}

void WatchCall::OnWriteDone(bool ok) {
  const std::shared_ptr<WatchCall> self = self_;
  {
    const MutexLock lock(mutex_);
    is_writing_ = false;
  }
  if (ok) {
    FinishIfEnded();
  } else {
    EndWith(grpc::Status::CANCELLED);
  }
}

void WatchCall::OnCancel() {
  const std::shared_ptr<WatchCall> self = self_;
  EndWith(grpc::Status::CANCELLED);
}

void WatchCall::OnDone() {
  // On return, `last` may destroy this object.
  const std::shared_ptr<WatchCall> last = std::move(self_);
}

void WatchCall::EndWith(const grpc::Status& status) {
  {
    const MutexLock lock(mutex_);
    if (!end_.has_value()) {
      end_ = status;
    }
  }
  FinishIfEnded();
}

void WatchCall::FinishIfEnded() {
  grpc::Status status;
  {
    const MutexLock lock(mutex_);
    if (is_finished_ || is_writing_ || !end_.has_value()) {
      return;
    }
    is_finished_ = true;
    status = *end_;
  }
  Finish(status);
}

}  // namespace quire
