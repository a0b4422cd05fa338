// SamplingParams tells a worker how to turn a row of logits into a token. All tokens of a request
// have the same parameters. Order of application, as in vLLM and Hugging Face transformers: logit
// bias and minimum-length ban, penalties, temperature, min-p, top-k, top-p, draw.
//
// Thread safety: a value type.
#ifndef QUIRE_COMMON_MODEL_SAMPLING_PARAMS_H_
#define QUIRE_COMMON_MODEL_SAMPLING_PARAMS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace quire {

struct SamplingParams {
  float temperature = 1.0F;         // 0, like any value below 1e-5, means greedy
  int32_t top_k = 0;                // 0 means off
  float top_p = 1.0F;               // (0, 1]; 1 means off
  float min_p = 0.0F;               // [0, 1]; 0 means off
  float repetition_penalty = 1.0F;  // applies to tokens of prompt and output; 1 means off
  float presence_penalty = 0.0F;    // applies to tokens of the output; [-2, 2]
  float frequency_penalty = 0.0F;   // applies to tokens of the output; [-2, 2]
  std::vector<std::pair<TokenId, float>> logit_bias;  // distinct ids, at most kMaxLogitBias
  // Log-probabilities to return. -1: none; 0: of the sampled token; k: also of the k likeliest.
  int32_t num_logprobs = -1;
  int32_t num_prompt_logprobs = -1;  // the same for each token of the prompt except the first

  // Least number of output tokens of a sequence.
  int32_t min_tokens = 0;
  // Token ids that would end a sequence. The worker does not sample these ids while the sequence
  // has fewer than min_tokens output tokens.
  std::vector<TokenId> banned_before_min_tokens;

  uint64_t seed = 0;  // key of the counter-based random generator

  bool is_greedy() const { return temperature < 1e-5F; }
  bool has_penalties() const {
    return repetition_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F;
  }

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

inline constexpr int32_t kMaxLogprobs = 20;
inline constexpr int32_t kMaxLogitBias = 300;
inline constexpr float kMaxTemperature = 100.0F;

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_SAMPLING_PARAMS_H_
