// Log-probabilities as JSON, in the three forms of OpenAI and vLLM. A log-probability below -9999
// becomes -9999, because JSON has no infinity.
//
// Thread safety: free functions; TokenText is called on the caller's thread.
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

// Form of /v1/completions: {tokens, token_logprobs, top_logprobs, text_offset}. top_logprobs maps
// the token and the likeliest tokens to log-probabilities. U+FFFD stands for bytes that form no
// character. If two tokens have one text, the map has the token itself, else the likelier (vLLM:
// the less likely). text_offset counts the characters of the tokens before; *characters has counted
// those of earlier events.
OrderedJson CompletionLogprobs(const std::vector<ScoredToken>& tokens,
                               const TokenText& token_text,
                               CharacterCounter* characters);

// Form of /v1/chat/completions: {content: [{token, logprob, bytes, top_logprobs}]}.
OrderedJson ChatLogprobs(const std::vector<ScoredToken>& tokens, const TokenText& token_text);

// vLLM's prompt_logprobs: null for the first token, else {"ID": {logprob, rank, decoded_token}},
// the prompt's own token first. Its rank is null unless it is one of the likeliest tokens, because
// the scheduler does not send it.
OrderedJson PromptLogprobs(const std::vector<ScoredToken>& tokens, const TokenText& token_text);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_LOGPROBS_JSON_H_
