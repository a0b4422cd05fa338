#include "common/wire/watch_stream.h"

#include <utility>

#include "common/wire/grpc_status.h"

namespace quire {

WatchStream::WatchStream(v1::WorkerService::Stub& stub,
                         uint64_t scheduler_incarnation,
                         Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  request_.set_scheduler_incarnation(scheduler_incarnation);
  stub.async()->Watch(&context_, &request_, this);
  StartRead(&report_);
  StartCall();
}

void WatchStream::OnReadDone(bool ok) {
  if (ok) {
    callbacks_.on_report(report_);
    StartRead(&report_);
  }
}

void WatchStream::OnDone(const grpc::Status& status) {
  // The callbacks are moved to the stack, so that they are destroyed last: their destruction may
  // destroy this stream.
  const Callbacks callbacks = std::move(callbacks_);
  absl::Status end = FromGrpcStatus(status);
  callbacks.on_end(end.ok() ? absl::UnavailableError("worker: ended the stream of reports")
                            : std::move(end));
}

}  // namespace quire
