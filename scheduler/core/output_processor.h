// OutputProcessor takes in the answer to a step: it counts computed tokens, commits sampled tokens
// and ends sequences. No other code commits a token.
//
// A sequence ends with kStop if its new token is a stop token of the request, and at least
// min_tokens tokens precede it; the stop token itself is committed. Otherwise the sequence ends
// with kLength at max_tokens, or when the model's context is full. No token is committed if its
// logits are non-finite, or if the request asked for log-probabilities and these are non-finite.
// Instead the group is recomputed once. If the same token fails again, the sequence ends (with beam
// search the whole group).
//
// A group that came back from host memory without all of its blocks is recomputed, and its sampled
// tokens are ignored. The sampled tokens of other groups are committed as usual.
//
// Thread safety: free functions on the thread that owns the state.
#ifndef QUIRE_SCHEDULER_CORE_OUTPUT_PROCESSOR_H_
#define QUIRE_SCHEDULER_CORE_OUTPUT_PROCESSOR_H_

#include "absl/status/status.h"

#include "common/step/step_result.h"
#include "scheduler/core/core_state.h"

namespace quire {

// Checks that the result answers the unanswered step. Errors: kInvalidArgument, reason STEP_RESULT.
absl::Status CheckResult(const CoreState& state, const StepResult& result);

// Applies the result to the state. REQUIRES: CheckResult(state, result) is OK.
void ProcessResult(CoreState& state, const StepResult& result);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_OUTPUT_PROCESSOR_H_
