// UnreadAnswers bounds the memory of answers that clients do not read. gRPC frees an answer when
// the call is over. A client that opens no HTTP/2 flow-control window can delay the end of a call
// for as long as its connection lasts. So the bytes of large unary answers are counted until gRPC
// frees them. If too many bytes are counted, the oldest calls are cancelled, because their clients
// have had the most time to read. A call is also cancelled if it has not ended kMaxStatusAgeNs
// after it got its status.
//
// The bytes of streams and of small answers are not counted: a stream bounds its own output
// (loop/outbox.h), and the limit on open calls bounds small answers.
//
// Thread safety: safe from any thread, within the REQUIRES of CancelOld and Take.
// Cost:          O(1) for each answer; O(waiting calls) if calls must be cancelled.
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

  // Returns the bytes of an answer. If the answer is larger than kSmallBytes, counts its bytes
  // until gRPC frees them, even after this object is destroyed. If more than kMaxBytes are counted,
  // cancels the oldest calls with large answers.
  // Errors: RESOURCE_EXHAUSTED UNREAD_ANSWERS while more than 2 * kMaxBytes are counted.
  // REQUIRES: as for CancelOld, if the answer has more than kSmallBytes.
  absl::StatusOr<grpc::ByteBuffer> Take(const google::protobuf::Message& answer);

  // Callers must call Begin() before Finish, with the size of the call's answer, and End() in
  // OnDone.
  void Begin(grpc::CallbackServerContext* context, Instant now, size_t num_bytes = 0);
  void End(grpc::CallbackServerContext* context);

  // Cancels the calls that got their status more than kMaxStatusAgeNs ago, so that gRPC frees their
  // memory.
  // REQUIRES: not called on a gRPC thread. TryCancel might run OnDone on that thread, and End would
  // then wait for mutex_ forever.
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

  // Cancels the oldest calls of large_ until all other answers hold at most kMaxBytes.
  void MakeRoom();
  void CancelOldOf(Calls& calls, Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cancel(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<std::atomic<int64_t>> num_bytes_ =
      std::make_shared<std::atomic<int64_t>>(0);
  Mutex mutex_;
  // small_ holds the calls with small answers, large_ the calls with large answers, both in the
  // order of Begin. MakeRoom scans only large_, which is short.
  Calls small_ ABSL_GUARDED_BY(mutex_);
  Calls large_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<grpc::CallbackServerContext*, Calls::iterator> places_
      ABSL_GUARDED_BY(mutex_);
  int64_t num_cancelled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of cancelled calls in large_
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_UNREAD_ANSWERS_H_
