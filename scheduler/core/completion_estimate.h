// CompletionEstimate estimates how long a request will wait and compute, from recent step times
// (StepCost), recent output lengths, and the outcome of its earlier estimates. It has no clock: the
// same events lead to the same estimates.
//
// The estimate serves to refuse requests that would be late, so it is 0 while nothing is known, and
// low in doubt:
//   - an output is as long as the lower quartile of recent outputs with a similar max_tokens
//     (OutputLengths). max_tokens alone is what a client allows, not what it expects: a client that
//     leaves it at the length of the context is not refused for that;
//   - a step larger than any that was seen takes as long as the largest one;
//   - a prompt takes one step for each time that it fills a step's room for prompt tokens;
//   - sequences end, one after the other, at the rate at which a full batch of such outputs ends.
//
// For a request at the edge of its deadline any error is too much, so the time to compute is
// multiplied by a margin. The margin grows with each request that started on an estimate and was
// late. It shrinks by a fortieth of that with each that was in time, so about one in forty is late.
// Each class of max_tokens has its own margin. The time to wait has a separate margin, with which
// about one in five hundred is too late at its turn: an early refusal is better than a long wait.
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

  static constexpr double kMissRaises = 0.1;     // by which a late request raises a margin
  static constexpr double kMeetLowers = 0.0025;  // by which a request in time lowers a run margin
  static constexpr double kTurnLowers = 0.0002;  // by which a request in time lowers wait_margin_
  static constexpr double kMaxRunMargin = 2;
  // The run margin is reset if the expected length changes by more than this factor.
  static constexpr double kOtherLength = 1.5;
  static constexpr double kMaxWaitMargin = 4;

  // Sequences, and the tokens of their prompts that are to be computed.
  struct Work {
    double num_sequences = 0;
    double num_prompt_tokens = 0;
  };

  // The work of other requests.
  struct Load {
    double num_running = 0;  // sequences, swapped ones included
    Work ahead;              // waiting work that will be served before the request
    Work waiting;            // all waiting work
    // Prompt tokens that a step has room for while num_running sequences run. > 0
    double num_prompt_tokens_by_step = std::numeric_limits<double>::infinity();
  };

  // Records the length of an output: see OutputLengths. If that changes the expected length by more
  // than kOtherLength, the class's margin is reset, because it was learned with other estimates.
  void OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole);

  // A waiting request has its turn. is_in_time: its deadline can still be met.
  void OnTurn(bool is_in_time);

  // A started request has ended. is_met: it met its deadline. A request that was not expected to
  // meet its deadline, and missed it, is not reported: that says nothing about the estimates.
  void OnDeadline(int32_t max_tokens, bool is_met);

  // Returns true once enough outputs were seen to estimate the length of others.
  bool is_known() const { return lengths_.is_known(); }

  // Time that a request waits behind the load until it starts, margin included.
  double WaitMicros(const Work& own,
                    const Load& load,
                    const StepCost& steps,
                    const StepLimits& limits) const;

  // Time that the request computes from its start to its end, margin included.
  double RunMicros(const Work& own,
                   int32_t max_tokens,
                   const Load& load,
                   const StepCost& steps,
                   const StepLimits& limits) const;

 private:
  // Cost of steps under the present load.
  struct Batch {
    double num_slots = 1;        // sequences that run side by side, at most
    double step_micros = 0;      // time of a step that only decodes
    double micros_by_token = 0;  // time that a prompt token adds to a step
  };
  Batch BatchOf(const Work& own,
                const Load& load,
                const StepCost& steps,
                const StepLimits& limits) const;

  // Expected output length of other sequences; 0 while too few are known.
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
