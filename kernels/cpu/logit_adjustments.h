// AdjustLogits changes single logits before the distribution is formed: logit bias, tokens banned
// before min_tokens, and the repetition, frequency and presence penalties.
//
// Thread safety: any thread; writes only `logits` and `counts`.
// Cost:          O(bias + prompt + output), plus clearing `counts` when penalties are on.
// Source:        repetition penalty, Keskar et al. 2019, section 4.1 (but a negative logit is
//                multiplied by the penalty, as in Hugging Face); frequency and presence penalties
//                as in OpenAI's API.
#ifndef QUIRE_KERNELS_CPU_LOGIT_ADJUSTMENTS_H_
#define QUIRE_KERNELS_CPU_LOGIT_ADJUSTMENTS_H_

#include <cstdint>
#include <span>

#include "kernels/api/sampling.h"

namespace quire {

// The logit of a banned token becomes -infinity. `counts` is scratch, with one element per logit.
void AdjustLogits(const SamplingRow& row, std::span<float> logits, std::span<uint32_t> counts);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_LOGIT_ADJUSTMENTS_H_
