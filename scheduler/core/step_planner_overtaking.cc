// The part of StepPlanner that lets short prompts pass a long one. See overtaking.h.
#include <algorithm>

#include "scheduler/core/deadline_admission.h"
#include "scheduler/core/overtaking.h"
#include "scheduler/core/step_planner.h"

namespace quire {

bool StepPlanner::IsToBePassed(const SequenceGroup& group) const {
  if (!are_prompts_bounded_ || !budget_.has_prompt_tokens() || !MayBePassed(state_, group)) {
    return false;  // a fast exit, most often because only decoding sequences were seen so far
  }
  StepBudget budget = budget_;
  for (const auto& [turn, sequence] : line_) {
    const int32_t num_tokens = budget.TakeTokens(group, *sequence);
    // A sequence without blocks (kBeginning) does not count as cut: it will find blocks that its
    // running group has computed.
    if (turn != Turn::kBeginning && num_tokens < sequence->gap() && !budget.has_prompt_tokens()) {
      return true;
    }
  }
  return false;
}

// Sets aside, for PlanOvertakenGroup, all tokens that prompts may still take in this step. So
// running groups behind the overtaken group can only decode.
void StepPlanner::SetAside(SequenceGroup& overtaken, int32_t num_blocks) {
  overtaken_group_ = &overtaken;
  is_any_cut_ = true;
  num_reserved_ += num_blocks;
  num_set_aside_ = budget_.TakePromptTokens();
}

void StepPlanner::PlanOvertakenGroup() {
  if (overtaken_group_ == nullptr) {
    return;
  }
  const int32_t num_left = budget_.num_tokens_left();
  const int32_t num_passing = num_set_aside_ / kPassingDivisor;
  budget_.SetTokens(num_passing, /*num_prompt_tokens=*/num_passing);
  PlanPassing();
  const int32_t num_for_overtaken = num_set_aside_ - num_passing + budget_.num_tokens_left();
  budget_.SetTokens(num_left + num_for_overtaken, /*num_prompt_tokens=*/num_for_overtaken);
  LineUp(*overtaken_group_);
  PlanLine(*overtaken_group_);
}

void StepPlanner::PlanPassing() {
  for (SequenceGroup* group : state_.running) {
    if (group->has_overtaken && !budget_.is_spent()) {
      LineUp(*group);
      std::erase_if(line_,
                    [](const auto& turn) { return turn.second->num_scheduled_tokens() > 0; });
      if (NumBlocksNeeded(*group) <= epoch_.kv_cache.num_free_blocks() - num_reserved_) {
        PlanLine(*group);
      }
    }
  }
  if (!may_admit_ || has_made_room_ || budget_.is_spent()) {
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
  for (SequenceGroup* group : ShortPromptsBehind(state_, *overtaken_group_, room)) {
    if (!budget_.is_spent() && CanStillMeetDeadline(state_, *group) &&
        budget_.MayIntroduceFirst(*group)) {
      state_.StartAhead(*group);
      group->has_overtaken = true;
      LineUp(*group);
      PlanLine(*group);
    }
  }
}

}  // namespace quire
