#include "common/http/http_exchange.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/string_view.h"

namespace quire {

void HttpExchange::WakeOwner() {
  if (owner_ != nullptr && !std::exchange(is_woken_, true)) {
    owner_->Wake();
  }
}

void HttpExchange::SetHead(HttpResponse response, bool is_stream) {
  const MutexLock lock(mutex_);
  QUIRE_CHECK(phase_ == Phase::kUnanswered);
  phase_ = is_stream ? Phase::kStreaming : Phase::kComplete;
  is_stream_ = is_stream;
  head_ = std::move(response);
  WakeOwner();
}

bool HttpExchange::Write(std::string_view text) {
  const MutexLock lock(mutex_);
  QUIRE_CHECK(phase_ == Phase::kStreaming);
  if (owner_ == nullptr || must_cut_) {
    return false;
  }
  if (text.empty() || framing_ == Framing::kNone) {
    return true;  // an empty chunk would end the body
  }
  if (Unsent() > max_unsent_bytes_) {
    must_cut_ = true;
    WakeOwner();
    return false;
  }
  if (framing_ == Framing::kChunks) {
    absl::StrAppend(&queue_, absl::Hex(text.size()), "\r\n", ToAbsl(text), "\r\n");
  } else {
    queue_.append(text);
  }
  WakeOwner();
  return true;
}

void HttpExchange::Finish() {
  const MutexLock lock(mutex_);
  QUIRE_CHECK(phase_ == Phase::kStreaming);
  phase_ = Phase::kComplete;
  if (framing_ == Framing::kChunks) {
    queue_.append("0\r\n\r\n");
  }
  WakeOwner();
}

void HttpExchange::Abandon() {
  // Destroyed after the lock is released, because destroying a callback may run any code.
  std::function<void()> on_drained;
  std::function<void()> on_disconnect;
  const MutexLock lock(mutex_);
  on_drained.swap(on_drained_);
  on_disconnect.swap(on_disconnect_);
  if (phase_ != Phase::kComplete) {
    (phase_ == Phase::kUnanswered ? is_abandoned_ : must_cut_) = true;
    WakeOwner();
  }
}

bool HttpExchange::is_gone() const {
  const MutexLock lock(mutex_);
  return owner_ == nullptr;
}

size_t HttpExchange::unsent_bytes() const {
  const MutexLock lock(mutex_);
  return Unsent();
}

void HttpExchange::OnDrained(size_t max_unsent_bytes, std::function<void()> callback) {
  {
    const MutexLock lock(mutex_);
    if (owner_ == nullptr) {
      return;
    }
    if (Unsent() > max_unsent_bytes) {
      drain_mark_ = max_unsent_bytes;
      on_drained_.swap(callback);
      return;
    }
  }
  callback();
}

void HttpExchange::OnDisconnect(std::function<void()> callback) {
  {
    const MutexLock lock(mutex_);
    if (owner_ != nullptr) {
      on_disconnect_ = std::move(callback);
      return;
    }
    if (!was_cut_) {
      return;
    }
  }
  callback();
}

void HttpExchange::Post(std::function<void()> task) {
  const MutexLock lock(mutex_);
  if (owner_ != nullptr) {
    owner_->Post(std::move(task));
  }
}

HttpExchange::Taken HttpExchange::Take(std::string* body) {
  const MutexLock lock(mutex_);
  is_woken_ = false;
  Taken taken{.head = std::exchange(head_, std::nullopt),
              .is_stream = is_stream_,
              .is_complete = phase_ == Phase::kComplete,
              .is_abandoned = is_abandoned_,
              .must_cut = must_cut_};
  in_flight_ += queue_.size();
  if (body->empty()) {
    body->swap(queue_);  // a swap keeps the memory of both strings for later writes
  } else {
    body->append(queue_);
    queue_.clear();
  }
  return taken;
}

void HttpExchange::SetInFlight(size_t bytes) {
  std::function<void()> callback;
  {
    const MutexLock lock(mutex_);
    in_flight_ = bytes;
    if (on_drained_ != nullptr && Unsent() <= drain_mark_) {
      callback.swap(on_drained_);
    }
  }
  if (callback != nullptr) {
    callback();
  }
}

bool HttpExchange::has_whole_answer() const {
  const MutexLock lock(mutex_);
  return phase_ == Phase::kComplete;
}

void HttpExchange::Detach(bool was_cut) {
  bool must_tell = false;
  std::function<void()> on_drained;
  std::function<void()> on_disconnect;
  {
    const MutexLock lock(mutex_);
    owner_ = nullptr;
    must_tell = was_cut_ = was_cut && phase_ != Phase::kComplete;
    on_drained.swap(on_drained_);
    on_disconnect.swap(on_disconnect_);
  }
  if (must_tell && on_disconnect != nullptr) {
    on_disconnect();
  }
}

}  // namespace quire
