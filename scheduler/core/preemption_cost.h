// PreemptionCost says what it would cost to take a group's blocks and to bring it back, by swapping
// or by computing it again, from how long steps took so far. It has no clock: workers report times
// with their answers, so that the same events lead to the same choice.
//
// What an event takes by itself says little: a step that waits for a copy delays everybody in it
// and everybody who waits for it, while tokens that are recomputed in the spare compute of a step
// that decodes delay nobody. So a cost is by how much the service of all is delayed, in step time:
//   - by how much steps were longer than steps of as many tokens, which read as much, are without
//     swaps and recomputed tokens;
//   - for a sequence that sits a step out, and for blocks that hold nothing, their part of a step,
//     as far as the step is not shorter without them: neither products nor the reading of their K
//     and V are lost, only what a step takes however many are in it.
//
// Reading is apart because swaps change how many sequences are in a step, and with that how much is
// read, more than how long it takes: what a copy takes by itself is a few hundredths of a step.
//
// For that a group of one sequence is recomputed in slices that leave steps about as long as they
// are, and is back after kMaxRecomputeSteps steps at the latest.
//
// One block is one copy, so what handing over a copy takes and what its bytes take is one number
// here: the time of a block. The first group is swapped to learn it, and so is one when long none
// was, since links change; likewise the other way round.
//
// Thread safety: not thread-safe; owned by Epoch.
// Units:         microseconds of step time.
// Source:        PagedAttention, Kwon et al. 2023, sections 4.5 and 7.3, compares the two by the
//                time of an event alone.
#ifndef QUIRE_SCHEDULER_CORE_PREEMPTION_COST_H_
#define QUIRE_SCHEDULER_CORE_PREEMPTION_COST_H_

#include <cstdint>
#include <deque>
#include <limits>

#include "scheduler/core/step_cost.h"

namespace quire {

// In how many steps a preempted group is computed again at the most, unless prompts get fewer
// tokens under CoreConfig::target_inter_token.
inline constexpr int32_t kMaxRecomputeSteps = 16;

class PreemptionCost {
 public:
  explicit PreemptionCost(int32_t block_size_tokens) : block_size_tokens_(block_size_tokens) {}

  // A step that was answered.
  struct Step {
    uint64_t step_id = 0;
    uint64_t swaps_done_step_id = 0;
    int64_t num_tokens = 0;
    int64_t num_recomputed = 0;  // of them
    int64_t num_context = 0;     // tokens that its sequences attended to
    int64_t num_swap_outs = 0;   // blocks
    int64_t num_swap_ins = 0;
    double micros = 0;  // whatever a worker reports
  };
  void ObserveStep(const Step& step);

  // A group was preempted.
  void CountPreemption(bool is_swap);

  // How long steps take.
  const StepCost& steps() const { return steps_; }

  // Tokens that a step of num_sequences decoding sequences has room for.
  int64_t SpareTokens(int32_t num_sequences) const { return steps_.SpareTokens(num_sequences); }

  // What a group has computed.
  struct Work {
    int64_t num_tokens = 0;     // >= 1
    int64_t num_blocks = 0;     // >= 1
    bool is_in_slices = false;  // recomputed in slices
  };
  // What runs and is delayed.
  struct Load {
    int32_t num_sequences = 0;                                        // >= 1
    int32_t num_used_blocks = 0;                                      // >= 1
    int32_t num_prompt_tokens = std::numeric_limits<int32_t>::max();  // that a step can recompute
  };
  struct Way {
    bool is_swap = false;
    double micros = 0;
  };
  // The cheaper way to take the blocks and to bring the work back.
  Way Cheapest(const Work& work, const Load& load) const;

  // Blocks that are free at once, while the groups that run take one by one: until they have grown
  // into them, blocks are idle.
  double OfIdleBlocks(int64_t num_blocks, const Load& load) const;

 private:
  // Of what was seen lately.
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
    double ordered_at = 0;  // by elapsed_, at the end of the step
  };

  // The cost of steps of so many sequences. It is computed once, for thousands of groups that are
  // weighed under one load.
  struct LoadCosts {
    int32_t num_sequences = 0;  // 0: not made since the last step
    int64_t spare_tokens = 0;
    double step_micros = 0;
    double micros_without_context = 0;
    double long_prompt_micros = 0;  // by which a long prompt makes the step longer
    double idle_micros = 0;         // as OfIdleStep
  };
  const LoadCosts& CostsOf(int32_t num_sequences) const;

  // What it costs that a sequence is idle for a step: the step would have served it, too.
  double OfIdleStep(int32_t num_sequences) const { return CostsOf(num_sequences).idle_micros; }
  double OfRecompute(const Work& work, const Load& load) const;
  double OfSwap(int64_t num_blocks, int32_t num_sequences) const;

  int32_t block_size_tokens_;
  StepCost steps_;
  MovingRatio recompute_;  // by which a step is longer, by token
  MovingRatio swap_;       // by which steps are longer, by block that goes or comes
  MovingRatio leave_;      // by which swap-outs outlast the step that orders them, by block
  double elapsed_ = 0;     // in steps
  std::deque<SwapOut> under_way_;
  mutable LoadCosts load_costs_;  // asked for last
  // Preemptions since the last one of either way.
  int32_t num_since_swap_ = 0;
  int32_t num_since_recompute_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREEMPTION_COST_H_
