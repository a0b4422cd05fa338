#include "scheduler/core/completion_estimate.h"

#include <algorithm>
#include <cmath>

namespace quire {

void CompletionEstimate::OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole) {
  const double before = lengths_.Expect(max_tokens);
  lengths_.OnEnd(num_tokens, max_tokens, is_whole);
  const double after = lengths_.Expect(max_tokens);
  if (after > kOtherLength * before || before > kOtherLength * after) {
    RunMargin(max_tokens) = 1;
  }
}

void CompletionEstimate::OnTurn(bool is_in_time) {
  const double change = is_in_time ? -kTurnLowers : kMissRaises;
  wait_margin_ = std::clamp(wait_margin_ + change, 1.0, kMaxWaitMargin);
}

void CompletionEstimate::OnDeadline(int32_t max_tokens, bool is_met) {
  double& margin = RunMargin(max_tokens);
  margin = std::clamp(margin + (is_met ? -kMeetLowers : kMissRaises), 1.0, kMaxRunMargin);
}

CompletionEstimate::Batch CompletionEstimate::BatchOf(const Work& own,
                                                      const Load& load,
                                                      const StepCost& steps,
                                                      const StepLimits& limits) const {
  const int64_t most_tokens = steps.most_tokens();
  if (most_tokens == 0) {
    return {};
  }
  const auto micros_of = [&](double num_tokens) {
    const auto tokens = static_cast<int64_t>(std::max(1.0, num_tokens));
    return steps.StepMicros(std::min(tokens, most_tokens));
  };
  const double num_waiting = load.waiting.num_sequences + own.num_sequences;
  const double num_tokens = load.waiting.num_prompt_tokens + own.num_prompt_tokens;
  const double tokens_by_sequence = num_tokens / num_waiting + output_tokens();
  const double num_pool_tokens = double{1} * limits.num_blocks * limits.block_size_tokens;
  Batch batch;
  batch.num_slots = std::clamp(num_pool_tokens / std::max(1.0, tokens_by_sequence),
                               std::max(1.0, load.num_running),
                               std::max(load.num_running, double{1} * limits.max_sequences));
  const double num_decoding = std::min(batch.num_slots, load.num_running + num_waiting);
  batch.step_micros = micros_of(num_decoding);
  const auto num_full =
      static_cast<double>(std::min(most_tokens, int64_t{limits.max_tokens_per_step}));
  if (num_full > num_decoding) {
    batch.micros_by_token =
        std::max(0.0, micros_of(num_full) - batch.step_micros) / (num_full - num_decoding);
  }
  return batch;
}

double CompletionEstimate::WaitMicros(const Work& own,
                                      const Load& load,
                                      const StepCost& steps,
                                      const StepLimits& limits) const {
  const Batch batch = BatchOf(own, load, steps, limits);
  const double num_to_end =
      load.num_running + load.ahead.num_sequences + own.num_sequences - batch.num_slots;
  const double num_steps =
      std::max(std::max(0.0, num_to_end) * output_tokens() / batch.num_slots,
               std::floor(load.ahead.num_prompt_tokens / load.num_prompt_tokens_by_step));
  return wait_margin_ *
         (num_steps * batch.step_micros + load.ahead.num_prompt_tokens * batch.micros_by_token);
}

double CompletionEstimate::RunMicros(const Work& own,
                                     int32_t max_tokens,
                                     const Load& load,
                                     const StepCost& steps,
                                     const StepLimits& limits) const {
  const Batch batch = BatchOf(own, load, steps, limits);
  const double num_steps = lengths_.Expect(max_tokens);
  // If more sequences wait than fit, each sequence that ends makes room for a waiting prompt.
  const double num_waiting = load.waiting.num_sequences + own.num_sequences;
  const bool is_full = load.num_running + num_waiting > batch.num_slots;
  const double tokens_by_prompt =
      (load.waiting.num_prompt_tokens + own.num_prompt_tokens) / num_waiting;
  const double num_prompt_tokens_by_step =
      is_full ? batch.num_slots / std::max(1.0, output_tokens()) * tokens_by_prompt : 0;
  const double step = batch.step_micros + num_prompt_tokens_by_step * batch.micros_by_token;
  const double num_prompt_steps =
      std::floor(own.num_prompt_tokens / load.num_prompt_tokens_by_step);
  const double margin = run_margins_.at(OutputLengths::ClassOf(max_tokens));
  return margin * (own.num_prompt_tokens * batch.micros_by_token +
                   num_prompt_steps * batch.step_micros + num_steps * step);
}

}  // namespace quire
