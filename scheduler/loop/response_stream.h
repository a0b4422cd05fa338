// ResponseStream takes the output of one request: the loop writes, the other end (a gRPC call, a
// test) reads at its own pace.
//
// Thread safety: SequenceUpdate is a value type; a ResponseStream is called by the loop thread and
//                must not block it.
#ifndef QUIRE_SCHEDULER_LOOP_RESPONSE_STREAM_H_
#define QUIRE_SCHEDULER_LOOP_RESPONSE_STREAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/step/step_result.h"

namespace quire {

struct OutputLogprobs {
  float logprob = 0.0F;
  std::vector<TokenLogprob> top;
};

// The good end of a sequence. A sequence that ended badly ends with the stream's status.
struct SequenceEnd {
  enum class Reason : uint8_t { kStop, kLength };
  Reason reason = Reason::kStop;
  std::string text;          // held back until now
  std::string matched_stop;  // the stop string, if one ended the sequence
  int32_t num_prompt_tokens = 0;
  int32_t num_output_tokens = 0;
  std::optional<float> score;  // of beam search and best_of
};

// New output of one sequence: consecutive tokens, then perhaps its end.
struct SequenceUpdate {
  int32_t sequence_index = 0;
  int32_t first_position = 0;  // output position of token_ids[0]; of the next token when empty
  std::vector<TokenId> token_ids;
  std::string text;
  std::vector<uint32_t> text_ends;       // one per token: where its part of text ends
  std::vector<OutputLogprobs> logprobs;  // one per token if asked for, else empty
  std::optional<SequenceEnd> end;
};

class ResponseStream {
 public:
  virtual ~ResponseStream() = default;

  // The request was queued. Not called for a refused request.
  virtual void OnQueued() {}

  // Returns false if unsent output exceeds its bound: the reader is too slow to be served.
  [[nodiscard]] virtual bool Write(SequenceUpdate update, Instant now) = 0;

  // No Write follows. OK: every sequence ended well. Unsent output is sent first, except with
  // ABORTED: that drops it, and may also come after another End.
  virtual void End(absl::Status status) = 0;

  // Since when unsent output waits and none gets through; kInfiniteFuture if none waits.
  virtual Instant stalled_since() const = 0;

  // The client's id of the request; empty if there is none.
  virtual std::string_view request_id() const { return ""; }
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_RESPONSE_STREAM_H_
