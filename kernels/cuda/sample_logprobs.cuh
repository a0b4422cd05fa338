// Log-probabilities of the sampled token and of the likeliest tokens, by the model's raw logits.
//
// All threads of the CTA call a function together.
#ifndef QUIRE_KERNELS_CUDA_SAMPLE_LOGPROBS_CUH_
#define QUIRE_KERNELS_CUDA_SAMPLE_LOGPROBS_CUH_

#include <cstdint>

#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/warp.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/sample_candidates.cuh"
#include "kernels/cuda/sample_masses.cuh"
#include "kernels/cuda/sample_row.cuh"

namespace quire::gpu {

// Returns log(sum(exp(logit - max_logit))).
QUIRE_DEVICE float LogSum(const Scan& scan, float max_logit, SampleWorkspace* workspace) {
  const float sum = scan.sum * Exp2((scan.best_logit - max_logit) * kLog2E);
  return Log(CtaSum(sum, workspace->float_scratch));
}

// Converts raw logits to log-probabilities.
struct Normalizer {
  float max_logit;
  float log_sum;

  QUIRE_DEVICE float LogprobOf(float logit) const {
    // Computed in double, because the difference of two logits can need more digits than fp32 has.
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max_logit) -
                              static_cast<double>(log_sum));
  }
};

QUIRE_DEVICE void WriteTopLogprobs(const SampleParams& args,
                                   const LogitRow& row,
                                   int32_t count,
                                   uint64_t best_rank,
                                   const Normalizer& normalizer,
                                   SampleWorkspace* workspace) {
  const Distribution unused = {};
  const float bound = BoundOfLikeliest(count, best_rank, workspace);
  Collect(
      row,
      unused,
      workspace,
      [](float) { return false; },
      [&](TokenId, float logit) { return logit >= bound; });
  if (CandidatesOverflow(workspace)) {
    const Limit limit = {LimitKind::kCount, static_cast<uint64_t>(count)};
    const uint64_t cutoff =
        FindCutoffByDigits(row, unused, limit, workspace, [](float) { return true; });
    Collect(
        row,
        unused,
        workspace,
        [](float) { return false; },
        [&](TokenId token_id, float logit) { return RankOf(logit, token_id) >= cutoff; });
  }
  SortCandidates(workspace);
  const int64_t first = int64_t{blockIdx.x} * args.top_logprobs_stride;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(blockDim.x)) {
    const uint64_t rank = workspace->candidates[i];
    args.top_logprobs[first + i] = {TokenOf(rank), normalizer.LogprobOf(LogitOf(rank))};
  }
  __syncthreads();
}

QUIRE_DEVICE void ClearTopLogprobs(const SampleParams& args, int32_t index, int32_t count) {
  const int64_t first = int64_t{index} * args.top_logprobs_stride;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(blockDim.x)) {
    args.top_logprobs[first + i] = {};
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_SAMPLE_LOGPROBS_CUH_
