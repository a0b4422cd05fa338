#include "common/wire/watch_stream.h"

#include <utility>

#include "common/wire/grpc_status.h"

namespace quire {

WatchStream::WatchStream(v1::WorkerService::Stub& stub, Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {
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
  // After this call returns the object may be gone: the callback is called last, from a copy.
  const std::function<void(absl::Status)> on_end = std::move(callbacks_.on_end);
  absl::Status end = FromGrpcStatus(status);
  on_end(end.ok() ? absl::UnavailableError("worker: ended the stream of reports") : std::move(end));
}

}  // namespace quire
