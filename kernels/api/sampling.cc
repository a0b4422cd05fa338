#include "kernels/api/sampling.h"

#include <algorithm>

namespace quire {

bool SamplingRow::is_banning() const {
  return !params->banned_before_min_tokens.empty() && is_below_min_tokens();
}

bool SamplingRow::is_adjusted() const {
  return !params->logit_bias.empty() || is_banning() || params->has_penalties();
}

int32_t SamplingRow::num_candidates() const {
  if (params->num_logprobs >= 0 || is_adjusted()) {
    return 0;
  }
  return params->is_greedy() ? 1 : std::max(params->top_k, 0);
}

}  // namespace quire
