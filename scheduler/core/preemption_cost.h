// PreemptionCost estimates, from the step times so far, the cost of taking a group's blocks and of
// bringing the group back later, by swapping or recomputation. It has no clock: workers report
// times with their answers, so the same events lead to the same choice.
//
// The time of a copy or a recomputation alone says little. A step that waits for a copy delays all
// sequences of that step and all groups that wait. But tokens that are recomputed in the spare
// compute of a decode step delay no sequence. So a cost is the step time that a preemption adds or
// wastes:
//   - Swaps cost the additional time of a step with swaps, compared with an equal step without
//     swaps (same number of tokens, same amount of K and V to read).
//   - Recomputed tokens cost the additional time of a step with such tokens, compared with the step
//     without them (same amount of K and V to read).
//   - A sequence that a preemption keeps out of a step (an idle sequence) costs its share of the
//     step's fixed time. The time to compute its token and to read its K and V is no cost, because
//     the step does neither for it.
//   - Blocks that no sequence uses because of a preemption cost as much as the idle sequences that
//     could use them.
//
// Times are compared for the same amount of K and V to read. A swap changes how many sequences are
// in a step, and thereby how much the step reads. That change would hide the time of the copy,
// which is only a few hundredths of a step.
//
// To delay other groups little, a group of one sequence is recomputed in parts (slices) that hardly
// lengthen steps, in at most kMaxRecomputeSteps steps.
//
// One block is one copy, so the fixed time of a copy and the time of its bytes are one number here:
// the time of a block. The first preempted group is swapped to measure that time. After many
// preemptions without a swap one group is swapped again, because the time of a copy can change.
// After many swaps one group is recomputed.
//
// Thread safety: not thread-safe; owned by Epoch.
// Units:         microseconds of step time.
// Source:        PagedAttention, Kwon et al. 2023, sections 4.5 and 7.3, compares swapping and
//                recomputation only by the time that each takes.
#ifndef QUIRE_SCHEDULER_CORE_PREEMPTION_COST_H_
#define QUIRE_SCHEDULER_CORE_PREEMPTION_COST_H_

#include <cstdint>
#include <deque>
#include <limits>

#include "scheduler/core/step_cost.h"

namespace quire {

// Bounds the steps in which a preempted group of one sequence is computed again. More steps are
// needed only if a step has too few tokens left for the group, for example because of
// CoreConfig::target_inter_token.
inline constexpr int32_t kMaxRecomputeSteps = 16;

class PreemptionCost {
 public:
  explicit PreemptionCost(int32_t block_size_tokens) : block_size_tokens_(block_size_tokens) {}

  // A step that was answered.
  struct Step {
    uint64_t step_id = 0;
    uint64_t swaps_done_step_id = 0;
    int64_t num_tokens = 0;
    int64_t num_recomputed = 0;  // part of num_tokens that was computed before and lost
    int64_t num_context = 0;     // tokens that the step's sequences attended to
    int64_t num_swap_outs = 0;   // blocks that the step copies to host memory
    int64_t num_swap_ins = 0;
    double micros = 0;  // as the worker reports it, unchecked
  };
  void ObserveStep(const Step& step);

  // Called when a group was preempted, by swapping or by recomputation.
  void CountPreemption(bool is_swap);

  // The step times learned so far.
  const StepCost& steps() const { return steps_; }

  // Number of tokens that can be added to a step of num_sequences decoding sequences and hardly
  // lengthen it.
  int64_t SpareTokens(int32_t num_sequences) const { return steps_.SpareTokens(num_sequences); }

  // The computed tokens and the blocks of a group.
  struct Work {
    int64_t num_tokens = 0;     // >= 1
    int64_t num_blocks = 0;     // >= 1
    bool is_in_slices = false;  // the group would be recomputed in slices, over several steps
  };
  // The running sequences that a preemption delays.
  struct Load {
    int32_t num_sequences = 0;    // >= 1
    int32_t num_used_blocks = 0;  // >= 1
    // Prompt tokens that a step can recompute.
    int32_t num_prompt_tokens = std::numeric_limits<int32_t>::max();
  };
  struct Way {
    bool is_swap = false;
    double micros = 0;
  };
  // Returns the cheaper way: swapping or recomputation. To measure both ways, returns swapping if
  // it was never measured, and a way that many preemptions have not used. In these two cases
  // `micros` is the cost of the other way.
  Way Cheapest(const Work& work, const Load& load) const;

  // Cost of blocks that are freed together and stay idle until the running groups have taken them,
  // one by one.
  double OfIdleBlocks(int64_t num_blocks, const Load& load) const;

 private:
  // Microseconds per unit of an amount (tokens or blocks), over recent observations.
  class MovingRatio {
   public:
    void Add(double amount, double micros);
    bool is_known() const { return amount_ > 0; }
    double value() const { return micros_ / amount_; }

   private:
    double amount_ = 0;
    double micros_ = 0;
  };

  struct SwapOut {
    uint64_t step_id = 0;
    int64_t num_blocks = 0;
    double ordered_at = 0;  // value of elapsed_ at the end of the step
  };

  // Costs of steps of num_sequences sequences. Kept between calls of CostsOf, because Cheapest may
  // be called for thousands of groups under one load.
  struct LoadCosts {
    int32_t num_sequences = 0;  // 0: costs were not computed since the last step
    int64_t spare_tokens = 0;
    double step_micros = 0;
    double micros_without_context = 0;
    double long_prompt_micros = 0;  // time that kLongPrompt more tokens add to the step
    double idle_micros = 0;         // see OfIdleStep
  };
  const LoadCosts& CostsOf(int32_t num_sequences) const;

  // Cost of one sequence that is idle in a step of num_sequences sequences.
  double OfIdleStep(int32_t num_sequences) const { return CostsOf(num_sequences).idle_micros; }
  double OfRecompute(const Work& work, const Load& load) const;
  double OfSwap(int64_t num_blocks, int32_t num_sequences) const;

  int32_t block_size_tokens_;
  StepCost steps_;
  MovingRatio recompute_;  // step time added per recomputed token
  MovingRatio swap_;       // step time added per block swapped out or in
  MovingRatio leave_;      // time from a step's end until its swap-outs are done, per block
  double elapsed_ = 0;     // sum of all step times
  std::deque<SwapOut> under_way_;
  mutable LoadCosts load_costs_;     // result of the last call of CostsOf
  int32_t num_since_swap_ = 0;       // preemptions since the last one by swap
  int32_t num_since_recompute_ = 0;  // preemptions since the last one by recomputation
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREEMPTION_COST_H_
