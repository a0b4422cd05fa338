// StepStream is one Steps call to one worker. Requests go out as bytes; responses and the end of
// the call come back as callbacks. The caller encodes a plan only once and sends the same bytes to
// all ranks.
//
// Thread safety: Send and Cancel may be called from any thread. Callbacks come from gRPC threads,
//                one at a time. on_end comes last and exactly once.
// Lifetime:      the stream holds a reference to itself until on_end has returned.
#ifndef QUIRE_SCHEDULER_RPC_STEP_STREAM_H_
#define QUIRE_SCHEDULER_RPC_STEP_STREAM_H_

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

namespace quire {

class StepStream : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  struct Callbacks {
    std::function<void(const grpc::ByteBuffer&)> on_response;
    std::function<void(absl::Status)> on_end;  // the status is never OK
  };

  static std::shared_ptr<StepStream> Start(const std::shared_ptr<grpc::Channel>& channel,
                                           Callbacks callbacks);

  // Never blocks. REQUIRES: the previous request was answered.
  void Send(grpc::ByteBuffer request);

  // Ends the call; on_end is still called.
  void Cancel();

 private:
  StepStream(const std::shared_ptr<grpc::Channel>& channel, Callbacks callbacks);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void StartWriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::shared_ptr<StepStream> self_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  Callbacks callbacks_;
  grpc::ByteBuffer response_;
  absl::Mutex mutex_;
  grpc::ByteBuffer writing_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_waiting_ ABSL_GUARDED_BY(mutex_) = false;
  // A reactor hold keeps the call from ending between two operations. A failed read drops the hold.
  bool has_hold_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_STEP_STREAM_H_
