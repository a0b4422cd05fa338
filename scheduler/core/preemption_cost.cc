#include "scheduler/core/preemption_cost.h"

#include <algorithm>

#include "common/base/math.h"

namespace quire {
namespace {

constexpr double kKept = 15.0 / 16;        // share of the old sums that MovingRatio::Add keeps
constexpr int32_t kTriesOtherAfter = 256;  // preemptions in one way until the other way is tried
constexpr int64_t kLongPrompt = 512;       // tokens of the prompt that long_prompt_micros is for

// Upper bound on the time of a step: one hour. A longer time means a wrong clock.
constexpr double kMaxMicros = 3.6e9;

}  // namespace

void PreemptionCost::MovingRatio::Add(double amount, double micros) {
  amount_ = kKept * amount_ + amount;
  micros_ = kKept * micros_ + micros;
}

void PreemptionCost::ObserveStep(const Step& step) {
  load_costs_ = {};
  const double micros = std::clamp(step.micros, 0.0, kMaxMicros);
  elapsed_ += micros;
  if (step.num_swap_outs > 0) {
    under_way_.push_back(
        {.step_id = step.step_id, .num_blocks = step.num_swap_outs, .ordered_at = elapsed_});
  }
  for (; !under_way_.empty() && under_way_.front().step_id <= step.swaps_done_step_id;
       under_way_.pop_front()) {
    leave_.Add(static_cast<double>(under_way_.front().num_blocks),
               elapsed_ - under_way_.front().ordered_at);
  }
  if (step.num_tokens == 0 || micros == 0) {
    return;  // nothing to learn: the step is empty, or the worker has no clock
  }
  const auto expected = [&](int64_t num_tokens) {
    return steps_.MicrosWithoutContext(num_tokens) + steps_.ContextMicros(step.num_context);
  };
  const int64_t num_swapped = step.num_swap_outs + step.num_swap_ins;
  if (num_swapped > 0) {
    swap_.Add(static_cast<double>(num_swapped), micros - expected(step.num_tokens));
    return;
  }
  if (step.num_recomputed > 0) {
    recompute_.Add(static_cast<double>(step.num_recomputed),
                   micros - expected(step.num_tokens - step.num_recomputed));
  }
  steps_.ObserveStep(step.num_tokens, step.num_context, micros);
}

void PreemptionCost::CountPreemption(bool is_swap) {
  ++num_since_swap_;
  ++num_since_recompute_;
  (is_swap ? num_since_swap_ : num_since_recompute_) = 0;
}

PreemptionCost::Way PreemptionCost::Cheapest(const Work& work, const Load& load) const {
  const double recompute = OfRecompute(work, load);
  if (!swap_.is_known() || num_since_swap_ >= kTriesOtherAfter) {
    return {.is_swap = true, .micros = recompute};
  }
  const double swap = OfSwap(work.num_blocks, load.num_sequences);
  if (num_since_recompute_ >= kTriesOtherAfter) {
    return {.is_swap = false, .micros = swap};
  }
  return {.is_swap = swap < recompute, .micros = std::min(swap, recompute)};
}

double PreemptionCost::OfIdleBlocks(int64_t num_blocks, const Load& load) const {
  // Running groups take num_sequences / block_size blocks a step, so they take the num_blocks freed
  // blocks in num_blocks * block_size / num_sequences steps. During these steps, num_blocks / 2
  // blocks are idle on average. A sequence has num_used_blocks / num_sequences blocks. So the idle
  // blocks cost as much as one sequence that idles for (steps * idle blocks / blocks of a sequence)
  // steps.
  const auto blocks = static_cast<double>(num_blocks);
  const double num_idle_steps = blocks * blocks * block_size_tokens_ / (2.0 * load.num_used_blocks);
  return num_idle_steps * OfIdleStep(load.num_sequences);
}

const PreemptionCost::LoadCosts& PreemptionCost::CostsOf(int32_t num_sequences) const {
  if (load_costs_.num_sequences == num_sequences) {
    return load_costs_;
  }
  const double step = steps_.MicrosWithoutContext(num_sequences);
  const double twice = steps_.MicrosWithoutContext(int64_t{2} * num_sequences);
  load_costs_ = {
      .num_sequences = num_sequences,
      .spare_tokens = steps_.SpareTokens(num_sequences),
      .step_micros = steps_.StepMicros(num_sequences),
      .micros_without_context = step,
      .long_prompt_micros = steps_.MicrosWithoutContext(num_sequences + kLongPrompt) - step,
      // The share of one sequence in the step's fixed time: the time of a step without tokens,
      // extrapolated from the times for num_sequences tokens and for twice as many. The time to
      // read the sequence's context is no cost: no step reads the context of an idle sequence.
      .idle_micros = std::clamp(2 * step - twice, 0.0, step) / num_sequences};
  return load_costs_;
}

double PreemptionCost::OfRecompute(const Work& work, const Load& load) const {
  const LoadCosts& costs = CostsOf(load.num_sequences);
  const int64_t least = DivCeil(work.num_tokens, work.is_in_slices ? kMaxRecomputeSteps : 1);
  const int64_t slice = std::min(
      {work.num_tokens, int64_t{load.num_prompt_tokens}, std::max(costs.spare_tokens, least)});
  const auto num_steps = static_cast<double>(DivCeil(work.num_tokens, slice));
  const double by_curve = num_steps * (steps_.MicrosWithoutContext(load.num_sequences + slice) -
                                       costs.micros_without_context);
  // The measured cost includes effects that by_curve lacks, such as prompts in the same steps, but
  // also clock errors. So the measured cost per token is bounded by the cost per token of a long
  // prompt.
  double measured = 0;
  if (recompute_.is_known()) {
    measured = static_cast<double>(work.num_tokens) *
               std::min(recompute_.value(), costs.long_prompt_micros / kLongPrompt);
  }
  return std::max({0.0, measured, by_curve}) + num_steps * costs.idle_micros;
}

double PreemptionCost::OfSwap(int64_t num_blocks, int32_t num_sequences) const {
  const auto blocks = static_cast<double>(num_blocks);
  const double there_and_back = 2 * blocks * std::max(0.0, swap_.value());
  // Counts the steps in which sequences idle until the blocks are copied to host memory. The
  // sequence that caused the preemption idles in all these steps. Each other sequence needs a new
  // block once in block_size steps, and idles from then on. At most num_blocks of the other
  // sequences idle.
  const double step = std::max(1.0, CostsOf(num_sequences).step_micros);
  const double num_steps = 1 + (leave_.is_known() ? blocks * leave_.value() / step : 0);
  const double num_others = std::min(
      {blocks, static_cast<double>(num_sequences), num_sequences * num_steps / block_size_tokens_});
  const double num_idle_steps = num_steps + num_others * num_steps / 2;
  return there_and_back + num_idle_steps * OfIdleStep(num_sequences);
}

}  // namespace quire
