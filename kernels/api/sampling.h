// Parameters of sampling: a row of logits becomes a token.
//
// Steps, in order: logit bias and banned tokens; repetition, then frequency and presence penalties;
// greedy arg max, or temperature, min-p, top-k, top-p and one draw. Reported log-probabilities are
// those of the model's row, before bias, penalties and temperature, like vLLM's raw_logprobs. Ties
// go to the lowest token id everywhere. top-p keeps the smallest set of likeliest tokens whose
// probability reaches top_p; the set has at least one token.
//
// The draw: Philox4x32-10 with key = seed and counter = (0, i, 0, 0), where i is the index of the
// token in the output. The first of the four resulting words, times 2^-32, is u, uniform in [0, 1).
// The kept tokens' probabilities are added in ascending id order. The sampled token is the first at
// which this running sum exceeds u times the sum over all kept tokens.
//
// The result for a row of logits depends on the row and its SamplingRow alone, bit for bit.
// Thread safety: value types; they own nothing.
// Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox); Holtzman et al.
//         2020 (top-p); Nguyen et al. 2024 (min-p); Keskar et al. 2019 (repetition penalty).
#ifndef QUIRE_KERNELS_API_SAMPLING_H_
#define QUIRE_KERNELS_API_SAMPLING_H_

#include <cstdint>
#include <span>

#include "common/base/ids.h"
#include "common/model/sampling_params.h"

namespace quire {

struct SamplingRow {
  const SamplingParams* params = nullptr;
  std::span<const TokenId> prompt_token_ids;
  // Tokens sampled so far. The token to sample has the index output_token_ids.size() in the output.
  std::span<const TokenId> output_token_ids;

  bool is_below_min_tokens() const {
    return static_cast<int64_t>(output_token_ids.size()) < params->min_tokens;
  }
  // Whether tokens are banned because the output is shorter than min_tokens.
  bool is_banning() const;
  // Whether bias, bans or penalties change the logits.
  bool is_adjusted() const;
  // Returns how many of the row's greatest logits suffice to sample and report the row's token.
  // Ties go to the lowest id. 0: the whole row is needed.
  int32_t num_candidates() const;
};

struct SampledLogprob {
  TokenId token_id = 0;
  float logprob = 0.0F;
};

struct SampleParams {
  int32_t num_rows = 0;
  int32_t vocab_size = 0;
  int64_t row_stride = 0;             // elements between rows of logits
  float* logits = nullptr;            // [num_rows, vocab_size]; overwritten
  const SamplingRow* rows = nullptr;  // [num_rows], on the host
  TokenId* token_ids = nullptr;       // out, [num_rows]
  // Out, [num_rows]: the sampled token's log-probability; unspecified if the row wants none
  // (num_logprobs < 0).
  float* logprobs = nullptr;
  // Out, [num_rows]. False: the row has a NaN or an infinity, or all its tokens are banned. The
  // sampled token is then 0.
  bool* finite = nullptr;
  // Out: the likeliest tokens, best first. Row i has room for max(0, rows[i].params->num_logprobs)
  // elements at top_logprobs + i * top_logprobs_stride.
  SampledLogprob* top_logprobs = nullptr;
  int64_t top_logprobs_stride = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_SAMPLING_H_
