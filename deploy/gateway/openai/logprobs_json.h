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

namespace quire {

// Returns the bytes of one token. They need not be UTF-8.
using TokenText = std::function<std::string(int32_t token_id)>;

// Form of /v1/completions: {tokens, token_logprobs, top_logprobs, text_offset}. top_logprobs maps
// the token and the likeliest tokens to log-probabilities; of two tokens with one text it has the
// likelier. text_offset counts the characters of the tokens before; *num_characters is the first
// offset, and becomes that of the next token.
OrderedJson CompletionLogprobs(const std::vector<ScoredToken>& tokens,
                               const TokenText& token_text,
                               int64_t* num_characters);

// Form of /v1/chat/completions: {content: [{token, logprob, bytes, top_logprobs}]}.
OrderedJson ChatLogprobs(const std::vector<ScoredToken>& tokens, const TokenText& token_text);

// vLLM's prompt_logprobs: null for the first token, else {"ID": {logprob, rank, decoded_token}},
// the prompt's own token first. Its rank is null unless it is one of the likeliest tokens, because
// the scheduler does not send it.
OrderedJson PromptLogprobs(const std::vector<ScoredToken>& tokens, const TokenText& token_text);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_LOGPROBS_JSON_H_
