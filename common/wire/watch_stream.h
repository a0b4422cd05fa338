// WatchStream is one Watch call to one worker; callbacks deliver the worker's reports
// and the call's end.
//
// Thread safety: Cancel may be called from any thread. Callbacks come from library threads, one at
//                a time, on_end last and exactly once.
// Lifetime:      destroy only after on_end has returned.
#ifndef QUIRE_COMMON_WIRE_WATCH_STREAM_H_
#define QUIRE_COMMON_WIRE_WATCH_STREAM_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include "proto/v1/worker.grpc.pb.h"

namespace quire {

class WatchStream : private grpc::ClientReadReactor<v1::WatchReport> {
 public:
  struct Callbacks {
    std::function<void(const v1::WatchReport&)> on_report;
    std::function<void(absl::Status)> on_end;  // the status is never OK
  };

  // Starts the call. scheduler_incarnation: the watching scheduler's number, which grows with each
  // start; 0 if the caller is no scheduler. The stub is used only during construction.
  WatchStream(v1::WorkerService::Stub& stub, uint64_t scheduler_incarnation, Callbacks callbacks);

  // Cancels the call; on_end is still called.
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  Callbacks callbacks_;
  v1::WatchRequest request_;
  v1::WatchReport report_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_WATCH_STREAM_H_
