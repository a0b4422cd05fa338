// The part of StepPlanner that lets short prompts pass a long one. See overtaking.h.
#include <algorithm>

#include "scheduler/core/deadline_admission.h"
#include "scheduler/core/overtaking.h"
#include "scheduler/core/step_planner.h"

namespace quire {

bool StepPlanner::IsToBePassed(const SequenceGroup& group) const {
  if (!are_prompts_bounded_ || budgets_.prompts.is_spent() || !MayBePassed(state_, group)) {
    return false;  // a fast exit, most often because only decoding sequences were seen so far
  }
  Budgets budgets = budgets_;
  for (const auto& [turn, sequence] : line_) {
    const int32_t num_tokens = TakeTokens(group, *sequence, budgets);
    // A sequence without blocks (kBeginning) does not count as cut: it will find blocks that its
    // running group has computed.
    if (turn != Turn::kBeginning && num_tokens < sequence->gap() &&
        (budgets.prompts.is_spent() || budgets.all.is_spent())) {
      return true;
    }
  }
  return false;
}

// Sets aside the tokens that prompts may still take in this step, for PlanCut. Groups behind the
// cut group share the tokens that are not set aside, and can only decode.
void StepPlanner::SetAside(SequenceGroup& cut, int32_t num_blocks) {
  cut_ = &cut;
  is_any_cut_ = true;
  num_reserved_ += num_blocks;
  num_set_aside_ = std::min(budgets_.all.num_tokens_left(), budgets_.prompts.num_tokens_left());
  budgets_.all.Take(num_set_aside_);
  budgets_.prompts = TokenBudget(0);
}

void StepPlanner::PlanCut() {
  if (cut_ == nullptr) {
    return;
  }
  const int32_t num_left = budgets_.all.num_tokens_left();
  const int32_t num_passing = num_set_aside_ / kPassingDivisor;
  budgets_.all = TokenBudget(num_passing);
  budgets_.prompts = TokenBudget(num_passing);
  PlanPassing();
  const int32_t num_for_cut = num_set_aside_ - num_passing + budgets_.all.num_tokens_left();
  budgets_.all = TokenBudget(num_left + num_for_cut);
  budgets_.prompts = TokenBudget(num_for_cut);
  LineUp(*cut_);
  PlanLine(*cut_);
}

void StepPlanner::PlanPassing() {
  for (SequenceGroup* group : state_.running) {
    if (group->has_overtaken && !budgets_.all.is_spent()) {
      LineUp(*group);
      std::erase_if(line_,
                    [](const auto& turn) { return turn.second->num_scheduled_tokens() > 0; });
      if (NumBlocksNeeded(*group) <= epoch_.kv_cache.num_free_blocks() - num_reserved_) {
        PlanLine(*group);
      }
    }
  }
  if (!may_admit_ || has_made_room_ || budgets_.all.is_spent()) {
    return;
  }
  CountKeptBlocks();
  // Decoding sequences may take at most half of a step. Otherwise the passed group would wait not
  // only while short prompts are computed, but also while their sequences decode.
  const int32_t num_in_use = epoch_.handles.num_in_use();
  const int32_t num_at_most = num_step_tokens_ / kPassingDivisor - num_in_use;
  const Room room = {.num_free_handles = std::min(epoch_.handles.num_free(), num_at_most),
                     .num_free_blocks = NumBlocksToGive(),
                     .num_watermark_blocks = NumWatermarkBlocks()};
  for (SequenceGroup* group : ShortPromptsBehind(state_, *cut_, room)) {
    if (!budgets_.all.is_spent() && CanStillMeetDeadline(state_, *group) &&
        MayIntroduceFirst(*group)) {
      state_.StartAhead(*group);
      group->has_overtaken = true;
      LineUp(*group);
      PlanLine(*group);
    }
  }
}

}  // namespace quire
