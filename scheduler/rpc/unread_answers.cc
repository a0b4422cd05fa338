#include "scheduler/rpc/unread_answers.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"

namespace quire {
namespace {

// Bytes that the library has; it deletes them.
struct CountedBytes {
  std::string bytes;
  std::shared_ptr<std::atomic<int64_t>> count;

  ~CountedBytes() { *count -= static_cast<int64_t>(bytes.size()); }
};

}  // namespace

absl::StatusOr<grpc::ByteBuffer> UnreadAnswers::Take(const google::protobuf::Message& answer) {
  auto counted = std::make_unique<CountedBytes>();
  counted->count = num_bytes_;
  QUIRE_CHECK(answer.SerializeToString(&counted->bytes));
  const auto num_bytes = static_cast<int64_t>(counted->bytes.size());
  if ((*num_bytes_ += num_bytes) > kMaxBytes) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "UNREAD_ANSWERS",
                 absl::StrCat("server: too many bytes of answers wait for clients that do not read "
                              "(limit ",
                              kMaxBytes,
                              ")"));
  }
  std::string& bytes = counted->bytes;
  const grpc::Slice slice(
      bytes.data(),
      bytes.size(),
      [](void* held) { delete static_cast<CountedBytes*>(held); },
      counted.release());
  return grpc::ByteBuffer(&slice, 1);
}

void UnreadAnswers::Begin(grpc::CallbackServerContext* context, Instant now) {
  const MutexLock lock(mutex_);
  calls_[context] = now;
}

void UnreadAnswers::End(grpc::CallbackServerContext* context) {
  const MutexLock lock(mutex_);
  calls_.erase(context);
}

void UnreadAnswers::CancelOld(Instant now) {
  const MutexLock lock(mutex_);  // End waits for it, and with it the end of the context
  for (auto& [context, since] : calls_) {
    if (since <= now - kLongestNs) {
      since = kInfiniteFuture;
      context->TryCancel();
    }
  }
}

}  // namespace quire
