#include "scheduler/core/step_planner.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/step/step_bytes.h"
#include "scheduler/core/deadline_admission.h"
#include "scheduler/core/next_blocks.h"
#include "scheduler/core/preemption.h"
#include "scheduler/core/prefix_sharing.h"
#include "scheduler/core/step_bound.h"

namespace quire {

StepPlanner::StepPlanner(CoreState& state)
    : state_(state),
      epoch_(*state.epoch),
      budget_(state),
      num_step_tokens_(state.epoch->limits.max_tokens_per_step) {
  QUIRE_CHECK(!state.step.is_active);
  plan_.slices.reserve(static_cast<size_t>(epoch_.handles.num_in_use()));
}

std::optional<StepPlan> StepPlanner::Plan() {
  SequenceGroup* suspect = state_.NextSuspect();
  while (suspect != nullptr && !PlanAlone(*suspect)) {
    suspect = state_.NextSuspect();
  }
  if (suspect == nullptr) {
    DropUnreachable();
    PreemptForNext();
    PlanRunning();
    PlanOvertakenGroup();
    PlanOthers();
  }
  return Finish();
}

bool StepPlanner::PlanAlone(SequenceGroup& suspect) {
  epoch_.had_suspect = true;
  budget_.MakeAllSpare();
  are_prompts_bounded_ = true;  // skips BoundPrompts, since no other stream is in the step
  if (!suspect.is_running()) {
    return StartAlone(suspect);
  }
  LineUp(suspect);
  // The suspect may lack blocks. Its sequences grow at different times: one may still compute its
  // prompt, or recompute its output, while others generate tokens and take blocks.
  const int32_t num_needed = NumBlocksNeeded(suspect);
  const KvCacheManager& kv_cache = epoch_.kv_cache;
  for (size_t i = state_.running.size(); i > 0; --i) {
    SequenceGroup& other = *state_.running[i - 1];
    const int32_t num_blocks = kv_cache.num_free_blocks() + kv_cache.num_leaving_blocks();
    if (&other != &suspect && num_blocks < num_needed) {
      Preempt(state_, other);
    }
  }
  if (kv_cache.num_free_blocks() >= num_needed) {
    PlanLine(suspect);
  }
  return true;
}

bool StepPlanner::StartAlone(SequenceGroup& suspect) {
  while (!state_.running.empty() && !WillHaveRoom(suspect)) {
    Preempt(state_, *state_.running.back());
  }
  // The other groups wait in this step, so RoomNow keeps no blocks for them.
  const AllocStatus status = AdmitInto(RoomNow(), suspect);
  if (status == AllocStatus::kNever) {
    state_.FinishGroup(suspect, FinishReason::kNoCapacity);
  } else if (status == AllocStatus::kOk) {
    state_.StartAhead(suspect);
    LineUp(suspect);
    PlanLine(suspect);
  }
  return status != AllocStatus::kNever;
}

void StepPlanner::DropUnreachable() {
  while (!state_.waiting.empty() && !CanStillMeetDeadline(state_, state_.waiting.front())) {
    state_.completion.OnTurn(/*is_in_time=*/false);
    state_.FinishGroup(state_.waiting.front(), FinishReason::kUnreachable);
  }
}

void StepPlanner::PreemptForNext() {
  SequenceGroup* next = state_.Next();
  while (next != nullptr && next->has_rank() && !state_.running.empty() &&
         IsAhead(*next, *state_.running.back()) && !WillHaveRoom(*next)) {
    Preempt(state_, *state_.running.back());
    has_made_room_ = true;
  }
}

// Under kAuto the cheapest group is preempted, not the newest, so a waiting group may be older than
// running groups. If it preempted these newer groups in turn, the saving would be lost. So only
// rank values are compared, not arrivals. A group that overtook always yields: overtaking must
// never cost the group that was overtaken.
bool StepPlanner::IsAhead(const SequenceGroup& waiting, const SequenceGroup& running) const {
  return state_.config.preemption_mode == PreemptionMode::kAuto && !running.has_overtaken
             ? waiting.rank().value < running.rank().value
             : waiting.rank() < running.rank();
}

bool StepPlanner::WillHaveRoom(SequenceGroup& group) const {
  const int32_t num_handles = epoch_.handles.num_free() + epoch_.handles.num_to_release();
  const int32_t num_blocks =
      epoch_.kv_cache.num_free_blocks() + epoch_.kv_cache.num_leaving_blocks();
  if (group.is_swapped()) {
    return group.num_live_sequences() <= num_handles &&
           state_.NumBlocksToResume(group) <= num_blocks - NumWatermarkBlocks();
  }
  const Room room = {.num_free_handles = num_handles,
                     .num_free_blocks = num_blocks,
                     .num_watermark_blocks = NumWatermarkBlocks()};
  return AdmitInto(room, group) != AllocStatus::kLater;
}

void StepPlanner::PlanRunning() {
  // The loop goes by index, because MakeRoom may remove later groups from the list.
  for (size_t i = 0; i < state_.running.size() && !budget_.is_spent(); ++i) {
    SequenceGroup& group = *state_.running[i];
    LineUp(group);
    const int32_t num_needed = NumBlocksNeeded(group);
    const RoomOutcome outcome = num_needed == 0
                                    ? RoomOutcome::kHadRoom
                                    : MakeRoom(state_, group, num_needed + num_reserved_);
    may_admit_ = may_admit_ && outcome == RoomOutcome::kHadRoom;
    if (outcome == RoomOutcome::kNoRoom) {
      num_reserved_ += num_needed;  // later groups must leave these blocks free
    } else if (IsToBePassed(group)) {
      SetAside(group, num_needed);
    } else {
      PlanLine(group);
    }
  }
}

void StepPlanner::PlanOthers() {
  CountKeptBlocks();
  bool has_room = may_admit_;
  while (has_room && !budget_.is_spent()) {
    // The group that PreemptForNext made room for must not be dropped.
    if (!has_made_room_) {
      DropUnreachable();
    }
    SequenceGroup* next = state_.Next();
    if (next == nullptr || !budget_.MayIntroduceFirst(*next)) {
      return;
    }
    has_room = next->is_swapped() ? ResumeSwapped(*next)
                                  : budget_.has_prompt_tokens() && StartWaiting(*next);
    has_room = has_room && !has_made_room_;
  }
}

bool StepPlanner::ResumeSwapped(SequenceGroup& group) {
  const int32_t num_available = NumBlocksToGive() - NumWatermarkBlocks();
  if (group.num_live_sequences() > epoch_.handles.num_free() ||
      state_.NumBlocksToResume(group) > num_available) {
    return false;
  }
  QUIRE_CHECK(state_.SwapIn(group));
  arriving_ = &group;
  LineUp(group);
  PlanFirstLine(group);
  return true;
}

bool StepPlanner::StartWaiting(SequenceGroup& first) {
  const AllocStatus status = AdmitInto(RoomNow(), first);
  if (status == AllocStatus::kNever) {
    state_.FinishGroup(first, FinishReason::kNoCapacity);
  } else if (status == AllocStatus::kOk) {
    SequenceGroup& started = state_.StartFirstWaiting();
    LineUp(started);
    PlanFirstLine(started);
  }
  return status != AllocStatus::kLater;
}

bool StepPlanner::BeginTable(SequenceGroup& group, Sequence& sequence) {
  BeginWithSharedBlocks(state_, group, sequence);
  // After NumBlocksNeeded counted blocks, an earlier sequence may have taken free cached blocks
  // that this sequence would have shared. Or it may have left this sequence more tokens than
  // expected. If too few blocks are left, this sequence waits for the next step.
  StepBudget budget = budget_;  // a copy, because the blocks are only counted here
  const KvCacheManager& kv_cache = epoch_.kv_cache;
  const int32_t num_tokens = budget.TakeTokens(group, sequence);
  const int32_t num_blocks = kv_cache.NumBlocksToAppend(sequence.table, num_tokens);
  if (num_blocks > kv_cache.num_free_blocks()) {
    return false;
  }
  MoveToOwnPage(sequence);
  // A tail is the partly filled last block of a pinned prefix. With a tail the slice begins later,
  // so if the token budget cuts the slice, it also ends later and may need more blocks. The tail is
  // used only if no more blocks are needed.
  const PinnedTail tail = FindPinnedTail(state_, group, sequence);
  const int32_t num_computed =
      tail.num_tokens + std::min(num_tokens, sequence.gap() - tail.num_tokens);
  if (tail.num_tokens > 0 &&
      kv_cache.NumBlocksToAppend(sequence.table, num_computed) <= num_blocks) {
    BeginWithTail(state_, tail, sequence);
  }
  group.NoteCached(sequence.num_computed_tokens());
  return true;
}

void StepPlanner::MoveToOwnPage(Sequence& sequence) {
  const int32_t num_moved = epoch_.kv_cache.NumBlocksToMove(sequence.table);
  // Upper bound on the blocks that a step takes: those that its tokens fill, and one more for each
  // sequence, whose last block may be filled in part.
  const int32_t num_at_most =
      epoch_.kv_cache.NumBlocksFor(epoch_.limits.max_tokens_per_step) + epoch_.limits.max_sequences;
  const auto num_copies = static_cast<int64_t>(state_.step.copies.size()) + num_moved;
  if (num_moved == 0 || num_copies > kMaxPageCopies ||
      NumBlocksToGive() - NumWatermarkBlocks() < num_moved + num_at_most) {
    return;
  }
  std::vector<CopiedBlock> copies;
  epoch_.kv_cache.MoveToOwnPage(sequence.table, copies);
  for (const CopiedBlock& copy : copies) {
    state_.step.copies.push_back({.src = copy.src, .dst = copy.dst});
  }
  state_.counters.num_blocks_copied += num_moved;
}

void StepPlanner::Introduce(const SequenceGroup& group, Sequence& sequence) {
  // Copies shared blocks at the end of the table now, because the table's entries must not change
  // once the worker knows the table.
  MoveToOwnPage(sequence);
  if (const auto copy = epoch_.kv_cache.MakeTailExclusive(sequence.table)) {
    state_.step.copies.push_back({.src = copy->src, .dst = copy->dst});
    ++state_.counters.num_blocks_copied;
  }
  sequence.BecomeIntroduced();
  sequence.scores_prompt = group.ScoresPrompt(sequence);
  SamplingParams sampling = group.request().sampling;
  if (!sequence.scores_prompt) {
    sampling.num_prompt_logprobs = -1;
  }
  const std::span<const BlockId> block_ids = sequence.table.block_ids();
  plan_.introductions.push_back({.handle = sequence.handle(),
                                 .token_ids = group.TokenIdsOf(sequence),
                                 .num_prompt_tokens = sequence.num_prompt_tokens(),
                                 .num_computed_tokens = sequence.num_computed_tokens(),
                                 .block_ids = {block_ids.begin(), block_ids.end()},
                                 .sequence_index = sequence.sequence_index(),
                                 .sampling = std::move(sampling)});
}

void StepPlanner::LineUp(SequenceGroup& group) {
  line_.clear();
  for (Sequence& sequence : group.sequences()) {
    if (sequence.is_running() && sequence.is_introduced()) {
      line_.emplace_back(Turn::kGoingOn, &sequence);  // the most frequent case, so tested first
    } else if (sequence.is_running() && !group.IsIdle(sequence) &&
               !group.WaitsForLeader(sequence)) {
      line_.emplace_back(sequence.table.empty() ? Turn::kBeginning : Turn::kForked, &sequence);
    }
  }
  std::sort(line_.begin(), line_.end());  // by turn, then by sequence index
  if (!are_prompts_bounded_ && std::any_of(line_.begin(), line_.end(), [](const auto& turn) {
        return turn.second->gap() > 1;
      })) {
    BoundPrompts();
  }
}

// Called only when a step meets its first prompt, because most steps have none.
void StepPlanner::BoundPrompts() {
  are_prompts_bounded_ = true;
  int32_t num_decoding = 0;
  for (const SequenceGroup* group : state_.running) {
    for (const Sequence& sequence : group->sequences()) {
      num_decoding += sequence.is_running() && sequence.gap() <= 1 ? 1 : 0;
    }
  }
  const StepBound bound = BoundStep(state_.config.target_inter_token,
                                    epoch_.preemption_cost.steps(),
                                    num_decoding,
                                    epoch_.limits.max_tokens_per_step);
  num_step_tokens_ = bound.num_tokens;
  budget_.BoundPromptTokens(bound.num_prompt_tokens);
}

void StepPlanner::PlanLine(SequenceGroup& group) {
  bool is_fork_refused = false;
  for (const auto& [turn, sequence] : line_) {
    if (budget_.HasTokensFor(*sequence) && !budget_.MayBeKnown(group, *sequence)) {
      budget_.OnIntroductionRefused(group);
      is_fork_refused = is_fork_refused || turn == Turn::kForked;
    } else if (!is_fork_refused || !epoch_.kv_cache.IsTailShared(sequence->table)) {
      // A fork copies its shared last block when it is introduced. If a fork's introduction was
      // refused above, sequences whose last block is still shared get no slice: they would write
      // into that block before the fork has copied it.
      PlanSlice(group, *sequence);
    }
    is_any_cut_ = is_any_cut_ || sequence->gap() > sequence->num_scheduled_tokens();
  }
}

// No blocks are kept until the step cuts a prompt (CountKeptBlocks). At the first cut, the kept
// blocks of all running groups are counted. After that, each further group adds its kept blocks.
void StepPlanner::PlanFirstLine(SequenceGroup& group) {
  const bool was_any_cut = is_any_cut_;
  PlanLine(group);
  if (was_any_cut) {
    num_kept_ += NumBlocksKeptFor(group);
  } else {
    CountKeptBlocks();
  }
}

void StepPlanner::PlanSlice(SequenceGroup& group, Sequence& sequence) {
  if (!budget_.HasTokensFor(sequence) || (sequence.table.empty() && !BeginTable(group, sequence))) {
    return;
  }
  const int32_t gap = sequence.gap();
  const int32_t num_tokens = budget_.TakeTokens(group, sequence);
  if (!sequence.is_introduced()) {
    Introduce(group, sequence);
    // Checked only here, because the first slice of a group always comes with an introduction.
    if (!std::exchange(group.was_planned, true)) {
      state_.started.push_back(group.id());
    }
  }
  auto new_block_ids = epoch_.kv_cache.Append(sequence.table, num_tokens);
  QUIRE_CHECK(new_block_ids.has_value());
  const int32_t num_lost = sequence.num_tokens_computed_ever() - sequence.num_computed_tokens();
  // The row of logits after a prompt token scores the prompt's next token.
  const int32_t first_scored = sequence.num_computed_tokens() + 1;
  const int32_t num_unscored = sequence.num_prompt_tokens() - first_scored;
  const int32_t num_scored = sequence.scores_prompt ? std::clamp(num_unscored, 0, num_tokens) : 0;
  sequence.BeginSlice(num_tokens);
  SequenceSlice& slice = plan_.slices.emplace_back();
  slice.handle = sequence.handle();
  slice.num_tokens = num_tokens;
  slice.new_block_ids.assign(new_block_ids->begin(), new_block_ids->end());
  slice.forced_token_id = sequence.TakeForcedToken();
  state_.step.slices.push_back({.group = &group,
                                .sequence = &sequence,
                                .handle = sequence.handle(),
                                .num_tokens = num_tokens,
                                .num_recomputed = std::clamp(num_lost, 0, num_tokens),
                                .first_scored = first_scored,
                                .num_scored = num_scored,
                                .samples = num_tokens == gap});
  if (&group != arriving_) {
    PublishBlocks(state_, group, sequence);
  }
}

std::optional<StepPlan> StepPlanner::Finish() {
  // A plan without slices is sent for two reasons. It can release handles that a waiting group
  // needs (if no group waits, the worker may keep stale handles). Or it can wait for swaps: the
  // worker answers the plan when all swaps are done.
  const bool waits_for_handles =
      epoch_.handles.num_to_release() > 0 && !(state_.waiting.empty() && state_.swapped.empty());
  if (plan_.slices.empty() && !epoch_.kv_cache.has_swaps_under_way() && !waits_for_handles) {
    return std::nullopt;
  }
  plan_.swap_outs = state_.step.swap_outs;
  plan_.swap_ins = state_.step.swap_ins;
  plan_.copies = state_.step.copies;
  plan_.releases = epoch_.handles.TakeReleases();
  epoch_.owed_introduction = budget_.owed_introduction();
  plan_.header = {.scheduler_incarnation = epoch_.scheduler_incarnation,
                  .group_epoch = epoch_.group_epoch,
                  .step_id = ++epoch_.last_step_id};
  if (epoch_.limits.wants_next_blocks) {
    NameNextBlocks(state_, plan_);
  }
  epoch_.kv_cache.OnStepPlanned();
  UnansweredStep& step = state_.step;
  step.is_active = true;
  step.header = plan_.header;
  plan_.digest = DigestOf(plan_);
  step.plan_digest = plan_.digest;
  step.num_tokens = epoch_.limits.max_tokens_per_step - budget_.num_tokens_left();
  step.num_sampled = static_cast<size_t>(
      std::count_if(step.slices.begin(), step.slices.end(), [](const UnansweredStep::Slice& slice) {
        return slice.samples;
      }));
  return std::move(plan_);
}

int32_t StepPlanner::NumBlocksNeeded(const SequenceGroup& group) const {
  StepBudget budget = budget_;  // a copy, because the blocks are only counted here
  int32_t num_blocks = 0;
  std::vector<BlockId> tails;  // for each fork: its shared last block, which it will write to
  for (const auto& [turn, sequence] : line_) {
    if (budget.is_spent()) {
      break;
    }
    const int32_t num_tokens = budget.TakeTokens(group, *sequence);
    if (num_tokens == 0) {
      continue;
    }
    // A cached block that no table holds is also taken from the free list, so cached blocks count
    // too.
    num_blocks += turn == Turn::kBeginning
                      ? NumBlocksInStep(sequence->num_tokens(), num_tokens, epoch_.limits)
                      : epoch_.kv_cache.NumBlocksToAppend(sequence->table, num_tokens);
    if (turn == Turn::kForked && epoch_.kv_cache.IsTailShared(sequence->table)) {
      tails.push_back(sequence->table.block_ids().back());
    }
  }
  std::sort(tails.begin(), tails.end());
  for (auto it = tails.begin(); it != tails.end();) {
    const auto next = std::upper_bound(it, tails.end(), *it);
    // Each fork copies its tail, except the last fork if no other table holds the block.
    const auto count = static_cast<int32_t>(next - it);
    num_blocks += std::min(count, epoch_.kv_cache.pool().ref_count(*it) - 1);
    it = next;
  }
  return num_blocks;
}

int32_t StepPlanner::NumWatermarkBlocks() const {
  const double watermark = state_.config.watermark * (epoch_.limits.num_blocks - 1);
  return state_.running.empty() ? 0 : static_cast<int32_t>(std::ceil(watermark));
}

int32_t StepPlanner::NumBlocksKeptFor(const Sequence& sequence) const {
  const BlockTable& table = sequence.table;
  const int32_t num_held = table.num_blocks() - table.num_passed_blocks();
  const int32_t num_to_take =
      epoch_.kv_cache.NumBlocksFor(sequence.num_tokens()) - table.num_blocks();
  // With a sliding window, the sequence gives back blocks while it computes its known tokens, so it
  // holds fewer blocks at once.
  const int32_t num_at_once =
      NumBlocksInStep(sequence.num_tokens(), epoch_.limits.max_tokens_per_step, epoch_.limits);
  return std::max(0, std::min(num_to_take, num_at_once - num_held));
}

int32_t StepPlanner::NumBlocksKeptFor(const SequenceGroup& group) const {
  int32_t num_blocks = 0;
  for (const Sequence& sequence : group.sequences()) {
    if (sequence.is_running() && sequence.gap() > sequence.num_scheduled_tokens() &&
        !group.WaitsForLeader(sequence)) {
      num_blocks += NumBlocksKeptFor(sequence);
    }
  }
  return num_blocks;
}

void StepPlanner::CountKeptBlocks() {
  num_kept_ = 0;
  if (is_any_cut_) {
    for (const SequenceGroup* group : state_.running) {
      num_kept_ += NumBlocksKeptFor(*group);
    }
  }
}

int32_t StepPlanner::NumBlocksToGive() const {
  return epoch_.kv_cache.num_free_blocks() - num_kept_;
}

Room StepPlanner::RoomNow() const {
  return {.num_free_handles = epoch_.handles.num_free(),
          .num_free_blocks = NumBlocksToGive(),
          .num_watermark_blocks = NumWatermarkBlocks()};
}

// A group that waits for room is tried in every step. The group may have thousands of blocks, so
// shared blocks are looked up only if the answer depends on them.
AllocStatus StepPlanner::AdmitInto(Room room, SequenceGroup& group) const {
  const StepLimits limits = state_.LimitsFor(group.request());
  AllocStatus status = Admit(group, limits, room);
  if (status == AllocStatus::kLater) {
    room.num_shared_blocks = NumSharedBlocksAtMost(state_, group);
    status = Admit(group, limits, room);
    if (status == AllocStatus::kOk) {
      room.num_shared_blocks = NumSharedBlocks(state_, group);
      status = Admit(group, limits, room);
    }
  }
  return status;
}

}  // namespace quire
