// The rules of GenerateRequest.resume, and what becomes of it. A client may say anything: nothing
// that it has not been sent, or that ends its sequence, is taken for output.
//
// Sampling goes on behind the tokens (Request::resumed). Beam search and best_of > n start anew and
// send what the client lacks, since nothing of them was sent before their end.
//
// Thread safety: free functions of their arguments.
// Errors:        kInvalidArgument RESUME, MISSING_FIELD, CONFLICTING_FIELDS, TOKEN_ID_RANGE,
//                EXCEEDS_CAPACITY; kFailedPrecondition FINGERPRINT, CONTEXT. No message repeats
//                tokens or text of the user's.
#ifndef QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_
#define QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_

#include "absl/status/status.h"

#include "proto/v1/generation.pb.h"

#include "common/step/step_limits.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/text/text_budget.h"

namespace quire {

// Of resume.max_tokens, the length that a server before admitted. Before anything else is checked
// for which the context may be too small. REQUIRES: it is set.
absl::Status CheckResumedLength(const v1::GenerateRequest& message, const RequestRules& rules);

// Whether the context holds so many tokens, prompt and promised output.
absl::Status CheckPromisedLength(int64_t num_tokens, const RequestRules& rules);

// What can be said without the prompt. REQUIRES: all else of spec is set but the prompt.
absl::Status SetResume(const v1::GenerateRequest& message,
                       const RequestRules& rules,
                       GenerateSpec* spec);

// Whether blocks for the tokens that it brings could ever be there, before anything is done for
// them: the core, which counts prompt and output to come as well, would refuse it later. OK while
// nothing is known of the blocks.
absl::Status CheckResumedFit(const Request& request, const StepLimits& limits);

// The rest, once the prompt is set; the text of the tokens is made again, as long as stop_check
// says OK. O(bytes of the text).
absl::Status ReplayResumed(const StopCheck& stop_check, GenerateSpec* spec);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_RESUME_CHECK_H_
