#include "scheduler/core/preemption.h"

namespace quire {

RoomOutcome MakeRoom(CoreState& state, const SequenceGroup& group, int32_t num_blocks) {
  RoomOutcome outcome = RoomOutcome::kHadRoom;
  while (state.epoch->kv_cache.num_free_blocks() < num_blocks) {
    SequenceGroup& newest = *state.running.back();
    if (&newest == &group) {
      return RoomOutcome::kNoRoom;
    }
    state.ReturnToWaiting(newest);
    ++state.counters.num_preemptions;
    outcome = RoomOutcome::kPreempted;
  }
  return outcome;
}

}  // namespace quire
