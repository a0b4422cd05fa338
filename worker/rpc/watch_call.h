// WatchCall is one open call of Watch. It sends reports, as bytes, to a peer that may be slow: a
// report that comes while the one before is still on its way is dropped.
//
// Thread safety: Send, End and has_ended may be called from any thread.
// Ownership:     the call holds itself until gRPC is done with it; who sends holds it too.
#ifndef QUIRE_WORKER_RPC_WATCH_CALL_H_
#define QUIRE_WORKER_RPC_WATCH_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "common/base/mutex.h"

namespace quire {

class WatchCall : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // scheduler_incarnation: of the scheduler that watches; 0: it is none.
  static std::shared_ptr<WatchCall> Start(uint64_t scheduler_incarnation);

  uint64_t scheduler_incarnation() const { return scheduler_incarnation_; }

  void Send(const grpc::ByteBuffer& report);

  // Ends the call, after the report that is on its way. REQUIRES: status is not OK.
  void End(const absl::Status& status);

  // By either side.
  bool has_ended() const;

 private:
  explicit WatchCall(uint64_t scheduler_incarnation)
      : scheduler_incarnation_(scheduler_incarnation) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // The call is over for this reason, unless it was before.
  void EndWith(const grpc::Status& status);
  // Tells gRPC that the call is over once no report is on its way.
  void FinishIfEnded();

  const uint64_t scheduler_incarnation_;
  std::shared_ptr<WatchCall> self_;  // set until OnDone

  mutable Mutex mutex_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer report_ ABSL_GUARDED_BY(mutex_);  // being written
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WATCH_CALL_H_
