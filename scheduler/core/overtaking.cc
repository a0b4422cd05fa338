#include "scheduler/core/overtaking.h"

namespace quire {
namespace {

// Returns how many tokens the group must compute until each of its sequences has a next token. A
// sequence that will fork from the group's leader adds no tokens: it will share the leader's
// tokens.
int64_t NumTokensLeft(const SequenceGroup& group) {
  int64_t num_tokens = 0;
  for (const Sequence& sequence : group.sequences()) {
    const bool computes =
        !sequence.is_finished() && !group.WaitsForLeader(sequence) && !group.IsIdle(sequence);
    num_tokens += computes ? sequence.gap() : 0;
  }
  return num_tokens;
}

}  // namespace

bool MayBePassed(const CoreState& state, const SequenceGroup& group) {
  return state.config.scheduling_policy == SchedulingPolicyKind::kFcfs && !group.has_overtaken;
}

std::vector<SequenceGroup*> ShortPromptsBehind(const CoreState& state,
                                               const SequenceGroup& cut,
                                               const Room& room) {
  std::vector<SequenceGroup*> behind;
  if (!state.swapped.empty()) {
    return behind;  // swapped groups wait for room, so no waiting group may pass
  }
  const int64_t longest = NumTokensLeft(cut) / kTimesShorter;
  int64_t num_blocks = int64_t{room.num_free_blocks} - room.num_watermark_blocks;
  int32_t num_handles = room.num_free_handles;
  for (SequenceGroup* group : state.waiting.FirstRanked(kMostPassed)) {
    const StepLimits limits = state.LimitsFor(group->request());
    num_blocks -= NumBlocksToCompute(*group, /*num_shared_blocks=*/0, limits);
    num_handles -= group->num_live_sequences();
    const bool waits_for_room = num_blocks < 0 || num_handles < 0 || !FitsEver(*group, limits);
    if (waits_for_room || group->rank() < cut.rank()) {
      break;
    }
    if (NumTokensLeft(*group) <= longest) {
      behind.push_back(group);
    }
  }
  return behind;
}

}  // namespace quire
