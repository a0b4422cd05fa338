// CompletionEstimate estimates how long a request will wait and compute, from recent step times
// (StepCost), recent output lengths, and the outcome of its earlier estimates. It has no clock: the
// same events lead to the same estimates.
//
// The estimate serves to refuse requests that would be late. If it were too high, requests that
// could be in time would be refused. So the estimate is 0 while nothing is known, and tends to be
// too low later. It assumes the following:
//   - an output is as long as the lower quartile of recent outputs with a similar max_tokens
//     (OutputLengths). max_tokens is only an upper bound: a client that leaves max_tokens at the
//     length of the context expects no output of that length, and must not be refused for it;
//   - a step larger than any that was seen takes as long as the largest step seen;
//   - a prompt adds one step for every Load::num_prompt_tokens_by_step of its tokens; the remainder
//     is computed in steps that other sequences need anyway;
//   - sequences end one after the other: in a full batch of n sequences, one of them ends every
//     (expected length / n) steps.
//
// The time to compute is multiplied by a margin, the run margin. Without the margin, a request that
// can only just meet its deadline would be late after any underestimate. Each request that was
// admitted by an estimate and ended late raises the margin. Each request that ended in time lowers
// the margin by a fortieth of that raise, so about one request in forty is late. Each class of
// max_tokens (OutputLengths) has its own run margin. The time to wait is multiplied by the wait
// margin, which is learned in the same way. The wait margin falls more slowly, so that only about
// one queued request in five hundred reaches the head of the queue too late: a refusal is better
// than a long wait in vain.
//
// Thread safety: not thread-safe; owned by CoreState.
// Units:         microseconds.
// Cost:          O(buckets of StepCost); OnEnd costs as much as OutputLengths::OnEnd.
// Source:        the margin is a stochastic approximation of a quantile by fixed steps up and
//                down, Robbins and Monro 1951.
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

  static constexpr double kMissRaises = 0.1;     // a late request raises a margin by this
  static constexpr double kMeetLowers = 0.0025;  // a request in time lowers a run margin by this
  static constexpr double kTurnLowers = 0.0002;  // a request in time lowers wait_margin_ by this
  static constexpr double kMaxRunMargin = 2;
  // A run margin is reset if the expected length of its class changes by more than this factor.
  static constexpr double kOtherLength = 1.5;
  static constexpr double kMaxWaitMargin = 4;

  // A number of sequences, and the number of their prompt tokens that must be computed.
  struct Work {
    double num_sequences = 0;
    double num_prompt_tokens = 0;
  };

  // The work of other requests.
  struct Load {
    double num_running = 0;  // running and swapped sequences
    Work ahead;              // waiting work that will be served before the request
    Work waiting;            // all waiting work
    // Number of prompt tokens that fit into a step while num_running sequences run. REQUIRES: > 0.
    double num_prompt_tokens_by_step = std::numeric_limits<double>::infinity();
  };

  // Records the length of an output: see OutputLengths. Resets the run margin of the class of
  // max_tokens if the expected length of that class changes by more than a factor of kOtherLength.
  // The old margin was learned with estimates that no longer hold.
  void OnEnd(int32_t num_tokens, int32_t max_tokens, bool is_whole);

  // Called when a waiting request is next to start. is_in_time: the request can still meet its
  // deadline.
  void OnTurn(bool is_in_time);

  // Called when a started request has ended. is_met: the request met its deadline. Not called if
  // the request missed its deadline as estimated, because such a miss shows no error of the
  // estimates.
  void OnDeadline(int32_t max_tokens, bool is_met);

  // Returns true once enough outputs were seen to estimate the length of an output.
  bool is_known() const { return lengths_.is_known(); }

  // Time that a request with the work `own` waits behind the load until it starts, wait margin
  // included.
  double WaitMicros(const Work& own,
                    const Load& load,
                    const StepCost& steps,
                    const StepLimits& limits) const;

  // Time that the request takes from its start to its end, run margin included.
  double RunMicros(const Work& own,
                   int32_t max_tokens,
                   const Load& load,
                   const StepCost& steps,
                   const StepLimits& limits) const;

 private:
  // Size and step times of a batch under a load.
  struct Batch {
    double num_slots = 1;        // upper bound on the sequences that run side by side
    double step_micros = 0;      // time of a step that only decodes
    double micros_by_token = 0;  // time that a prompt token adds to a step
  };
  Batch BatchOf(const Work& own,
                const Load& load,
                const StepCost& steps,
                const StepLimits& limits) const;

  // Expected output length of other sequences; 0 while too few outputs were seen.
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
