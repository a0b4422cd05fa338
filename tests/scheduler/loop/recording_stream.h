// RecordingStream remembers what a ResponseStream was told.
//
// Thread safety: safe from any thread.
#ifndef QUIRE_TESTS_SCHEDULER_LOOP_RECORDING_STREAM_H_
#define QUIRE_TESTS_SCHEDULER_LOOP_RECORDING_STREAM_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "scheduler/loop/response_stream.h"

namespace quire {

class RecordingStream : public ResponseStream {
 public:
  void OnQueued() override {
    std::lock_guard<std::mutex> lock(mutex_);
    is_queued_ = true;
  }
  bool Write(SequenceUpdate update, Instant /*now*/) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (refuses_writes_) {
      return false;
    }
    updates_.push_back(std::move(update));
    return true;
  }
  void End(absl::Status status) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++num_ends_;
    end_ = std::move(status);
    ended_.notify_all();
  }
  Instant stalled_since() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stalled_since_;
  }

  std::string_view request_id() const override { return request_id_; }

  // Before the loop has it.
  void SetRequestId(const std::string& request_id) { request_id_ = request_id; }
  void RefuseWrites() {
    std::lock_guard<std::mutex> lock(mutex_);
    refuses_writes_ = true;
  }
  void StallSince(Instant when) {
    std::lock_guard<std::mutex> lock(mutex_);
    stalled_since_ = when;
  }
  // Waits, long at most.
  absl::Status WaitForEnd() {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait_for(lock, std::chrono::seconds(60), [this] { return end_.has_value(); });
    return end_.value_or(absl::DeadlineExceededError("the stream did not end"));
  }

  std::vector<SequenceUpdate> updates() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return updates_;
  }
  bool is_queued() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return is_queued_;
  }
  std::optional<absl::Status> end() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return end_;
  }
  int num_ends() const {
    std::lock_guard<std::mutex> lock(mutex_);
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
  // All text of a sequence, with the text of its end.
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
  std::string request_id_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable ended_;
  std::vector<SequenceUpdate> updates_;
  std::optional<absl::Status> end_;
  int num_ends_ = 0;
  bool is_queued_ = false;
  bool refuses_writes_ = false;
  Instant stalled_since_ = kInfiniteFuture;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_LOOP_RECORDING_STREAM_H_
