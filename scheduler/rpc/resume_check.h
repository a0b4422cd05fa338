// Checks GenerateRequest.resume and applies it to the request. The client is not trusted: output
// that no server could have sent, or that would have ended its sequence, is refused.
//
// Sampling goes on after the resumed tokens (Request::resumed). Beam search and best_of > n send
// nothing before their end, so they start anew and then send what the client lacks.
//
// Thread safety: free functions of their arguments.
// Errors:        kInvalidArgument RESUME, MISSING_FIELD, CONFLICTING_FIELDS, TOKEN_ID_RANGE,
//                EXCEEDS_CAPACITY; kFailedPrecondition FINGERPRINT, CONTEXT. No message repeats
//                user text or a valid token.
#ifndef QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_
#define QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_

#include "absl/status/status.h"

#include "proto/v1/generation.pb.h"

#include "common/step/step_limits.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/text/text_budget.h"

namespace quire {

// Checks resume.max_tokens, which an earlier server admitted. Call it first: other checks answer
// INVALID_ARGUMENT if only this server's context is too small. REQUIRES: resume.max_tokens is set.
absl::Status CheckResumedLength(const v1::GenerateRequest& message, const RequestRules& rules);

// Returns OK if the context holds num_tokens of prompt and promised output.
absl::Status CheckPromisedLength(int64_t num_tokens, const RequestRules& rules);

// Checks and sets what needs no prompt. REQUIRES: spec is complete except for the prompt.
absl::Status SetResume(const v1::GenerateRequest& message,
                       const RequestRules& rules,
                       GenerateSpec* spec);

// Returns OK if the pool could ever hold the resumed tokens, or if its size is unknown. The core
// counts the prompt and further output too, but only after the costly replay.
absl::Status CheckResumedFit(const Request& request, const StepLimits& limits);

// Does the rest, once the prompt is set: rebuilds the text of the resumed tokens while stop_check
// returns OK. O(bytes of the text).
absl::Status ReplayResumed(const StopCheck& stop_check, GenerateSpec* spec);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_
