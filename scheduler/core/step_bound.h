// StepBound is how many tokens a step may have while sequences decode, and how many of them prompts
// may have, so that most steps take CoreConfig::target_inter_token at the most. Prompts always get
// kLeastPromptTokens: each ends in time, whatever the target is.
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
  int32_t num_tokens = 0;         // of those that decode and of prompts
  int32_t num_prompt_tokens = 0;  // for whoever lacks more than one token
};

// target: as in CoreConfig. Nobody waits for a step in which nobody decodes.
StepBound BoundStep(Instant target,
                    const StepCost& steps,
                    int32_t num_decoding,
                    int32_t max_tokens_per_step);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_BOUND_H_
