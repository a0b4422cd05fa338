// Request is what a client asked for, after validation and tokenization.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_CORE_REQUEST_H_
#define QUIRE_SCHEDULER_CORE_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/model/sampling_params.h"
#include "scheduler/core/beam_search.h"

namespace quire {

// Options of a beam search, which follows num_beams continuations at a time. When the search ends,
// the best num_sequences hypotheses are the answer. The request's SamplingParams must be greedy,
// with num_candidates() logprobs (BeamSearchParams).
struct BeamOptions {
  int32_t num_beams = 1;                                 // >= num_sequences
  double length_penalty = 1.0;                           // see BeamSearchParams
  EarlyStopping early_stopping = EarlyStopping::kFalse;  // see BeamSearchParams
};

// A sequence of a request that ran before, perhaps in another process. Random draws depend only on
// seed and position, so the sequence goes on as if it had not been interrupted.
struct ResumedSequence {
  std::vector<TokenId> token_ids;  // output so far; without a token that ends the sequence
  bool has_ended = false;          // true: nothing is generated or reported for the sequence
};

struct Request {
  RequestId id;                           // strictly increasing in order of arrival
  std::vector<TokenId> prompt_token_ids;  // at least one
  SamplingParams sampling;                // min_tokens and banned tokens included
  int32_t num_sequences = 1;              // n: independent outputs of one prompt
  std::optional<BeamOptions> beam_search;
  std::vector<ResumedSequence> resumed;  // one for each sequence, or empty (IsResumable)
  int32_t max_tokens = 16;               // upper bound on output tokens, >= 1 (CutToContext)
  std::vector<TokenId> stop_token_ids;   // each ends a sequence if min_tokens tokens precede it
  int32_t priority = 0;                  // under kPriority: smaller numbers are served earlier
  std::string tenant;                    // under kFairShare: tenants share the service equally
  std::string cache_salt;                // only requests of the same salt share blocks
  bool bypasses_prefix_cache = false;    // true: shares no block with another request
  // Number of prompt tokens whose log-probabilities the client already has.
  int32_t num_known_prompt_logprobs = 0;
  bool is_resumed = false;   // was accepted before, perhaps by another process
  bool pins_prefix = false;  // internal request without output (pinned_prefixes.h)
  Instant arrival = 0;
  Instant deadline = kInfiniteFuture;

  // Number of sequences that run side by side.
  int32_t group_size() const { return beam_search ? beam_search->num_beams : num_sequences; }
  // Returns the number of sequences of the group that had not ended before the request was resumed.
  int32_t num_live_sequences() const;
  // Tokens of a sequence at its full length, prompt included.
  int64_t num_tokens_at_most() const { return int64_t{num_prompt_tokens()} + max_tokens; }
  int32_t num_prompt_tokens() const { return static_cast<int32_t>(prompt_token_ids.size()); }
  // Number of prompt tokens whose log-probabilities are wanted.
  int32_t num_prompt_logprobs() const {
    return sampling.num_prompt_logprobs < 0 ? 0 : num_prompt_tokens() - 1;
  }
  // Tokens of the prompt and of resumed output.
  int64_t num_known_tokens() const;
};

// Cuts max_tokens of a new request to the part of the context that the prompt leaves free, but not
// below 1. A resumed request keeps its max_tokens, because the client received that number with the
// first token.
void CutToContext(int32_t max_model_len, Request* request);

// Returns true if request.resumed is empty, or if all of these hold: request.resumed has an entry
// for each sequence; request.is_resumed is set; at least one sequence has not ended; each sequence
// that has not ended has fewer than max_tokens tokens; the request does no beam search.
bool IsResumable(const Request& request);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_REQUEST_H_
