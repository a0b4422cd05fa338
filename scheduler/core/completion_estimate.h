// CompletionEstimate estimates how long a request will wait and compute, from recent step times
// (StepCost), recent output lengths, and the outcome of its earlier estimates. It has no clock: the
// same events lead to the same estimates.
//
// It serves to refuse requests that would be late, so it says 0 while it knows nothing, and in
// doubt it estimates low:
//   - an output is as long as the lower quartile of recent outputs of such a max_tokens
//     (OutputLengths). max_tokens alone is what a client allows, not what it expects: a client that
//     leaves it at the length of the context is not refused for that;
//   - a step larger than any that was seen takes as long as the largest one;
//   - a prompt takes a step for each time that it fills the room of a step for prompts;
//   - sequences end, one after the other, at the rate at which a full batch of such outputs ends.
//
// A request at the edge of its deadline fails by any error, so the time to compute is multiplied by
// a margin. It grows with each request that was started on an estimate and came too late, and
// shrinks with each that came in time, by a fortieth of that: about one in forty is late. Each
// class of max_tokens has its own margin. The time to wait has another, with which about one in
// five hundred is too late at its turn: an early refusal is worth more than a long queue.
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
  static constexpr double kMeetLowers = 0.0025;  // by which one in time lowers a run margin
  static constexpr double kTurnLowers = 0.0002;  // by which one in time lowers the wait margin
  static constexpr double kMaxRunMargin = 2;
  static constexpr double kOtherLength = 1.5;  // factor by which an expected length is a new one
  static constexpr double kMaxWaitMargin = 4;

  // Sequences, and the tokens of their prompts that are to be computed.
  struct Work {
    double num_sequences = 0;
    double num_prompt_tokens = 0;
  };

  // The work of other requests.
  struct Load {
    double num_running = 0;  // sequences, swapped ones included
    Work ahead;              // waits, and will be served before the request
    Work waiting;            // all that waits
    // Prompt tokens that a step has room for while those sequences run. > 0
    double num_prompt_tokens_by_step = std::numeric_limits<double>::infinity();
  };

  // Records the length of an output: see OutputLengths. If that changes the expected length by more
  // than kOtherLength, the margin is reset: it was learned with other estimates.
  void OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole);

  // A waiting request has its turn. is_in_time: its deadline can still be met.
  void OnTurn(bool is_in_time);

  // A started request has ended. is_met: by its deadline. A miss of a request that was never
  // expected to meet its deadline is not reported: it says nothing about the estimates.
  void OnDeadline(int32_t max_tokens, bool is_met);

  // Returns true once enough outputs were seen to estimate the length of others.
  bool is_known() const { return lengths_.is_known(); }

  // Time that a request waits behind the load until it starts, margin included.
  double WaitMicros(const Work& own,
                    const Load& load,
                    const StepCost& steps,
                    const StepLimits& limits) const;

  // Time that it then computes, margin included.
  double RunMicros(const Work& own,
                   int32_t max_tokens,
                   const Load& load,
                   const StepCost& steps,
                   const StepLimits& limits) const;

 private:
  // Cost of steps under the present load.
  struct Batch {
    double num_slots = 1;        // sequences that run side by side, at most
    double step_micros = 0;      // of a step that only decodes
    double micros_by_token = 0;  // that a prompt token adds to a step
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
