// OutputProcessor takes in the answer to a step: what was computed, which tokens are committed, who
// is finished. It is the only code that commits a token.
//
// A sequence ends by kStop when the token is one of the request's stop tokens and min_tokens tokens
// were there before it; the stop token itself is committed. Otherwise it ends by kLength at
// max_tokens, or when the model's context is full. A row of logits that is not finite, or one with
// such a log-probability where they are asked for, commits nothing: its group is recomputed once,
// and when the same token fails again its sequence ends (with beam search the whole group).
//
// A group that came back from host memory without all of its blocks is recomputed: what it sampled
// is not looked at. The answers of the others stand.
//
// Thread safety: free functions; the state is not thread-safe.
#ifndef QUIRE_SCHEDULER_CORE_OUTPUT_PROCESSOR_H_
#define QUIRE_SCHEDULER_CORE_OUTPUT_PROCESSOR_H_

#include "absl/status/status.h"

#include "common/step/step_result.h"
#include "scheduler/core/core_state.h"

namespace quire {

// Whether the result answers the unanswered step. Errors: kInvalidArgument, reason STEP_RESULT.
absl::Status CheckResult(const CoreState& state, const StepResult& result);

// REQUIRES: CheckResult is ok.
void ProcessResult(CoreState& state, const StepResult& result);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_OUTPUT_PROCESSOR_H_
