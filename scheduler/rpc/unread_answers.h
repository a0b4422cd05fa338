// UnreadAnswers is what clients have not read of their answers. A call's memory is free once the
// library is done with it, and that may be never: who opens no window of HTTP/2 for an answer holds
// it as long as the connection lives. So the bytes of unary answers are counted until the library
// lets go of the last of them, and bounded; and a call that has its status for a minute and is
// still there is cancelled.
//
// Streams bound their own output (loop/outbox.h); of them only the end is watched here.
//
// Thread safety: every method may be called from any thread but the library's own while it calls
//                CancelOld (see there).
// Cost:          O(1) an answer; O(calls that have not been read) a CancelOld.
#ifndef QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_
#define QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace quire {

class UnreadAnswers {
 public:
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  static constexpr int64_t kLongestNs = 60 * kNanosPerSecond;

  // The bytes of an answer, which count until the library lets go of them, also when that outlives
  // this object. RESOURCE_EXHAUSTED UNREAD_ANSWERS where they would be more than kMaxBytes in all.
  absl::StatusOr<grpc::ByteBuffer> Take(const google::protobuf::Message& answer);

  // The call is about to be given its status: before Finish, and in OnDone.
  void Begin(grpc::CallbackServerContext* context, Instant now);
  void End(grpc::CallbackServerContext* context);

  // Cancels the calls whose status is older than kLongestNs: the library lets go of what it holds
  // for them. REQUIRES: not on a thread of the library, which might run OnDone within.
  void CancelOld(Instant now);

  int64_t num_bytes() const { return *num_bytes_; }

 private:
  const std::shared_ptr<std::atomic<int64_t>> num_bytes_ =
      std::make_shared<std::atomic<int64_t>>(0);
  Mutex mutex_;
  // Since when each waits; kInfiniteFuture once it is cancelled.
  absl::flat_hash_map<grpc::CallbackServerContext*, Instant> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_
