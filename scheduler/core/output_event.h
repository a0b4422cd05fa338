// OutputEvent reports that a token of a sequence was committed, or that the sequence ended. Tokens
// of a sequence come in order of token_index (0, 1, 2, ...). Each sequence of each accepted request
// gets exactly one SequenceFinished, after its last token. For a resumed request, token_index goes
// on after the resumed tokens. A sequence that had ended before the request was resumed reports
// nothing. Beam search reports its sequences when the search ends, the best first.
//
// Thread safety: value types.
#ifndef QUIRE_SCHEDULER_CORE_OUTPUT_EVENT_H_
#define QUIRE_SCHEDULER_CORE_OUTPUT_EVENT_H_

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/step/step_result.h"

namespace quire {

enum class FinishReason : uint8_t {
  kStop,            // a stop token was sampled, or the caller found a stop string
  kLength,          // max_tokens was reached, or the model's context is full
  kAborted,         // cancelled by the client or the operator
  kExpiredQueued,   // the deadline passed before any token was computed
  kExpiredRunning,  // the deadline passed after the request had started
  kUnreachable,     // the deadline could no longer be met; nothing was computed
  kNonFinite,       // logits for the same token were NaN or infinite, twice
  kNoCapacity,      // workers came back with a pool or context that is too small for the request
  kWorkerCrash,     // the request crashed its workers kMaxCrashes times (crash_suspects.h)
};

struct TokenCommitted {
  RequestId request_id;
  int32_t sequence_index = 0;
  int32_t token_index = 0;  // position in the output, from 0
  TokenId token_id = 0;
  float logprob = 0.0F;  // meaningful when the request asked for logprobs
  std::vector<TokenLogprob> top_logprobs;
  // Number of prompt tokens that were not computed when the request first ran here, because their
  // blocks were cached.
  int32_t num_cached_prompt_tokens = 0;
};

// Log-probabilities of the prompt's tokens, if the request asked for them. They come in order of
// position, without gaps or repetitions, and all of them before the first TokenCommitted.
struct PromptScored {
  RequestId request_id;
  PromptLogprobs prompt;
};

struct SequenceFinished {
  RequestId request_id;
  int32_t sequence_index = 0;
  FinishReason reason = FinishReason::kStop;
  int32_t num_output_tokens = 0;
  bool is_last_of_request = false;  // all sequences of the request have ended
  std::optional<float> beam_score;  // with beam search: sum of logprobs, normalized by length
};

using OutputEvent = std::variant<TokenCommitted, PromptScored, SequenceFinished>;

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_OUTPUT_EVENT_H_
