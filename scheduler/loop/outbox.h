// Outbox holds the unsent output of one stream, between the loop, which must never wait, and a
// client that may read slowly or not at all. Waiting tokens of one sequence are merged into one
// message: a slow reader gets the same tokens in fewer and larger messages.
//
// Thread safety: not thread-safe; the stream guards it with its own lock.
// Invariants:    at most max_tokens tokens and max_bytes bytes wait. Exception: the update that
//                ends its sequence is always accepted. Tokens of a sequence are sent in order. A
//                message has at most kMaxTokensPerMessage tokens and kMaxMessageBytes bytes, or a
//                single token of any size. Log-probabilities of the prompt are sent first. They do
//                not count toward max_tokens and max_bytes; kMaxPromptLogprobs bounds them.
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

// Upper bound on the tokens of a message. Keeps a message with logprobs far below the 4 MiB that
// gRPC clients accept by default.
inline constexpr size_t kMaxTokensPerMessage = 1024;
// Upper bound on the bytes of a message's tokens (BytesOnWire in outbox.cc): half of
// kPublicMaxSendBytes. The other half has room for the end of a sequence, or for a single large
// token.
inline constexpr size_t kMaxMessageBytes = size_t{512} << 10;

struct OutboxLimits {
  size_t max_tokens = 4096;
  size_t max_bytes = 1 << 20;  // text, logprobs and ids
};

// Removes the first num_tokens tokens (all, if there are fewer) from the update, and returns them
// with their text and logprobs. The update keeps its other tokens and its end.
SequenceUpdate SplitFront(SequenceUpdate& update, size_t num_tokens);

class Outbox {
 public:
  explicit Outbox(const OutboxLimits& limits) : limits_(limits) {}

  // Appends the update. Drops the update and returns false if it would exceed a limit and does not
  // end its sequence.
  [[nodiscard]] bool Append(SequenceUpdate update, Instant now);

  // Returns the next message to send, or nullopt. The message counts as sent only after OnSent.
  std::optional<SequenceUpdate> Take();

  // Tells the outbox that the last message returned by Take has been sent.
  void OnSent(Instant now);

  // Drops all output that Take has not returned.
  void Clear();

  bool empty() const { return updates_.empty() && prompts_.empty(); }
  // Returns the start of the present stall: since then, output has waited and no message has been
  // sent. kInfiniteFuture if no output waits.
  Instant stalled_since() const { return stalled_since_; }

 private:
  const OutboxLimits limits_;
  std::deque<PromptLogprobs> prompts_;  // unsent log-probabilities of the prompt, in order
  std::deque<SequenceUpdate> updates_;  // unsent updates, at most one per sequence
  size_t num_tokens_ = 0;
  size_t num_bytes_ = 0;
  bool sending_ = false;
  Instant stalled_since_ = kInfiniteFuture;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_OUTBOX_H_
