// Log-probabilities as JSON, in the three forms of OpenAI and vLLM. A log-probability below -9999
// becomes -9999, because JSON has no infinity.
//
// Thread safety: free functions, safe from any thread. They call TokenText on the caller's thread.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_LOGPROBS_JSON_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_LOGPROBS_JSON_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/json/json.h"
#include "deploy/gateway/openai/answer.h"
#include "deploy/gateway/openai/character_counter.h"

namespace quire {

// Returns the bytes of one token. They need not be UTF-8.
using TokenText = std::function<std::string(int32_t token_id)>;

// Form of /v1/completions: {tokens, token_logprobs, top_logprobs, text_offset}. In top_logprobs
// each token has a map from texts to log-probabilities, for the token itself and the likeliest
// tokens. In a text, bytes that form no character become U+FFFD. If several tokens have the same
// text, the map has only one of them: the token itself, else the likeliest one (vLLM: the least
// likely). text_offset counts the characters before a token; *characters carries this count from
// event to event.
OrderedJson CompletionLogprobs(const std::vector<ScoredToken>& tokens,
                               const TokenText& token_text,
                               CharacterCounter* characters);

// Form of /v1/chat/completions: {content: [{token, logprob, bytes, top_logprobs}]}.
OrderedJson ChatLogprobs(const std::vector<ScoredToken>& tokens, const TokenText& token_text);

// vLLM's prompt_logprobs: null for the prompt's first token. For each other token, an object with
// the token itself, then the likeliest tokens: {"ID": {logprob, rank, decoded_token}, ...}. The
// scheduler sends no ranks, so the token's own rank is null unless it is one of the likeliest.
OrderedJson PromptLogprobs(const std::vector<ScoredToken>& tokens, const TokenText& token_text);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_LOGPROBS_JSON_H_
