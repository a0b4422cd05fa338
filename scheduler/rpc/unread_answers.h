// UnreadAnswers is what clients have not read of their answers. A call's memory is free once the
// library is done with it, and that may be never: who opens no window of HTTP/2 for an answer holds
// it as long as the connection lives. So the bytes of unary answers are counted until the library
// lets go of the last of them. Where there are too many, the calls that have waited longest are
// cancelled, which are not those of clients that read; and so is every call that has its status for
// a minute and is still there.
//
// Streams bound their own output (loop/outbox.h), and small answers are bounded by how many calls
// there are: of both only the minute counts here.
//
// Thread safety: every method may be called from any thread, but for CancelOld and Take as said
//                there.
// Cost:          O(1) an answer, and O(calls that wait) where there is no room.
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
  static constexpr int64_t kLongestNs = 60 * kNanosPerSecond;

  // The bytes of an answer. Of more than kSmallBytes they count until the library lets go of them,
  // also when that outlives this object. Above kMaxBytes calls are cancelled; RESOURCE_EXHAUSTED
  // UNREAD_ANSWERS at twice as many, while the library has not let go of theirs.
  // REQUIRES: not on a thread of the library for one of more than kSmallBytes, as for CancelOld.
  absl::StatusOr<grpc::ByteBuffer> Take(const google::protobuf::Message& answer);

  // The call is about to be given its status, with an answer of so many bytes: before Finish, and
  // in OnDone.
  void Begin(grpc::CallbackServerContext* context, Instant now, size_t num_bytes = 0);
  void End(grpc::CallbackServerContext* context);

  // Cancels the calls whose status is older than kLongestNs: the library lets go of what it holds
  // for them. REQUIRES: not on a thread of the library, which might run OnDone within.
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

  // The oldest ones that hold bytes, until the library will let go of all above kMaxBytes.
  void MakeRoom();
  void CancelOldOf(Calls& calls, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cancel(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<std::atomic<int64_t>> num_bytes_ =
      std::make_shared<std::atomic<int64_t>>(0);
  Mutex mutex_;
  // In the order of Begin. Room is looked for among the large ones alone, of which there are few.
  Calls small_ ABSL_GUARDED_BY(mutex_);
  Calls large_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<grpc::CallbackServerContext*, Calls::iterator> places_
      ABSL_GUARDED_BY(mutex_);
  int64_t num_cancelled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of large_
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_
