// StepBudget holds what the step being planned may still give out: tokens, and bytes of
// introductions (which make sequences known to the workers). It decides how many tokens a sequence
// gets in its slice.
//
// Prompts get only a part of the tokens, so that they do not delay decoding sequences for long. A
// preempted group that is recomputed in slices gets the spare tokens, which hardly lengthen the
// step (PreemptionCost).
//
// Thread safety: a value type on the state's thread; the state must outlive the budget. Copyable,
//                so that the planner can count a group's blocks before it plans the group.
#ifndef QUIRE_SCHEDULER_CORE_STEP_BUDGET_H_
#define QUIRE_SCHEDULER_CORE_STEP_BUDGET_H_

#include <cstdint>
#include <optional>

#include "scheduler/core/core_state.h"
#include "scheduler/core/introduction_budget.h"
#include "scheduler/core/token_budget.h"

namespace quire {

class StepBudget {
 public:
  // The budget of a whole step. REQUIRES: an epoch is active.
  explicit StepBudget(const CoreState& state);

  int32_t num_tokens_left() const { return tokens_.num_tokens_left(); }
  bool is_spent() const { return tokens_.is_spent(); }
  // Returns true if tokens are left for a sequence that has several tokens to compute.
  bool has_prompt_tokens() const { return !tokens_.is_spent() && !prompt_tokens_.is_spent(); }

  void BoundPromptTokens(int32_t num_tokens) { prompt_tokens_ = TokenBudget(num_tokens); }
  // Lets a group that is recomputed in slices take all tokens of the step. Called for a step of one
  // group, in which a long slice delays no other group.
  void MakeAllSpare() { spare_tokens_ = tokens_; }
  // Takes all tokens that prompts may still get. Returns their number.
  int32_t TakePromptTokens();
  void SetTokens(int32_t num_tokens, int32_t num_prompt_tokens);

  // Returns true if the sequence has a gap (known tokens that are not computed yet) and the step
  // has at least one token for it.
  bool HasTokensFor(const Sequence& sequence) const;
  // Returns true if the workers know the sequence, or it may be introduced to them in this step.
  bool MayBeKnown(const SequenceGroup& group, const Sequence& sequence) const;
  // As MayBeKnown, for the first live sequence of a group that is to start, or to return from host
  // memory. Also calls OnIntroductionRefused if the answer is false.
  bool MayIntroduceFirst(const SequenceGroup& group);
  // Called after MayBeKnown returned false for a sequence of the group.
  void OnIntroductionRefused(const SequenceGroup& group) { introductions_.OnRefused(group); }
  // See IntroductionBudget::owed_next.
  std::optional<ScheduleRank> owed_introduction() const { return introductions_.owed_next(); }

  // Takes the tokens of the sequence's next slice and, if the workers do not know the sequence, the
  // bytes of an introduction. Returns the number of tokens: 0 if tokens or bytes do not suffice.
  int32_t TakeTokens(const SequenceGroup& group, const Sequence& sequence);

 private:
  // Whether the group is recomputed in slices, with the spare tokens of steps. False for a group of
  // several sequences: with slices, a later sequence would begin before the first has computed the
  // blocks that both could share.
  bool IsRecomputedInSlices(const SequenceGroup& group) const;
  // Tokens that TakeTokens would take if tokens_ and prompt_tokens_ were unlimited.
  int32_t NumTokensWanted(const SequenceGroup& group, const Sequence& sequence) const;
  int64_t IntroductionBytesOf(const SequenceGroup& group, const Sequence& sequence) const;

  const CoreState* state_;
  TokenBudget tokens_;
  TokenBudget prompt_tokens_;  // part of tokens_, for sequences with several tokens to compute
  TokenBudget spare_tokens_;   // part of prompt_tokens_ that hardly lengthens the step
  IntroductionBudget introductions_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_BUDGET_H_
