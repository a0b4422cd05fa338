// The step codec turns StepPlan and StepResult into their messages and back. Columns of numbers are
// packed fixed32, so that both directions copy arrays; a steady decode costs 12 bytes a sequence.
//
// Decoding checks structure: columns of equal length, counts that add up, numbers that fit their
// types. StepPlanChecker checks what the numbers mean.
//
// Thread safety: free functions, safe from any thread.
// Errors:        kInvalidArgument, reason MALFORMED_PROTO, message "field: rule (got X, limit Y)".
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

// Returns the plan with the digest that the peer sent; the caller must check that it matches.
absl::StatusOr<StepPlan> DecodePlan(const v1::StepRequest& request);

void EncodeResult(const StepResult& result, v1::StepResponse* response);

// Returns the digest of every field except result_digest. The two must be equal.
uint64_t DigestOf(const v1::StepResponse& response);

absl::StatusOr<StepResult> DecodeResult(const v1::StepResponse& response);

}  // namespace quire

#endif  // QUIRE_COMMON_WIRE_STEP_CODEC_H_
