// While sequences decode, StepBound bounds two numbers of a step: all its tokens, and the prompt
// tokens among them. Most steps then take at most CoreConfig::target_inter_token. But
// prompts always get at least kLeastPromptTokens, or the tokens that decoding leaves of the step if
// these are fewer, and never less than one token. So every prompt is computed in the end.
//
// Thread safety: a free function of its arguments.
// Cost:          O(buckets of StepCost).
#ifndef QUIRE_SCHEDULER_CORE_STEP_BOUND_H_
#define QUIRE_SCHEDULER_CORE_STEP_BOUND_H_

#include <cstdint>

#include "common/base/clock.h"
#include "scheduler/core/step_cost.h"

namespace quire {

inline constexpr int32_t kLeastPromptTokens = 16;

struct StepBound {
  int32_t num_tokens = 0;         // bounds tokens of decoding sequences and of prompts together
  int32_t num_prompt_tokens = 0;  // bounds tokens of sequences with several tokens to compute
};

// target: as CoreConfig::target_inter_token. The target has no effect if num_decoding is 0, because
// then no stream waits.
StepBound BoundStep(Instant target,
                    const StepCost& steps,
                    int32_t num_decoding,
                    int32_t max_tokens_per_step);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_BOUND_H_
