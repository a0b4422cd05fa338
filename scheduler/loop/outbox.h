// Outbox holds what one stream still has to send, between the loop, which must never wait, and a
// client that may read slowly or not at all. Tokens of one sequence that pile up are merged into
// one message, so a slow reader gets fewer and larger ones, never others.
//
// Thread safety: not thread-safe; the stream guards it with its own lock.
// Invariants:    at most max_tokens tokens and max_bytes bytes wait, beside the ends of sequences,
//                which are always taken: nothing comes behind them. For each sequence, tokens leave
//                in the order they came, in messages of at most kMaxTokensPerMessage tokens and
//                kMaxMessageBytes bytes, or of one token.
// Cost:          Append and Take are O(size of the update + sequences of the request).
#ifndef QUIRE_SCHEDULER_LOOP_OUTBOX_H_
#define QUIRE_SCHEDULER_LOOP_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "common/base/clock.h"
#include "scheduler/loop/response_stream.h"

namespace quire {

// A message with logprobs is then far below what clients accept by default, 4 MiB.
inline constexpr size_t kMaxTokensPerMessage = 1024;
// As BytesOnWire counts them. Half of what the server sends (kPublicMaxSendBytes): the other half
// is more than the end of a sequence, or one token with its text, can have.
inline constexpr size_t kMaxMessageBytes = size_t{512} << 10;

struct OutboxLimits {
  size_t max_tokens = 4096;
  size_t max_bytes = 1 << 20;  // text, logprobs and ids
};

// Takes the first num_tokens tokens of an update, or all, with what they brought. The update keeps
// the others, and the end.
SequenceUpdate SplitFront(SequenceUpdate& update, size_t num_tokens);

class Outbox {
 public:
  explicit Outbox(const OutboxLimits& limits) : limits_(limits) {}

  // False, and the update is dropped, when it would exceed a limit and has no end.
  [[nodiscard]] bool Append(SequenceUpdate update, Instant now);

  // The next message to send, or nothing. The one before counts as sent from here on only when
  // OnSent is called.
  std::optional<SequenceUpdate> Take();

  // The message taken last went through.
  void OnSent(Instant now);

  // Drops everything.
  void Clear();

  bool empty() const { return updates_.empty(); }
  // Since when a message waits to go through; kInfiniteFuture when none does.
  Instant stalled_since() const { return stalled_since_; }

 private:
  const OutboxLimits limits_;
  std::deque<SequenceUpdate> updates_;  // at most one without an end per sequence
  size_t num_tokens_ = 0;
  size_t num_bytes_ = 0;
  bool sending_ = false;
  Instant stalled_since_ = kInfiniteFuture;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_OUTBOX_H_
