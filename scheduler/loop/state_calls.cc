#include "scheduler/loop/state_calls.h"

#include <utility>

namespace quire {

void StepTotals::Add(const StepObservation& step) {
  ++num_steps;
  plan_ns += step.plan_ns;
  send_ns += step.send_ns;
  round_trip_ns += step.round_trip_ns;
  apply_ns += step.apply_ns;
  publish_ns += step.publish_ns;
  worker.build_us += step.worker.build_us;
  worker.forward_us += step.worker.forward_us;
  worker.sample_us += step.worker.sample_us;
  worker.collective_us += step.worker.collective_us;
}

void StateCalls::AnswerWaiting(const RecordedCore& core,
                               const OutputRouter& router,
                               const StepTotals& steps,
                               const SwapBytes& swap_bytes,
                               Instant now) {
  if (waiting_.empty()) {
    return;
  }
  if (last_ == nullptr || now - last_->taken_at >= kIntervalNs) {
    auto state = std::make_shared<LoopState>();
    state->taken_at = now;
    state->stats = core.stats();
    state->swap_bytes = swap_bytes;
    state->steps = steps;
    state->block_map = core.block_map(kLimits);
    for (const BlockHolder& holder : state->block_map.holders) {
      state->request_ids.emplace_back(router.RequestIdOf(holder.id));
    }
    last_ = std::move(state);
  }
  for (const GetStateCall& call : std::exchange(waiting_, {})) {
    call.answer(last_);
  }
}

}  // namespace quire
