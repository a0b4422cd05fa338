// The step codec turns StepPlan and StepResult into their messages and back. Columns of numbers are
// packed fixed32, so that encoding and decoding copy arrays. A sequence that decodes one token and
// needs no new block takes 12 bytes of a step's message.
//
// Decoding checks structure: columns of equal length, counts that add up, numbers that fit their
// types. StepPlanChecker checks what the numbers mean.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument, reason MALFORMED_PROTO, message "field: rule (got X, expected
//                Y)". DecodeResult: also kDataLoss, reason DAMAGED, for a wrong digest.
// Cost:          O(numbers); encoding clears the message first and reuses its memory.
#ifndef QUIRE_COMMON_WIRE_STEP_CODEC_H_
#define QUIRE_COMMON_WIRE_STEP_CODEC_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "proto/v1/worker.pb.h"

#include "common/step/step_plan.h"
#include "common/step/step_result.h"

namespace quire {

// `request` may be allocated on an arena.
void EncodePlan(const StepPlan& plan, v1::StepRequest* request);

// Returns the plan with the digest that the peer sent. The caller must compare that digest with
// DigestOf(plan).
absl::StatusOr<StepPlan> DecodePlan(const v1::StepRequest& request);

void EncodeResult(const StepResult& result, v1::StepResponse* response);

// Returns the digest of every field except result_digest. EncodeResult sets result_digest to this
// digest, and DecodeResult refuses a response with another result_digest.
uint64_t DigestOf(const v1::StepResponse& response);

absl::StatusOr<StepResult> DecodeResult(const v1::StepResponse& response);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_STEP_CODEC_H_
