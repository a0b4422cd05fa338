// ResponseStream is where the output of one request goes: the loop writes, the other end (a gRPC
// call, a test) reads at its own pace.
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

// How a sequence ended well. A sequence that did not ends with the stream's status.
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
  std::vector<uint32_t> text_ends;       // one per token: where what it brought ends in text
  std::vector<OutputLogprobs> logprobs;  // one per token when asked for, else empty
  std::optional<SequenceEnd> end;
};

class ResponseStream {
 public:
  virtual ~ResponseStream() = default;

  // Its request is in the queue; one that is refused never hears this.
  virtual void OnQueued() {}

  // False when what waits to be sent is past its bound: the reader is too slow to be served.
  [[nodiscard]] virtual bool Write(SequenceUpdate update, Instant now) = 0;

  // No Write follows. OK: every sequence ended well. What waits to be sent is sent before; but
  // with ABORTED, which may also come after another End, it is dropped.
  virtual void End(absl::Status status) = 0;

  // Since when something waits to be sent and nothing gets through; kInfiniteFuture when it flows.
  virtual Instant stalled_since() const = 0;

  // The request as its client knows it; empty where nobody does.
  virtual std::string_view request_id() const { return ""; }
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_RESPONSE_STREAM_H_
