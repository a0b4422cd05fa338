// Draws a token from the tokens that the cutoff keeps.
//
// All threads of the CTA call a function together.
// Source: Salmon et al. 2011 (Philox).
#ifndef QUIRE_KERNELS_CUDA_SAMPLE_DRAW_CUH_
#define QUIRE_KERNELS_CUDA_SAMPLE_DRAW_CUH_

#include <cstdint>

#include "kernels/cuda/cta_integers.cuh"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/sample_cutoff.cuh"
#include "kernels/cuda/sample_masses.cuh"
#include "kernels/cuda/sample_row.cuh"

namespace quire::gpu {

// Adds up the masses of kept tokens by ascending id. Returns the first token at which the sum
// exceeds u * total, where u = word * 2^-32, and total is the mass of all kept tokens. Masses are
// integers, so the sum exceeds u * total when it reaches floor(u * total) + 1.
QUIRE_DEVICE TokenId Draw(const LogitRow& row,
                          const Distribution& distribution,
                          uint64_t cutoff,
                          uint32_t word,
                          SampleWorkspace* workspace) {
  const uint64_t total = TotalOfSegments(workspace);
  const uint64_t high = total >> 32;
  const uint64_t low = total & 0xFFFFFFFF;
  const uint64_t reach = word * high + (word * low >> 32) + 1;
  const Found segment = FindReached(
      static_cast<int32_t>(blockDim.x) / kWarpSize, reach, &workspace->scratch, [&](int32_t i) {
        return workspace->segments.Get(i);
      });
  const int32_t first = segment.index * row.quads_per_segment * 4;
  const int32_t length = row.quads_per_segment * 4;
  const int32_t count = row.vocab_size - first < length ? row.vocab_size - first : length;
  const Found token =
      FindReached(count, reach - segment.before, &workspace->scratch, [&](int32_t i) {
        const float logit = row.logits[first + i];
        return RankOf(logit, first + i) >= cutoff ? distribution.MassOf(logit) : 0;
      });
  return first + token.index;
}

QUIRE_DEVICE TokenId SampleToken(const LogitRow& row,
                                 const SampleRow& params,
                                 const Scan& scan,
                                 float max_logit,
                                 SampleWorkspace* workspace) {
  const Distribution distribution = {max_logit, kLog2E / params.temperature, params.min_p};
  const bool has_top_k = HasTopK(params, row.vocab_size);
  const bool has_top_p = params.top_p < 1.0F;
  uint64_t cutoff = 0;
  if (!has_top_k && !has_top_p) {
    uint64_t sum = 0;
    ForEachToken(row, [&](TokenId, float logit) { sum += distribution.MassOf(logit); });
    StoreSegments(sum, workspace);
  } else if (!FindCutoffInShortList(
                 row, distribution, params, scan.best_rank, workspace, &cutoff)) {
    // First top-k, then top-p of the tokens that top-k keeps. This is a loop with a single call of
    // FindCutoff, since each call site inlines much code.
    for (int filter = has_top_k ? 0 : 1; filter < (has_top_p ? 2 : 1); ++filter) {
      const Limit limit =
          filter == 0
              ? Limit{LimitKind::kCount, static_cast<uint64_t>(params.top_k)}
              : Limit{LimitKind::kMass, NucleusMass(params.top_p, TotalOfSegments(workspace))};
      cutoff = FindCutoff(row, distribution, limit, workspace);
    }
  }
  const PhiloxWords words =
      Philox4x32(params.seed, {{0, static_cast<uint32_t>(params.token_index), 0, 0}});
  return Draw(row, distribution, cutoff, words.word[0], workspace);
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_SAMPLE_DRAW_CUH_
