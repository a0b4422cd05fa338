// UnreadAnswers bounds the memory of answers that clients do not read. The library frees an answer
// when it is done with the call. A client that opens no HTTP/2 window can delay this for as long as
// its connection lasts. So the bytes of large unary answers are counted until the library frees
// them. If there are too many, the calls that have waited longest are cancelled; these are not
// calls of clients that read. A call is also cancelled kMaxStatusAgeNs after its status.
//
// Streams bound their own output (loop/outbox.h), and the number of calls bounds small answers. For
// streams and small answers, only kMaxStatusAgeNs matters here.
//
// Thread safety: safe from any thread, within the REQUIRES of CancelOld and Take.
// Cost:          O(1) an answer; O(waiting calls) if calls must be cancelled.
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

  // Returns the bytes of an answer. If it has more than kSmallBytes, its bytes count until the
  // library frees them, even after this object is destroyed. If more than kMaxBytes count, cancels
  // the oldest large calls.
  // Errors: RESOURCE_EXHAUSTED UNREAD_ANSWERS while more than 2 * kMaxBytes count.
  // REQUIRES: as for CancelOld, if the answer has more than kSmallBytes.
  absl::StatusOr<grpc::ByteBuffer> Take(const google::protobuf::Message& answer);

  // Call Begin before Finish, with the size of the call's answer, and End in OnDone.
  void Begin(grpc::CallbackServerContext* context, Instant now, size_t num_bytes = 0);
  void End(grpc::CallbackServerContext* context);

  // Cancels the calls whose status is older than kMaxStatusAgeNs, so that the library frees memory.
  // REQUIRES: not called on a library thread. TryCancel might run OnDone on that thread, and End
  // would then wait for mutex_ forever.
  void CancelOld(Instant now);

  int64_t num_bytes() const { return *num_bytes_; }

 private:
  struct Call {
    grpc::CallbackServerContext* context;
    Instant since;
    int64_t num_bytes;  // 0 for a small answer
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
  int64_t num_cancelled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of cancelled calls in large_
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_
