// WatchCall is one open call of Watch. It sends reports, as bytes, to a peer that may be slow: a
// report is dropped if the previous one is still being written.
//
// Thread safety: Send, End and has_ended may be called from any thread.
// Ownership:     the call holds a reference to itself until gRPC is done with it. The reporter
//                holds another reference.
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
  // scheduler_incarnation: incarnation of the scheduler that watches; 0 for any other client.
  static std::shared_ptr<WatchCall> Start(uint64_t scheduler_incarnation);

  uint64_t scheduler_incarnation() const { return scheduler_incarnation_; }

  void Send(const grpc::ByteBuffer& report);

  // Ends the call, after the report that is being written now. REQUIRES: status is not OK.
  void End(const absl::Status& status);

  // Returns true if either side has ended the call.
  bool has_ended() const;

 private:
  explicit WatchCall(uint64_t scheduler_incarnation)
      : scheduler_incarnation_(scheduler_incarnation) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Ends the call with this status, unless the call has ended already.
  void EndWith(const grpc::Status& status);
  // Calls Finish of gRPC if the call has ended and no report is being written.
  void FinishIfEnded();

  const uint64_t scheduler_incarnation_;
  std::shared_ptr<WatchCall> self_;  // keeps the call alive until OnDone

  mutable Mutex mutex_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer report_ ABSL_GUARDED_BY(mutex_);  // the report that is being written
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_WATCH_CALL_H_
