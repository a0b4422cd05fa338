// StepStream is one Steps call to one worker: requests go out, responses and the end of the call
// come back as callbacks.
//
// Thread safety: Send and Cancel may be called from any thread. Callbacks come from library
// threads,
//                one at a time, on_end last and exactly once.
// Lifetime:      destroy only after on_end has returned.
#ifndef QUIRE_SCHEDULER_RPC_STEP_STREAM_H_
#define QUIRE_SCHEDULER_RPC_STEP_STREAM_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include "proto/v1/worker.grpc.pb.h"

namespace quire {

class StepStream : private grpc::ClientBidiReactor<v1::StepRequest, v1::StepResponse> {
 public:
  struct Callbacks {
    std::function<void(const v1::StepResponse&)> on_response;
    std::function<void(absl::Status)> on_end;
  };

  StepStream(v1::WorkerService::Stub& stub, Callbacks callbacks);

  // Never blocks. REQUIRES: the request before was answered.
  void Send(const v1::StepRequest& request);

  // Ends the call; on_end still comes.
  void Cancel();

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void StartWriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::ClientContext context_;
  Callbacks callbacks_;
  v1::StepResponse response_;
  absl::Mutex mutex_;
  v1::StepRequest writing_ ABSL_GUARDED_BY(mutex_);
  v1::StepRequest waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_waiting_ ABSL_GUARDED_BY(mutex_) = false;
  // Keeps the call from ending between two of our own operations; given back when reading fails.
  bool has_hold_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_STEP_STREAM_H_
