// CompletionEstimate says how long a request will wait and compute, from how long steps took
// (StepCost), how long outputs lately were, and what became of what it said before. It has no
// clock: the same events lead to the same estimates.
//
// It is for refusing what cannot be had in time, so where it knows nothing it says 0, and in doubt
// less than it will be:
//   - an output is taken to be as long as three of four outputs of such a max_tokens lately were at
//     least (OutputLengths). max_tokens alone is what a client allows, not what it expects: whoever
//     leaves it at the length of the context is not refused for that;
//   - a step larger than any that was seen takes no longer than the longest that was;
//   - a prompt takes a step for each time that it fills what a step has for prompts;
//   - sequences end, one after the other, at the rate at which a full batch of such outputs ends.
//
// What runs at the edge of its deadline fails by any error. So the time to compute is multiplied by
// a margin, which grows with each request that was started on an estimate and came too late, and
// shrinks with each that came in time, by a fortieth of that: about one in forty is late. Each
// class of max_tokens has its own. The time to wait has a margin of its own, of which about one in
// five hundred is too late at its turn: to say no at once is worth more than a long queue.
//
// Thread safety: not thread-safe; owned by CoreState.
// Units:         microseconds.
// Cost:          O(buckets of StepCost); OnEnd that of OutputLengths.
// Source:        the margin is additive increase and decrease of a quantile's stochastic
//                approximation, Robbins and Monro 1951.
#ifndef QUIRE_SCHEDULER_CORE_COMPLETION_ESTIMATE_H_
#define QUIRE_SCHEDULER_CORE_COMPLETION_ESTIMATE_H_

#include <array>
#include <cstdint>
#include <limits>

#include "common/step/step_limits.h"
#include "scheduler/core/output_lengths.h"
#include "scheduler/core/step_cost.h"

namespace quire {

class CompletionEstimate {
 public:
  CompletionEstimate() { run_margins_.fill(1); }

  static constexpr double kMarginOfMiss = 0.1;     // by which a margin grows
  static constexpr double kMarginOfMeet = 0.0025;  // by which that of computing shrinks
  static constexpr double kMarginOfTurn = 0.0002;  // by which that of waiting shrinks
  static constexpr double kMaxRunMargin = 2;
  static constexpr double kOtherLength = 1.5;  // by which an estimate is another one
  static constexpr double kMaxWaitMargin = 4;

  // Sequences, and what is to be computed of their prompts.
  struct Work {
    double num_sequences = 0;
    double num_prompt_tokens = 0;
  };

  // What is under way besides a request.
  struct Load {
    double num_running = 0;  // sequences, those in host memory included
    Work ahead;              // waits, and will be served before
    Work waiting;            // all that waits
    // What a step has for prompts while they run. > 0
    double num_prompt_tokens_by_step = std::numeric_limits<double>::infinity();
  };

  // See OutputLengths. Where that makes outputs half as long again as before, or as short, the
  // margin of those begins anew: it was learnt with other estimates.
  void OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole);

  // A request that waited has its turn: whether its deadline can still be met.
  void OnTurn(bool is_in_time);

  // A request of so many max_tokens that was started: whether its deadline was met. One that was
  // never expected to meet it says nothing when it does not.
  void OnDeadline(int32_t max_tokens, bool is_met);

  // Whether enough outputs were seen to say how long others take.
  bool is_known() const { return lengths_.is_known(); }

  // How long a request waits behind the load, until it starts, with the margin.
  double WaitMicros(const Work& own,
                    const Load& load,
                    const StepCost& steps,
                    const StepLimits& limits) const;

  // How long it then computes, with the margin.
  double RunMicros(const Work& own,
                   int32_t max_tokens,
                   const Load& load,
                   const StepCost& steps,
                   const StepLimits& limits) const;

 private:
  // What steps cost when the load is as it is.
  struct Batch {
    double num_slots = 1;        // sequences that run side by side at the most
    double step_micros = 0;      // of a step that only decodes
    double micros_by_token = 0;  // what a token of a prompt adds to a step
  };
  Batch BatchOf(const Work& own,
                const Load& load,
                const StepCost& steps,
                const StepLimits& limits) const;

  // Of others. 0 while too few are known.
  double output_tokens() const { return lengths_.ExpectOfAny(); }

  OutputLengths lengths_;
  double& RunMargin(int32_t max_tokens) {
    return run_margins_.at(OutputLengths::ClassOf(max_tokens));
  }

  std::array<double, OutputLengths::kNumClasses> run_margins_;
  double wait_margin_ = 1;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_COMPLETION_ESTIMATE_H_
