// PromptLogprobs holds the log-probabilities of consecutive tokens of a prompt, each given all
// tokens before it. The first token of a prompt has none. The arrays are flat, because nested
// arrays would take an allocation for each token.
//
// Thread safety: a value type.
// Memory:        4 bytes per token and 8 per likeliest token.
#ifndef QUIRE_COMMON_STEP_PROMPT_LOGPROBS_H_
#define QUIRE_COMMON_STEP_PROMPT_LOGPROBS_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace quire {

struct TokenLogprob {
  TokenId token_id = 0;
  float logprob = 0.0F;  // natural logarithm, before logit bias, penalties and temperature

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct PromptLogprobs {
  int32_t first_position = 1;     // position of the first token in the prompt, >= 1
  int32_t num_top = 0;            // number of likeliest tokens at each position
  std::vector<float> logprobs;    // one per token; NaN: its row of logits was not finite
  std::vector<TokenLogprob> top;  // num_top per token, likeliest first

  int32_t num_tokens() const { return static_cast<int32_t>(logprobs.size()); }

  // Removes the first num_tokens tokens (all, if there are fewer), and returns them.
  PromptLogprobs TakeFront(int32_t num_tokens);

  friend bool operator==(const PromptLogprobs&, const PromptLogprobs&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_PROMPT_LOGPROBS_H_
