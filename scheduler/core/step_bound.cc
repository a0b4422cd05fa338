#include "scheduler/core/step_bound.h"

#include <algorithm>

#include "scheduler/core/core_config.h"

namespace quire {
namespace {

// kAutoInterToken stands for this multiple of the time of a decode step. At 3, a step with prompts
// takes at most about three times as long as a decode step, most of it for prompts.
constexpr double kAutoTimesDecoding = 3;

// The expected time of a step, plus this many mean deviations, must be within an explicit target,
// so that most steps meet the target. TCP uses four deviations for round-trip times (Jacobson
// 1988), because an early timeout costs far more than a late step does here.
constexpr double kDeviations = 2;

}  // namespace

StepBound BoundStep(Instant target,
                    const StepCost& steps,
                    int32_t num_decoding,
                    int32_t max_tokens_per_step) {
  // Every decoding sequence keeps one token of the step, even if it is served after a prompt. If
  // this leaves no token for prompts, prompts still get one token, so that they advance.
  StepBound bound = {.num_tokens = max_tokens_per_step,
                     .num_prompt_tokens = std::max(1, max_tokens_per_step - num_decoding)};
  if (target == kInfiniteFuture || num_decoding == 0) {
    return bound;
  }
  const int64_t num_within =
      target == kAutoInterToken
          ? steps.TokensWithin(kAutoTimesDecoding * steps.LeastMicros(num_decoding), 0)
          : steps.TokensWithin(static_cast<double>(target) / kNanosPerMicro, kDeviations);
  bound.num_tokens = static_cast<int32_t>(std::min<int64_t>(bound.num_tokens, num_within));
  bound.num_prompt_tokens = static_cast<int32_t>(std::min<int64_t>(
      bound.num_prompt_tokens, std::max<int64_t>(num_within - num_decoding, kLeastPromptTokens)));
  return bound;
}

}  // namespace quire
