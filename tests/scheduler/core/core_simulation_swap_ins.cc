// Swap-ins that fail in CoreSimulation, and their effect on the answer of the step.
#include <algorithm>
#include <set>

#include "tests/scheduler/core/core_simulation.h"

namespace quire {

// No swap-in fails if several requests come back at once, because only the core knows which of them
// lacks a block. Nor does one with a window of one token, behind which a sequence may come back
// without blocks.
void CoreSimulation::DrawFailedSwapIns(const StepPlan& plan) {
  failed_swap_ins_.clear();
  std::set<BlockId> arriving;
  for (const BlockSwapIn& swap : plan.swap_ins) {
    arriving.insert(swap.block);
  }
  std::set<uint64_t> returning_ids;
  for (const SequenceIntroduction& introduction : plan.introductions) {
    if (std::ranges::any_of(introduction.block_ids,
                            [&](BlockId block_id) { return arriving.count(block_id) > 0; })) {
      returning_ids.insert(introduction.sampling.seed);
    }
  }
  if (!has_faults_ || returning_ids.size() != 1 || limits_.sliding_window == 1) {
    return;
  }
  returning_id_ = *returning_ids.begin();
  for (const BlockSwapIn& swap : plan.swap_ins) {
    if (swap_faults_.OneIn(swap_in_failure_rate_)) {
      worker_->FailSwapIn(swap.host_block);
      failed_swap_ins_.push_back(swap.block);
    }
  }
  if (!failed_swap_ins_.empty() && swap_faults_.OneIn(2)) {
    StopOneSequence(requests_.at(returning_id_));
  }
}

// Stops a sequence before the answer. A block that it alone lacked has no holder then.
void CoreSimulation::StopOneSequence(RequestModel& request) {
  for (SequenceModel& sequence : request.sequences) {
    const auto index = static_cast<int32_t>(&sequence - request.sequences.data());
    if (!request.is_beam_search() && !sequence.is_finished && swap_faults_.OneIn(2)) {
      sequence.was_stopped = true;
      Expect(core_->FinishSequence(request.request.id, index), "a live sequence is stopped");
      return TakeEvents();
    }
  }
}

// Whether a sequence that the worker knows and that goes on reads a block that did not come back.
bool CoreSimulation::LacksBlock() const {
  return std::ranges::any_of(plan_->introductions, [this](const SequenceIntroduction& each) {
    const RequestModel& request = requests_.at(each.sampling.seed);
    const auto index = static_cast<size_t>(request.is_beam_search() ? 0 : each.sequence_index);
    return !request.sequences[index].is_finished &&
           std::ranges::any_of(each.block_ids, [this](BlockId block_id) {
             return std::ranges::count(failed_swap_ins_, block_id) > 0;
           });
  });
}

void CoreSimulation::OnApplied(const StepResult& result, const CoreStats& before) {
  // Apart from rows that are not finite, only a failed swap-in makes a running request wait again.
  const bool is_recomputed = !failed_swap_ins_.empty() &&
                             core_->stats().num_waiting_requests > before.num_waiting_requests;
  Expect(is_recomputed || !LacksBlock(), "who lacks a block is computed again");
  if (is_recomputed) {
    requests_.at(returning_id_).had_failed_swap_in = true;
    audit_->OnRecomputed();
  }
  for (const SampledToken& sampled : result.sampled) {
    const HandleOwner owner = owner_of_handle_[sampled.handle];
    RequestModel& request = requests_.at(owner.id.value());
    const auto index = static_cast<size_t>(request.is_beam_search() ? 0 : owner.sequence_index);
    SequenceModel& sequence = request.sequences[index];
    if (sequence.is_finished || !sampled.finite ||
        (is_recomputed && owner.id.value() == returning_id_)) {
      continue;
    }
    fairness_.OnSampled(request.request);
    if (!request.is_beam_search()) {
      sequence.num_non_finite = 0;
    } else if (!request.beams.has_value()) {
      request.beams.emplace(request.request, limits_);
    }
  }
}

}  // namespace quire
