// Requests that crash their workers in CoreSimulation, and kills from outside.
#include <algorithm>
#include <set>

#include "scheduler/core/crash_suspects.h"
#include "tests/scheduler/core/core_simulation.h"

namespace quire {

// Draws a token that crashes the worker. A sequence of the request may end before it. max_tokens:
// as the client asked for it.
void CoreSimulation::DrawPoison(int32_t max_tokens, RequestModel* request) {
  if (!poison_draws_.OneIn(poison_rate_)) {
    return;
  }
  const auto num_prompt = static_cast<int32_t>(request->request.prompt_token_ids.size());
  request->poison =
      FakeWorker::PoisonToken{.position = poison_draws_.Below(num_prompt + max_tokens),
                              .is_harmless_alone = poison_draws_.OneIn(4)};
  if (worker_.has_value()) {
    worker_->Poison(request->request.id.value(), *request->poison);
  }
}

bool CoreSimulation::IsAlone(uint64_t id) const {
  return std::ranges::all_of(plan_->slices, [this, id](const SequenceSlice& slice) {
    return owner_of_handle_[slice.handle].id.value() == id;
  });
}

void CoreSimulation::KillWorkers() {
  was_crash_ = !loss_causes_.OneIn(3);  // else they were cut off
  if (plan_.has_value() && was_crash_) {
    for (const SequenceSlice& slice : plan_->slices) {
      const uint64_t id = owner_of_handle_[slice.handle].id.value();
      requests_.at(id).num_crashes = 0;  // what is known of it may have been lost
      if (&slice == plan_->slices.data()) {
        requests_.at(id).num_losses_alone += IsAlone(id) ? 1 : 0;
      }
    }
  }
  LoseWorkers();
}

void CoreSimulation::OnCrash() {
  std::set<uint64_t> guilty;
  for (SequenceHandle handle : worker_->crashed_by()) {
    const HandleOwner owner = owner_of_handle_[handle];
    const RequestModel& request = requests_.at(owner.id.value());
    const auto index = static_cast<size_t>(request.is_beam_search() ? 0 : owner.sequence_index);
    if (!request.sequences[index].is_finished) {  // else it crashes nobody again
      guilty.insert(owner.id.value());
    }
  }
  for (uint64_t id : guilty) {
    RequestModel& request = requests_.at(id);
    ++request.num_crashes;
    request.num_losses_alone += IsAlone(id) ? 1 : 0;
    const int32_t most = request.poison->is_harmless_alone ? 2 * kMaxCrashes : kMaxCrashes;
    Expect(request.num_crashes <= most, "nobody crashes its workers more than five times");
  }
  was_crash_ = true;
  LoseWorkers();
}

// Checks that a request that has crashed its workers twice is alone in the step.
void CoreSimulation::CheckSuspects(const StepPlan& plan) {
  const auto is_guilty = [this](const SequenceSlice& slice) {
    const RequestModel& request = requests_.at(owner_of_handle_[slice.handle].id.value());
    return request.num_crashes >= 2 && !request.poison->is_harmless_alone;
  };
  if (std::ranges::any_of(plan.slices, is_guilty)) {
    Expect(std::ranges::all_of(plan.slices,
                               [&](const SequenceSlice& slice) {
                                 return owner_of_handle_[slice.handle].id ==
                                        owner_of_handle_[plan.slices.front().handle].id;
                               }),
           "who crashed its workers twice computes alone");
  }
}

// Resets the count of crashes of a request whose poisoned token was computed. Such a token was
// harmless because the request was alone.
void CoreSimulation::OnPoisonComputed() {
  for (const SequenceSlice& slice : plan_->slices) {
    RequestModel& request = requests_.at(owner_of_handle_[slice.handle].id.value());
    if (request.poison.has_value() && worker_->IsKnown(slice.handle) &&
        worker_->NumComputedTokens(slice.handle) > request.poison->position) {
      request.num_crashes = 0;
    }
  }
}

}  // namespace quire
