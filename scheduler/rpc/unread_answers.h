// UnreadAnswers bounds the memory of answers that clients do not read. The library frees an answer
// when it is done with the call, which may be never: a client that opens no HTTP/2 window holds its
// answer as long as the connection lives. So the bytes of large unary answers are counted until the
// library frees them. If there are too many, the calls that have waited longest are cancelled;
// clients that read are not among these. A call is also cancelled kMaxStatusAgeNs after its status.
//
// Streams bound their own output (loop/outbox.h), and the number of calls bounds small answers: for
// both only kMaxStatusAgeNs matters here.
//
// Thread safety: every method may be called from any thread, except as CancelOld and Take say.
// Cost:          O(1) an answer; O(waiting calls) if there is no room.
#ifndef QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_
#define QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
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
  static constexpr size_t kSmallBytes = 4096;
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  static constexpr int64_t kMaxStatusAgeNs = 60 * kNanosPerSecond;

  // Returns the bytes of an answer. Above kSmallBytes they count until the library frees them, even
  // after the end of this object. Cancels the oldest large calls above kMaxBytes in all.
  // Errors: RESOURCE_EXHAUSTED UNREAD_ANSWERS above twice that, as long as they are not freed.
  // REQUIRES: as for CancelOld if the answer has more than kSmallBytes.
  absl::StatusOr<grpc::ByteBuffer> Take(const google::protobuf::Message& answer);

  // Call Begin before Finish, with the size of the call's answer, and End in OnDone.
  void Begin(grpc::CallbackServerContext* context, Instant now, size_t num_bytes = 0);
  void End(grpc::CallbackServerContext* context);

  // Cancels the calls whose status is older than kMaxStatusAgeNs, so that the library frees memory.
  // REQUIRES: not on a library thread: it might run OnDone inside, and End would wait for mutex_.
  void CancelOld(Instant now);

  int64_t num_bytes() const { return *num_bytes_; }

 private:
  struct Call {
    grpc::CallbackServerContext* context;
    Instant since;
    int64_t num_bytes;  // 0: small
    bool is_cancelled = false;
  };
  using Calls = std::list<Call>;

  // Cancels the oldest large calls until the others hold at most kMaxBytes.
  void MakeRoom();
  void CancelOldOf(Calls& calls, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cancel(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<std::atomic<int64_t>> num_bytes_ =
      std::make_shared<std::atomic<int64_t>>(0);
  Mutex mutex_;
  // In the order of Begin. MakeRoom scans only the large calls, of which there are few.
  Calls small_ ABSL_GUARDED_BY(mutex_);
  Calls large_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<grpc::CallbackServerContext*, Calls::iterator> places_
      ABSL_GUARDED_BY(mutex_);
  int64_t num_cancelled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // in large_
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_
