// Applies bias, bans and penalties to the logits of single tokens before a row is sampled.
//
// All threads of the CTA call AdjustRow and RawLogit together.
#ifndef QUIRE_KERNELS_CUDA_SAMPLE_ADJUST_CUH_
#define QUIRE_KERNELS_CUDA_SAMPLE_ADJUST_CUH_

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/sample_row.cuh"

namespace quire::gpu {

QUIRE_DEVICE float AdjustedLogit(float logit,
                                 const LogitAdjustment& adjustment,
                                 const SampleRow& params) {
  logit += adjustment.bias;
  if (adjustment.in_context != 0) {
    logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  }
  if (adjustment.output_count > 0) {
    logit -= params.frequency_penalty * static_cast<float>(adjustment.output_count) +
             params.presence_penalty;
  }
  return logit;
}

// Changes the row in place, and overwrites each adjustment's bias with the token's raw logit.
// Returns the number of finite logits that this thread set to -infinity (banned). The caller must
// pass this number to Summarize. Otherwise Summarize would count these logits as faults.
QUIRE_DEVICE uint32_t AdjustRow(float* logits,
                                LogitAdjustment* adjustments,
                                const SampleRow& params) {
  uint32_t num_banned = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < params.num_adjustments;
       i += static_cast<int32_t>(blockDim.x)) {
    LogitAdjustment& adjustment = adjustments[i];
    float& logit = logits[adjustment.token_id];
    const float raw = logit;
    logit = AdjustedLogit(raw, adjustment, params);
    adjustment.bias = raw;
    num_banned += fabsf(raw) <= FLT_MAX && logit == -INFINITY ? 1 : 0;
  }
  __syncthreads();
  return num_banned;
}

// Returns the logit that a token had before AdjustRow. shared: one float of shared memory.
QUIRE_DEVICE float RawLogit(const LogitRow& row,
                            const LogitAdjustment* adjustments,
                            const SampleRow& params,
                            TokenId token_id,
                            float* shared) {
  if (threadIdx.x == 0) {
    *shared = row.logits[token_id];
  }
  __syncthreads();
  for (auto i = static_cast<int32_t>(threadIdx.x); i < params.num_adjustments;
       i += static_cast<int32_t>(blockDim.x)) {
    if (adjustments[i].token_id == token_id) {
      *shared = adjustments[i].bias;
    }
  }
  __syncthreads();
  return *shared;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_SAMPLE_ADJUST_CUH_
