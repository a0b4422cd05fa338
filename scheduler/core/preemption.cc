#include "scheduler/core/preemption.h"

namespace quire {

void Preempt(CoreState& state, SequenceGroup& group) {
  ++state.counters.num_preemptions;
  if (state.config.preemption_mode == PreemptionMode::kSwap && state.SwapOut(group)) {
    ++state.counters.num_swap_preemptions;
    return;
  }
  state.ReturnToWaiting(group);
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
    Preempt(state, last);
    outcome = RoomOutcome::kPreempted;
  }
  return outcome;
}

}  // namespace quire
