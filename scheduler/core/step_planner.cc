#include "scheduler/core/step_planner.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "scheduler/core/preemption.h"

namespace quire {

StepPlanner::StepPlanner(CoreState& state)
    : state_(state), epoch_(*state.epoch), budget_(state.epoch->limits.max_tokens_per_step) {
  QUIRE_CHECK(!state.step.is_active);
  plan_.slices.reserve(static_cast<size_t>(epoch_.handles.num_in_use()));
}

std::optional<StepPlan> StepPlanner::Plan() {
  PlanRunning();
  PlanOthers();
  return Finish();
}

void StepPlanner::PlanRunning() {
  // By index: MakeRoom shortens the list, behind the group that it makes room for.
  int32_t num_reserved = 0;  // for older groups, which wait until enough blocks have left
  for (size_t i = 0; i < state_.running.size() && !budget_.is_spent(); ++i) {
    SequenceGroup& group = *state_.running[i];
    const int32_t num_needed = NumBlocksNeeded(group);
    const RoomOutcome outcome = num_needed == 0
                                    ? RoomOutcome::kHadRoom
                                    : MakeRoom(state_, group, num_needed + num_reserved);
    may_admit_ = may_admit_ && outcome == RoomOutcome::kHadRoom;
    if (outcome == RoomOutcome::kNoRoom) {
      num_reserved += num_needed;
    } else {
      PlanSlices(group);
    }
  }
}

void StepPlanner::PlanOthers() {
  bool has_room = may_admit_;
  while (has_room && !budget_.is_spent() && !(state_.waiting.empty() && state_.swapped.empty())) {
    const bool is_swapped_next =
        !state_.swapped.empty() &&
        (state_.waiting.empty() || state_.swapped.front()->id() < state_.waiting.front().id());
    has_room = is_swapped_next ? ResumeSwapped(*state_.swapped.front()) : StartWaiting();
  }
}

bool StepPlanner::ResumeSwapped(SequenceGroup& group) {
  const int32_t num_available = epoch_.kv_cache.num_free_blocks() - NumWatermarkBlocks();
  if (group.num_live_sequences() > epoch_.handles.num_free() ||
      state_.NumBlocksToResume(group) > num_available) {
    return false;
  }
  QUIRE_CHECK(state_.SwapIn(group));
  PlanSlices(group);
  return true;
}

bool StepPlanner::StartWaiting() {
  SequenceGroup& first = state_.waiting.front();
  const AllocStatus status = Admit(first, epoch_.limits, RoomFor(first));
  if (status == AllocStatus::kNever) {
    state_.FinishGroup(first, FinishReason::kNoCapacity);
  } else if (status == AllocStatus::kOk) {
    StartSequences(state_.StartFirstWaiting());
  }
  return status != AllocStatus::kLater;
}

void StepPlanner::StartSequences(SequenceGroup& group) {
  // One after the other: what the first computes, the others find.
  for (Sequence& sequence : group.sequences()) {
    if (sequence.is_running() && !WaitsForLeader(group, sequence)) {
      TakeCachedPrefix(group, sequence);
      PlanSlice(group, sequence);
    }
  }
}

bool StepPlanner::WaitsForLeader(const SequenceGroup& group, const Sequence& sequence) const {
  const bool has_something_to_share = sequence.num_prompt_tokens() > 1;
  return has_something_to_share && !sequence.is_introduced() && sequence.table.empty() &&
         group.is_undivided() && !group.IsLeader(sequence);
}

bool StepPlanner::UsesPrefixCache(const SequenceGroup& group) const {
  return state_.config.prefix_caching && !group.request().bypasses_prefix_cache;
}

PrefixMatch StepPlanner::MatchPrefix(const SequenceGroup& group, Sequence& sequence) const {
  if (!UsesPrefixCache(group)) {
    return {};
  }
  const int32_t block_size = epoch_.kv_cache.block_size_tokens();
  const int32_t num_blocks = (sequence.num_tokens() - 1) / block_size;
  group.HashBlocks(sequence, num_blocks, block_size, state_.config.block_hash_key);
  return epoch_.kv_cache.Match(
      std::span(sequence.block_hashes).first(static_cast<size_t>(num_blocks)));
}

void StepPlanner::TakeCachedPrefix(const SequenceGroup& group, Sequence& sequence) {
  if (!UsesPrefixCache(group)) {
    return;
  }
  state_.counters.num_prefix_queried_tokens += sequence.num_tokens();
  const PrefixMatch match = MatchPrefix(group, sequence);
  if (match.num_blocks == 0) {
    return;
  }
  epoch_.kv_cache.ShareCached(
      std::span(sequence.block_hashes).first(static_cast<size_t>(match.num_blocks)),
      sequence.table);
  sequence.BeginWithCached(sequence.table.num_tokens());
  state_.counters.num_prefix_hit_tokens += sequence.num_computed_tokens();
}

void StepPlanner::Introduce(const SequenceGroup& group, Sequence& sequence) {
  sequence.BecomeIntroduced();
  const std::span<const BlockId> block_ids = sequence.table.block_ids();
  plan_.introductions.push_back({.handle = sequence.handle(),
                                 .token_ids = group.TokenIdsOf(sequence),
                                 .num_prompt_tokens = sequence.num_prompt_tokens(),
                                 .num_computed_tokens = sequence.num_computed_tokens(),
                                 .block_ids = {block_ids.begin(), block_ids.end()},
                                 .sequence_index = sequence.sequence_index(),
                                 .sampling = group.request().sampling});
}

void StepPlanner::PlanSlices(SequenceGroup& group) {
  // Forks first: each takes its own copy of the tail that they share with the leader, which may
  // then write to it.
  for (const bool is_introduced : {false, true}) {
    for (Sequence& sequence : group.sequences()) {
      const bool is_next =
          sequence.is_introduced() == is_introduced && sequence.num_scheduled_tokens() == 0;
      if (sequence.is_running() && is_next && !WaitsForLeader(group, sequence)) {
        PlanSlice(group, sequence);
      }
    }
  }
}

void StepPlanner::PlanSlice(SequenceGroup& group, Sequence& sequence) {
  const int32_t gap = sequence.gap();
  const int32_t num_tokens = budget_.Take(gap);
  if (num_tokens == 0) {
    return;
  }
  if (const auto copy = epoch_.kv_cache.MakeTailExclusive(sequence.table)) {
    QUIRE_CHECK(!sequence.is_introduced());  // a worker's table never changes
    state_.step.copies.push_back({.src = copy->src, .dst = copy->dst});
    ++state_.counters.num_blocks_copied;
  }
  if (!sequence.is_introduced()) {
    Introduce(group, sequence);
  }
  auto new_block_ids = epoch_.kv_cache.Append(sequence.table, num_tokens);
  QUIRE_CHECK(new_block_ids.has_value());
  sequence.BeginSlice(num_tokens);
  SequenceSlice& slice = plan_.slices.emplace_back();
  slice.handle = sequence.handle();
  slice.num_tokens = num_tokens;
  slice.new_block_ids.assign(new_block_ids->begin(), new_block_ids->end());
  state_.step.slices.push_back({&group, &sequence, sequence.handle(), num_tokens == gap});
  PublishSlice(group, sequence);
}

void StepPlanner::PublishSlice(const SequenceGroup& group, Sequence& sequence) {
  if (!UsesPrefixCache(group)) {
    return;
  }
  const int32_t block_size = epoch_.kv_cache.block_size_tokens();
  const int32_t num_full = sequence.table.num_tokens() / block_size;
  const int32_t num_full_before = sequence.num_computed_tokens() / block_size;
  if (num_full > num_full_before) {
    group.HashBlocks(sequence, num_full, block_size, state_.config.block_hash_key);
    epoch_.kv_cache.Publish(sequence.table,
                            num_full_before,
                            std::span(sequence.block_hashes).first(static_cast<size_t>(num_full)));
  }
}

std::optional<StepPlan> StepPlanner::Finish() {
  // Releases ride along with slices. They are sent alone only when somebody waits, who then waits
  // for a handle: with nothing running, blocks are never short. An idle worker may keep handles
  // that nobody will name again. A step without slices is also how to wait for swaps: the worker
  // answers it when all are done.
  const bool waits_for_handles =
      epoch_.handles.num_to_release() > 0 && !(state_.waiting.empty() && state_.swapped.empty());
  if (plan_.slices.empty() && !epoch_.kv_cache.has_swaps_under_way() && !waits_for_handles) {
    return std::nullopt;
  }
  plan_.swap_outs = state_.step.swap_outs;
  plan_.swap_ins = state_.step.swap_ins;
  plan_.copies = state_.step.copies;
  plan_.releases = epoch_.handles.TakeReleases();
  plan_.header = {.scheduler_incarnation = epoch_.scheduler_incarnation,
                  .group_epoch = epoch_.group_epoch,
                  .step_id = ++epoch_.last_step_id};
  epoch_.kv_cache.OnStepPlanned();
  UnansweredStep& step = state_.step;
  step.is_active = true;
  step.header = plan_.header;
  step.plan_digest = DigestOf(plan_);
  step.num_sampled = static_cast<size_t>(
      std::count_if(step.slices.begin(), step.slices.end(), [](const UnansweredStep::Slice& slice) {
        return slice.samples;
      }));
  return std::move(plan_);
}

int32_t StepPlanner::NumBlocksNeeded(const SequenceGroup& group) const {
  TokenBudget budget = budget_;
  int32_t num_blocks = 0;
  for (const bool is_introduced : {false, true}) {
    for (const Sequence& sequence : group.sequences()) {
      if (sequence.is_running() && sequence.is_introduced() == is_introduced &&
          !WaitsForLeader(group, sequence)) {
        num_blocks += NumBlocksForSlice(sequence, budget.Take(sequence.gap()));
      }
    }
  }
  return num_blocks;
}

int32_t StepPlanner::NumWatermarkBlocks() const {
  const double watermark = state_.config.watermark * (epoch_.limits.num_blocks - 1);
  return state_.running.empty() ? 0 : static_cast<int32_t>(std::ceil(watermark));
}

int32_t StepPlanner::NumBlocksForSlice(const Sequence& sequence, int32_t num_tokens) const {
  const bool needs_tail =
      num_tokens > 0 && !sequence.is_introduced() && epoch_.kv_cache.IsTailShared(sequence.table);
  return epoch_.kv_cache.NumBlocksToAppend(sequence.table, num_tokens) + (needs_tail ? 1 : 0);
}

Room StepPlanner::RoomFor(SequenceGroup& group) const {
  Room room = {.num_free_handles = epoch_.handles.num_free(),
               .num_free_blocks = epoch_.kv_cache.num_free_blocks(),
               .num_watermark_blocks = NumWatermarkBlocks()};
  for (Sequence& sequence : group.sequences()) {
    if (!sequence.is_finished()) {
      const PrefixMatch match = MatchPrefix(group, sequence);
      room.num_shared_blocks += match.num_blocks - match.num_free_blocks;
    }
  }
  return room;
}

}  // namespace quire
