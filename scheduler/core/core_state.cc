#include "scheduler/core/core_state.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace quire {

Epoch::Epoch(uint64_t incarnation, uint64_t epoch_number, const StepLimits& step_limits)
    : scheduler_incarnation(incarnation),
      group_epoch(epoch_number),
      limits(step_limits),
      kv_cache(BlockPool(step_limits.num_blocks), step_limits.block_size_tokens),
      handles(step_limits.max_sequences) {}

void UnansweredStep::Clear() {
  is_active = false;
  slices.clear();
  num_sampled = 0;
  departed.clear();
}

SequenceGroup* CoreState::Find(RequestId id) {
  auto it = groups.find(id);
  return it == groups.end() ? nullptr : it->second.get();
}

void CoreState::Add(Request request) {
  RequestId id = request.id;
  auto it =
      groups.emplace_hint(groups.end(), id, std::make_unique<SequenceGroup>(std::move(request)));
  SequenceGroup& group = *it->second;
  waiting.PushBack(group);
  deadlines.Add(group.request());
  last_request_id = id;
}

SequenceGroup& CoreState::StartFirstWaiting() {
  SequenceGroup& group = waiting.front();
  waiting.PopFront();
  for (Sequence& sequence : group.sequences()) {
    if (!sequence.is_finished()) {
      sequence.BecomeRunning(epoch->handles.Take());
    }
  }
  auto place = std::lower_bound(
      running.begin(), running.end(), group.id(), [](const SequenceGroup* other, RequestId id) {
        return other->id() < id;
      });
  running.insert(place, &group);
  return group;
}

void CoreState::ReturnToWaiting(SequenceGroup& group) {
  for (Sequence& sequence : group.sequences()) {
    if (sequence.is_running()) {
      GiveBack(sequence);
      sequence.BecomeWaiting();
    }
  }
  RemoveFromRunning(group);
  waiting.Return(group);
}

void CoreState::FinishSequence(SequenceGroup& group, Sequence& sequence, FinishReason reason) {
  bool was_running = sequence.is_running();
  if (was_running) {
    GiveBack(sequence);
  }
  sequence.BecomeFinished();
  bool is_last = group.is_finished();
  events.push_back(SequenceFinished{.request_id = group.id(),
                                    .sequence_index = sequence.sequence_index(),
                                    .reason = reason,
                                    .num_output_tokens = sequence.num_output_tokens(),
                                    .is_last_of_request = is_last});
  if (is_last) {
    Depart(group, was_running);
  }
}

void CoreState::FinishGroup(SequenceGroup& group, FinishReason reason) {
  // The group may die with its last sequence: nothing of it is touched after that.
  int32_t num_left = group.num_live_sequences();
  for (size_t i = 0; num_left > 0; ++i) {
    Sequence& sequence = group.sequences()[i];
    if (!sequence.is_finished()) {
      --num_left;
      FinishSequence(group, sequence, reason);
    }
  }
}

void CoreState::LoseWorkers() {
  for (SequenceGroup* group : running) {
    for (Sequence& sequence : group->sequences()) {
      if (sequence.is_running()) {
        sequence.table.Abandon();
        sequence.BecomeWaiting();
      }
    }
    waiting.Return(*group);
  }
  running.clear();
  step.Clear();
  epoch.reset();
}

void CoreState::GiveBack(Sequence& sequence) {
  epoch->kv_cache.Free(sequence.table);
  epoch->handles.GiveBack(sequence.handle());
}

void CoreState::RemoveFromRunning(const SequenceGroup& group) {
  auto place = std::lower_bound(
      running.begin(), running.end(), group.id(), [](const SequenceGroup* other, RequestId id) {
        return other->id() < id;
      });
  QUIRE_CHECK(place != running.end() && *place == &group);
  running.erase(place);
}

void CoreState::Depart(SequenceGroup& group, bool was_running) {
  if (was_running) {
    RemoveFromRunning(group);
  } else {
    waiting.Remove(group);
  }
  deadlines.Remove(group.request());
  ++counters.num_requests_finished;
  auto it = groups.find(group.id());
  if (step.is_active) {
    step.departed.push_back(std::move(it->second));
  }
  groups.erase(it);
}

}  // namespace quire
