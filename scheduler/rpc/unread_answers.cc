#include "scheduler/rpc/unread_answers.h"

#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/error.h"
#include "scheduler/rpc/wire_message.h"

namespace quire {
namespace {

// The bytes of one answer. gRPC owns and deletes this object, and the destructor reduces the count.
struct CountedBytes {
  std::string bytes;
  std::shared_ptr<std::atomic<int64_t>> count;

  ~CountedBytes() { *count -= static_cast<int64_t>(bytes.size()); }
};

}  // namespace

absl::StatusOr<grpc::ByteBuffer> UnreadAnswers::Take(const google::protobuf::Message& answer) {
  const size_t num_bytes = answer.ByteSizeLong();
  if (num_bytes <= kSmallBytes) {
    return SerializeMessage(answer);
  }
  auto counted = std::make_unique<CountedBytes>();
  QUIRE_CHECK(answer.SerializeToString(&counted->bytes));
  counted->count = num_bytes_;
  if ((*num_bytes_ += static_cast<int64_t>(num_bytes)) > kMaxBytes) {
    MakeRoom();
  }
  if (*num_bytes_ > 2 * kMaxBytes) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "UNREAD_ANSWERS",
                 "server: too many bytes of answers wait for clients that do not read");
  }
  std::string& bytes = counted->bytes;
  const grpc::Slice slice(
      bytes.data(),
      bytes.size(),
      [](void* held) { delete static_cast<CountedBytes*>(held); },
      counted.release());
  return grpc::ByteBuffer(&slice, 1);
}

void UnreadAnswers::MakeRoom() {
  const MutexLock lock(mutex_);
  for (Call& call : large_) {
    if (*num_bytes_ - num_cancelled_bytes_ <= kMaxBytes) {
      return;
    }
    Cancel(call);
  }
}

void UnreadAnswers::Begin(grpc::CallbackServerContext* context, Instant now, size_t num_bytes) {
  const int64_t counted = num_bytes > kSmallBytes ? static_cast<int64_t>(num_bytes) : 0;
  const MutexLock lock(mutex_);
  Calls& calls = counted > 0 ? large_ : small_;
  places_[context] = calls.insert(calls.end(), {context, now, counted});
}

void UnreadAnswers::End(grpc::CallbackServerContext* context) {
  const MutexLock lock(mutex_);
  const auto place = places_.find(context);
  num_cancelled_bytes_ -= place->second->is_cancelled ? place->second->num_bytes : 0;
  (place->second->num_bytes > 0 ? large_ : small_).erase(place->second);
  places_.erase(place);
}

void UnreadAnswers::CancelOld(Instant now) {
  const MutexLock lock(mutex_);
  CancelOldOf(small_, now);
  CancelOldOf(large_, now);
}

void UnreadAnswers::CancelOldOf(Calls& calls, Instant now) {
  for (Call& call : calls) {
    if (call.since > now - kMaxStatusAgeNs) {
      return;
    }
    Cancel(call);
  }
}

// call.context is alive: gRPC keeps it until OnDone returns, and OnDone calls End, which waits for
// mutex_.
void UnreadAnswers::Cancel(Call& call) {
  if (!std::exchange(call.is_cancelled, true)) {
    num_cancelled_bytes_ += call.num_bytes;
    call.context->TryCancel();
  }
}

}  // namespace quire
