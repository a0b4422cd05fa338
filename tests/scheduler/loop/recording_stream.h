// RecordingStream remembers what a ResponseStream was told.
//
// Thread safety: safe from any thread.
#ifndef QUIRE_TESTS_SCHEDULER_LOOP_RECORDING_STREAM_H_
#define QUIRE_TESTS_SCHEDULER_LOOP_RECORDING_STREAM_H_

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "scheduler/loop/response_stream.h"

namespace quire {

class RecordingStream : public ResponseStream {
 public:
  bool Write(SequenceUpdate update, Instant /*now*/) override {
    absl::MutexLock lock(&mutex_);
    if (refuses_writes_) {
      return false;
    }
    updates_.push_back(std::move(update));
    return true;
  }
  void End(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    ++num_ends_;
    end_ = std::move(status);
  }
  Instant stalled_since() const override {
    absl::MutexLock lock(&mutex_);
    return stalled_since_;
  }

  void RefuseWrites() {
    absl::MutexLock lock(&mutex_);
    refuses_writes_ = true;
  }
  void StallSince(Instant when) {
    absl::MutexLock lock(&mutex_);
    stalled_since_ = when;
  }
  // Waits, long at most.
  absl::Status WaitForEnd() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); };
    mutex_.AwaitWithTimeout(absl::Condition(&ended), absl::Seconds(60));
    return end_.value_or(absl::DeadlineExceededError("the stream did not end"));
  }

  std::vector<SequenceUpdate> updates() const {
    absl::MutexLock lock(&mutex_);
    return updates_;
  }
  std::optional<absl::Status> end() const {
    absl::MutexLock lock(&mutex_);
    return end_;
  }
  int num_ends() const {
    absl::MutexLock lock(&mutex_);
    return num_ends_;
  }

  // All tokens of a sequence, if their positions ran 0, 1, 2, ...; else nothing.
  std::optional<std::vector<TokenId>> Tokens(int32_t sequence_index = 0) const {
    std::vector<TokenId> tokens;
    for (const SequenceUpdate& update : updates()) {
      if (update.sequence_index != sequence_index) {
        continue;
      }
      if (update.first_position != static_cast<int32_t>(tokens.size())) {
        return std::nullopt;
      }
      tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
    }
    return tokens;
  }
  // All text of a sequence, with what came at its end.
  std::string Text(int32_t sequence_index = 0) const {
    std::string text;
    for (const SequenceUpdate& update : updates()) {
      if (update.sequence_index == sequence_index) {
        text += update.text;
        text += update.end.has_value() ? update.end->text : "";
      }
    }
    return text;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<SequenceUpdate> updates_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  int num_ends_ ABSL_GUARDED_BY(mutex_) = 0;
  bool refuses_writes_ ABSL_GUARDED_BY(mutex_) = false;
  Instant stalled_since_ ABSL_GUARDED_BY(mutex_) = kInfiniteFuture;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_LOOP_RECORDING_STREAM_H_
