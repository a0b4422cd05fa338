#include "scheduler/core/step_budget.h"

#include <algorithm>

#include "common/base/math.h"
#include "common/step/step_bytes.h"
#include "scheduler/core/preemption_cost.h"

namespace quire {

StepBudget::StepBudget(const CoreState& state)
    : state_(&state),
      tokens_(state.epoch->limits.max_tokens_per_step),
      prompt_tokens_(state.epoch->limits.max_tokens_per_step),
      spare_tokens_(static_cast<int32_t>(
          state.epoch->preemption_cost.SpareTokens(state.epoch->handles.num_in_use()))),
      introductions_(state.config.introduction_budget_bytes, state.epoch->owed_introduction) {}

int32_t StepBudget::TakePromptTokens() {
  const int32_t num_taken = tokens_.Take(prompt_tokens_.num_tokens_left());
  prompt_tokens_ = TokenBudget(0);
  return num_taken;
}

void StepBudget::SetTokens(int32_t num_tokens, int32_t num_prompt_tokens) {
  tokens_ = TokenBudget(num_tokens);
  prompt_tokens_ = TokenBudget(num_prompt_tokens);
}

bool StepBudget::HasTokensFor(const Sequence& sequence) const {
  return !tokens_.is_spent() && sequence.gap() > 0 &&
         (sequence.gap() == 1 || !prompt_tokens_.is_spent());
}

bool StepBudget::MayBeKnown(const SequenceGroup& group, const Sequence& sequence) const {
  return sequence.is_introduced() ||
         introductions_.Allows(group, IntroductionBytesOf(group, sequence));
}

bool StepBudget::MayIntroduceFirst(const SequenceGroup& group) {
  const auto first = std::find_if(group.sequences().begin(),
                                  group.sequences().end(),
                                  [](const Sequence& each) { return !each.is_finished(); });
  const bool may = MayBeKnown(group, *first);
  if (!may) {
    OnIntroductionRefused(group);
  }
  return may;
}

int32_t StepBudget::TakeTokens(const SequenceGroup& group, const Sequence& sequence) {
  if (!HasTokensFor(sequence)) {
    return 0;
  }
  if (!sequence.is_introduced()) {
    const int64_t num_bytes = IntroductionBytesOf(group, sequence);
    if (!introductions_.Allows(group, num_bytes)) {
      return 0;
    }
    introductions_.Take(group, num_bytes);
  }
  if (sequence.gap() == 1) {
    return tokens_.Take(1);  // the common case: the sequence decodes
  }
  const int32_t num_wanted = NumTokensWanted(group, sequence);
  const int32_t num_tokens = tokens_.Take(std::min(num_wanted, prompt_tokens_.num_tokens_left()));
  prompt_tokens_.Take(num_tokens);
  spare_tokens_.Take(num_tokens);
  return num_tokens;
}

bool StepBudget::IsRecomputedInSlices(const SequenceGroup& group) const {
  const Sequence& sequence = group.sequences().front();
  return state_->config.preemption_mode == PreemptionMode::kAuto && group.sequences().size() == 1 &&
         sequence.is_recomputing();
}

int32_t StepBudget::NumTokensWanted(const SequenceGroup& group, const Sequence& sequence) const {
  if (!IsRecomputedInSlices(group)) {
    return sequence.gap();
  }
  const int32_t least = DivCeil(sequence.num_tokens_computed_ever(), kMaxRecomputeSteps);
  return std::min(sequence.gap(), std::max(least, spare_tokens_.num_tokens_left()));
}

int64_t StepBudget::IntroductionBytesOf(const SequenceGroup& group,
                                        const Sequence& sequence) const {
  const int32_t num_tokens = sequence.num_tokens();
  return IntroductionBytes(
      num_tokens, state_->epoch->kv_cache.NumBlocksFor(num_tokens), group.request().sampling);
}

}  // namespace quire
