#include "scheduler/core/preemption.h"

#include <algorithm>
#include <limits>

#include "absl/container/inlined_vector.h"

#include "scheduler/core/step_bound.h"

namespace quire {

namespace {

// A group that was preempted this many times is chosen only if there is no other candidate.
constexpr int32_t kEnoughPreemptions = 3;

struct Footprint {
  PreemptionCost::Work work;
  int32_t num_exclusive_blocks = 0;
};

Footprint FootprintOf(const CoreState& state, const SequenceGroup& group) {
  const KvCacheManager& kv_cache = state.epoch->kv_cache;
  absl::InlinedVector<const BlockTable*, 1> tables;
  int64_t num_tokens = 0;
  for (const Sequence& sequence : group.sequences()) {
    tables.push_back(&sequence.table);
    num_tokens += sequence.num_computed_tokens();
  }
  const GroupBlocks blocks = kv_cache.CountBlocks(tables);
  // Tokens that sequences share are computed once, so the group's distinct blocks bound the count.
  num_tokens = std::min(num_tokens, int64_t{blocks.num_blocks} * kv_cache.block_size_tokens());
  return {.work = {.num_tokens = num_tokens,
                   .num_blocks = blocks.num_blocks,
                   .is_in_slices = group.sequences().size() == 1},
          .num_exclusive_blocks = blocks.num_exclusive};
}

PreemptionCost::Load LoadOf(const CoreState& state) {
  const Epoch& epoch = *state.epoch;
  const int32_t num_sequences = epoch.handles.num_in_use();
  const StepBound bound = BoundStep(state.config.target_inter_token,
                                    epoch.preemption_cost.steps(),
                                    num_sequences,
                                    epoch.limits.max_tokens_per_step);
  return {.num_sequences = num_sequences,
          .num_used_blocks = epoch.kv_cache.pool().num_used_blocks(),
          .num_prompt_tokens = bound.num_prompt_tokens};
}

double BlocksByMicros(int32_t num_exclusive_blocks, double micros, double idle_micros) {
  return num_exclusive_blocks / std::max(1.0, micros + idle_micros);
}

// Returns an upper bound on the blocks that preempting the group frees, per microsecond of cost.
// Counts all blocks as exclusive (not shared), so that no block must be looked at. With n exclusive
// blocks, the exact value is n / (micros + c * n^2), where c * n^2 is the cost of n idle blocks.
// This value grows with n as long as c * n^2 <= micros. So the value for all blocks is an upper
// bound if their idle cost is at most micros. Otherwise returns infinity.
double MostBlocksByMicros(const CoreState& state,
                          const SequenceGroup& group,
                          const PreemptionCost::Load& load) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  const Sequence& sequence = group.sequences().front();
  const int32_t num_blocks = sequence.table.num_blocks() - sequence.table.num_passed_blocks();
  const int64_t num_held_tokens = int64_t{num_blocks} * state.epoch->limits.block_size_tokens;
  const int64_t num_tokens = std::min<int64_t>(sequence.num_computed_tokens(), num_held_tokens);
  if (group.sequences().size() > 1 || num_tokens == 0) {
    return kUnknown;
  }
  const PreemptionCost& cost = state.epoch->preemption_cost;
  const PreemptionCost::Work work = {
      .num_tokens = num_tokens, .num_blocks = num_blocks, .is_in_slices = true};
  const double micros = cost.Cheapest(work, load).micros;
  const double idle_micros = cost.OfIdleBlocks(num_blocks, load);
  return idle_micros <= micros ? BlocksByMicros(num_blocks, micros, idle_micros) : kUnknown;
}

// Returns the running group that frees the most blocks for its cost. Candidates are the groups
// behind `group` that have the rank value of the last running group. Returns the last running group
// if no candidate frees blocks, or if all candidates that free blocks were preempted
// kEnoughPreemptions times. REQUIRES: `group` is not the last running group.
SequenceGroup& CheapestBehind(CoreState& state, const SequenceGroup& group) {
  const PreemptionCost& cost = state.epoch->preemption_cost;
  const PreemptionCost::Load load = LoadOf(state);
  SequenceGroup* cheapest = state.running.back();
  double most = 0;  // blocks per microsecond
  for (auto it = state.running.rbegin(); *it != &group; ++it) {
    SequenceGroup& candidate = **it;
    if (candidate.rank().value != state.running.back()->rank().value) {
      break;
    }
    if (most > 0 && MostBlocksByMicros(state, candidate, load) <= most) {
      continue;
    }
    const Footprint footprint = FootprintOf(state, candidate);
    if (footprint.work.num_tokens == 0 || candidate.num_preemptions() >= kEnoughPreemptions) {
      continue;
    }
    const double blocks_by_micros =
        BlocksByMicros(footprint.num_exclusive_blocks,
                       cost.Cheapest(footprint.work, load).micros,
                       cost.OfIdleBlocks(footprint.num_exclusive_blocks, load));
    if (blocks_by_micros > most) {
      most = blocks_by_micros;
      cheapest = &candidate;
    }
  }
  return *cheapest;
}

bool IsToBeSwapped(const CoreState& state, const SequenceGroup& group) {
  if (state.config.preemption_mode != PreemptionMode::kAuto) {
    return state.config.preemption_mode == PreemptionMode::kSwap;
  }
  const Footprint footprint = FootprintOf(state, group);
  return footprint.work.num_tokens > 0 &&
         state.epoch->preemption_cost.Cheapest(footprint.work, LoadOf(state)).is_swap;
}

}  // namespace

void Preempt(CoreState& state, SequenceGroup& group) {
  ++state.counters.num_preemptions;
  group.CountPreemption();
  const bool is_swapped = IsToBeSwapped(state, group) && state.SwapOut(group);
  state.epoch->preemption_cost.CountPreemption(is_swapped);
  if (is_swapped) {
    ++state.counters.num_swap_preemptions;
  } else {
    state.ReturnToWaiting(group);
  }
}

RoomOutcome MakeRoom(CoreState& state, const SequenceGroup& group, int32_t num_blocks) {
  RoomOutcome outcome = RoomOutcome::kHadRoom;
  const KvCacheManager& kv_cache = state.epoch->kv_cache;
  while (kv_cache.num_free_blocks() < num_blocks) {
    SequenceGroup& last = *state.running.back();
    const bool is_enough_leaving =
        kv_cache.num_free_blocks() + kv_cache.num_leaving_blocks() >= num_blocks;
    if (is_enough_leaving || &last == &group) {
      return RoomOutcome::kNoRoom;
    }
    const bool is_auto = state.config.preemption_mode == PreemptionMode::kAuto;
    Preempt(state, is_auto ? CheapestBehind(state, group) : last);
    outcome = RoomOutcome::kPreempted;
  }
  return outcome;
}

}  // namespace quire
