// ResponseStream takes the output of one request. The loop writes the output; the other end (a gRPC
// call, a test) reads the output at its own pace.
//
// Thread safety: SequenceUpdate is a value type; a ResponseStream is called by the loop thread and
//                must not block that thread.
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

// The normal end of a sequence. A sequence that fails has no SequenceEnd; the stream's status tells
// the reason.
struct SequenceEnd {
  enum class Reason : uint8_t { kStop, kLength };
  Reason reason = Reason::kStop;
  std::string text;          // last part of the text, held back until now
  std::string matched_stop;  // the stop string, if one ended the sequence
  int32_t num_prompt_tokens = 0;
  int32_t num_output_tokens = 0;
  int32_t num_cached_prompt_tokens = 0;  // see TokenCommitted
  std::optional<float> score;            // only with beam search and best_of
};

// New output of one sequence: consecutive tokens, then perhaps the end of the sequence. An update
// with log-probabilities of the prompt holds nothing else.
struct SequenceUpdate {
  int32_t sequence_index = 0;
  // Output position of token_ids[0]; if token_ids is empty, position of the sequence's next token.
  int32_t first_position = 0;
  std::vector<TokenId> token_ids;
  std::string text;
  std::vector<uint32_t> text_ends;       // for each token: end of its bytes in text
  std::vector<OutputLogprobs> logprobs;  // one per token, or empty without logprobs
  std::optional<SequenceEnd> end;
  PromptLogprobs prompt;
};
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;

  // Called when the core has queued the request. Not called for a refused request.
  virtual void OnQueued() {}

  // Returns false, and drops the update, if the stream's unsent output would exceed its bound: the
  // reader is too slow to be served. An update with an `end` or with log-probabilities of the
  // prompt is never refused.
  [[nodiscard]] virtual bool Write(SequenceUpdate update, Instant now) = 0;

  // Ends the stream; no Write follows. The status is OK if every sequence ended normally. The
  // status is sent after all unsent output. ABORTED is the exception: it drops unsent output, and
  // it may follow an earlier call of End.
  virtual void End(absl::Status status) = 0;

  // Returns the start of the present stall: since then, output has waited and no message has been
  // sent. kInfiniteFuture if no output waits.
  virtual Instant stalled_since() const = 0;

  // The client's id of the request; empty if there is none.
  virtual std::string_view request_id() const { return ""; }
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_RESPONSE_STREAM_H_
