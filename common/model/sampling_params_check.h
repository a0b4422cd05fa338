// Validate refuses sampling parameters that are out of range. The public service calls it, and the
// worker calls it again.
//
// Thread safety: any thread.
#ifndef QUIRE_COMMON_MODEL_SAMPLING_PARAMS_CHECK_H_
#define QUIRE_COMMON_MODEL_SAMPLING_PARAMS_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"

#include "common/model/sampling_params.h"

namespace quire {

// Errors: kInvalidArgument, reason TEMPERATURE_RANGE, TOP_P_RANGE, TOP_K_RANGE, MIN_P_RANGE,
// PENALTY_RANGE, LOGPROBS_RANGE, LOGIT_BIAS, NO_TOKEN_ALLOWED or TOKEN_ID_RANGE.
absl::Status Validate(const SamplingParams& params, int32_t vocab_size);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_SAMPLING_PARAMS_CHECK_H_
