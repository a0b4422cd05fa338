// While sequences decode, StepBound bounds the tokens of a step, and the prompt tokens among them,
// so that most steps take at most CoreConfig::target_inter_token. Prompts always get at least
// min(kLeastPromptTokens, tokens that decoding leaves), and at least one token. So every prompt is
// computed in the end.
//
// Thread safety: a free function, safe from any thread.
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

// Returns the bounds of a step while num_decoding sequences decode. target: as
// CoreConfig::target_inter_token. The target has no effect if num_decoding is 0, because then no
// stream waits.
StepBound BoundStep(Instant target,
                    const StepCost& steps,
                    int32_t num_decoding,
                    int32_t max_tokens_per_step);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_BOUND_H_
