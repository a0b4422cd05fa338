// Checks GenerateRequest.resume and applies it to the request. The client is not trusted: output
// that no server could have sent, or that would have ended its sequence, is refused.
//
// Sampling continues after the resumed tokens (Request::resumed). Beam search and best_of > n send
// nothing before their end, so they start anew and then send the output that the client lacks.
//
// Thread safety: pure functions, safe from any thread.
// Errors:        kInvalidArgument RESUME, MISSING_FIELD, CONFLICTING_FIELDS, TOKEN_ID_RANGE,
//                EXCEEDS_CAPACITY; kFailedPrecondition FINGERPRINT, CONTEXT. No error message
//                repeats user text or a valid token.
#ifndef QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_
#define QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_

#include "absl/status/status.h"

#include "proto/v1/generation.pb.h"

#include "common/step/step_limits.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/text/text_budget.h"

namespace quire {

// Checks resume.max_tokens, the limit that an earlier server accepted. The error is CONTEXT if this
// server's context is too small for that limit. REQUIRES: called before the other checks, which
// would answer INVALID_ARGUMENT instead.
// REQUIRES: resume.max_tokens is set.
absl::Status CheckResumedLength(const v1::GenerateRequest& message, const RequestRules& rules);

// Returns OK if num_tokens tokens, prompt plus resume.max_tokens, fit this server's context.
absl::Status CheckPromisedLength(int64_t num_tokens, const RequestRules& rules);

// Checks all parts of `resume` that do not depend on the prompt, and sets them in *spec. REQUIRES:
// *spec is complete except for the prompt.
absl::Status SetResume(const v1::GenerateRequest& message,
                       const RequestRules& rules,
                       GenerateSpec* spec);

// Returns OK if an empty KV pool has room for the resumed tokens, or if the pool's size is unknown.
// The core checks the whole request later, but only after ReplayResumed, which is costly.
absl::Status CheckResumedFit(const Request& request, const StepLimits& limits);

// Rebuilds the text of the resumed tokens. If stop_check fails, ends the replay and returns the
// error of stop_check. REQUIRES: the prompt is set. Cost: O(bytes of the text).
absl::Status ReplayResumed(const StopCheck& stop_check, GenerateSpec* spec);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_
