// UnaryCall is one call of a unary method, tracked by UnreadAnswers.
//
// Thread safety: Answer or Refuse is called once, from any thread.
// Lifetime:      deletes itself in OnDone, which gRPC calls some time after Finish.
#ifndef QUIRE_SCHEDULER_RPC_UNARY_CALL_H_
#define QUIRE_SCHEDULER_RPC_UNARY_CALL_H_

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "scheduler/rpc/public_status.h"
#include "scheduler/rpc/unread_answers.h"

namespace quire {

class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // REQUIRES: all arguments live until OnDone.
  UnaryCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response, UnreadAnswers* unread)
      : context_(context), response_(response), unread_(*unread) {}

  absl::Status CheckWanted() const {
    return context_->IsCancelled() ? CancelledByClient() : absl::OkStatus();
  }

  // REQUIRES: as for UnreadAnswers::Take.
  template <typename Response>
  void Answer(const absl::StatusOr<Response>& answer) {
    absl::StatusOr<grpc::ByteBuffer> bytes =
        answer.ok() ? unread_.Take(*answer) : absl::StatusOr<grpc::ByteBuffer>(answer.status());
    if (!bytes.ok()) {
      Refuse(bytes.status());
      return;
    }
    *response_ = *std::move(bytes);
    End(grpc::Status::OK, response_->Length());
  }

  void Refuse(const absl::Status& status) { End(ToPublicStatus(status), 0); }

  void OnDone() override {
    unread_.End(context_);
    delete this;
  }

 private:
  void End(const grpc::Status& status, size_t num_bytes) {
    unread_.Begin(context_, SteadyNow(), num_bytes);
    Finish(status);
  }

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  UnreadAnswers& unread_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_UNARY_CALL_H_
