// StepsCall is one open call of Steps. It reads requests, hands them to the service and writes the
// answers, all as unparsed bytes.
//
// At most kMaxUnanswered requests are read before their answers are written, so a peer cannot fill
// the worker's memory. A failed call first sends the answers that are ready, then ends with its
// status.
//
// Thread safety: Answer, Fail and has_failed may be called from any thread.
// Ownership:     the call holds a reference to itself until gRPC is done with it. A task that
//                answers the call holds another reference.
#ifndef QUIRE_WORKER_RPC_STEPS_CALL_H_
#define QUIRE_WORKER_RPC_STEPS_CALL_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

namespace quire {

class StepsCall : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // The request of the running step, and the request of the next step.
  static constexpr int kMaxUnanswered = 2;

  using Handler = std::function<void(std::shared_ptr<StepsCall>, const grpc::ByteBuffer&)>;

  // Starts reading. For each request the call runs the handler, on an RPC thread. The handler must
  // not block. The handler, or a task that it queues, must call Answer once per request, or Fail.
  static std::shared_ptr<StepsCall> Start(Handler handler);

  void Answer(grpc::ByteBuffer response);

  // Ends the call. Later answers are dropped. REQUIRES: status is not OK.
  void Fail(const absl::Status& status);

  bool has_failed() const;

 private:
  // gRPC calls to make. They are decided under the lock and made after its release. gRPC may call
  // back at once on the same thread, which would deadlock under the lock.
  struct Action {
    bool read = false;
    const grpc::ByteBuffer* write = nullptr;
    std::optional<grpc::Status> finish;
  };

  explicit StepsCall(Handler handler) : handler_(std::move(handler)) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Returns the gRPC calls to make now. Reads start only inside a reaction (one of the On methods).
  // Until a reaction returns, gRPC keeps the call alive, even if another thread has finished it.
  Action Next(bool in_reaction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const Action& action);

  const Handler handler_;
  std::shared_ptr<StepsCall> self_;  // keeps the call alive until OnDone
  grpc::ByteBuffer request_;         // filled by the read in progress

  mutable absl::Mutex mutex_;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = true;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_half_closed_ ABSL_GUARDED_BY(mutex_) = false;  // the peer has ended its requests
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;       // the connection to the peer is lost
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  int num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<grpc::ByteBuffer> responses_ ABSL_GUARDED_BY(mutex_);  // the front is being written
  std::optional<grpc::Status> failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_STEPS_CALL_H_
