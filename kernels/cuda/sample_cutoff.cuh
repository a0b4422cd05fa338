// Top-k and top-p: finds the cutoff, the lowest rank that is kept. sample.cu says how.
//
// All threads of the CTA call a function together.
#ifndef QUIRE_KERNELS_CUDA_SAMPLE_CUTOFF_CUH_
#define QUIRE_KERNELS_CUDA_SAMPLE_CUTOFF_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/cta_integers.cuh"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/sample_candidates.cuh"
#include "kernels/cuda/sample_masses.cuh"
#include "kernels/cuda/sample_row.cuh"

namespace quire::gpu {

QUIRE_DEVICE bool HasTopK(const SampleRow& params, int32_t vocab_size) {
  return params.top_k > 0 && params.top_k < vocab_size;
}

// Returns the rank (RankOf) at which the limit is reached: tokens of this rank or a greater one are
// kept. For each segment (a warp's part of the row), stores the mass of the segment's kept tokens.
QUIRE_DEVICE uint64_t FindCutoff(const LogitRow& row,
                                 const Distribution& distribution,
                                 const Limit& limit,
                                 SampleWorkspace* workspace) {
  BuildHistogram(row, distribution, limit.kind, workspace, [&](TokenId, float logit) {
    return distribution.BinOf(logit);
  });
  const Found bin = FindBin(limit, kNumBins, workspace);
  if (bin.index >= kNumBins - 1) {
    // The limit is not reached before the last bin. So all tokens can be kept: tokens of the last
    // bin have mass 0, and Draw never returns such a token.
    StoreSegments(Collect(
                      row,
                      distribution,
                      workspace,
                      [](float) { return true; },
                      [](TokenId, float) { return false; }),
                  workspace);
    return 0;
  }

  const Limit within = {limit.kind, limit.value - bin.before};
  const auto begin = static_cast<float>(bin.index);
  const auto is_in_bin = [&](float logit) {
    const float position = distribution.BinPosition(logit);
    return begin <= position && position < begin + 1.0F;
  };
  const uint64_t sum = Collect(
      row,
      distribution,
      workspace,
      [&](float logit) { return distribution.BinPosition(logit) < begin; },
      [&](TokenId, float logit) { return is_in_bin(logit); });
  if (!CandidatesOverflow(workspace)) {
    const int32_t count = SortCandidates(workspace);
    const int32_t last =
        within.kind == LimitKind::kCount
            ? static_cast<int32_t>(within.value) - 1
            : FindReached(count, within.value, &workspace->scratch, [&](int32_t i) {
                return distribution.MassOf(LogitOf(workspace->candidates[i]));
              }).index;
    StoreSegments(sum, workspace);
    AddCandidatesToSegments(last + 1, row, distribution, workspace);
    return workspace->candidates[last];
  }

  const uint64_t cutoff = FindCutoffByDigits(row, distribution, within, workspace, is_in_bin);
  uint64_t kept = 0;
  ForEachToken(row, [&](TokenId token_id, float logit) {
    kept += RankOf(logit, token_id) >= cutoff ? distribution.MassOf(logit) : 0;
  });
  StoreSegments(kept, workspace);
  return cutoff;
}

// Returns the least integer mass that is at least top_p * total.
QUIRE_DEVICE uint64_t NucleusMass(float top_p, uint64_t total) {
  return static_cast<uint64_t>(ceil(static_cast<double>(top_p) * static_cast<double>(total)));
}

// Collects a short list of the likeliest tokens, and sets *cutoff to the cutoff of top-k and top-p
// together. Stores the masses of segments, as FindCutoff does. Returns false if top_k exceeds the
// number of thread groups, or if the list overflows or does not hold the cutoff.
QUIRE_DEVICE bool FindCutoffInShortList(const LogitRow& row,
                                        const Distribution& distribution,
                                        const SampleRow& params,
                                        uint64_t best_rank,
                                        SampleWorkspace* workspace,
                                        uint64_t* cutoff) {
  const bool has_top_k = HasTopK(params, row.vocab_size);
  const auto num_groups = static_cast<int32_t>(blockDim.x) / kGroupThreads;
  const int32_t wanted = has_top_k ? params.top_k : num_groups * 3 / 4;
  if (wanted > num_groups) {
    return false;
  }
  const float bound = BoundOfLikeliest(wanted, best_rank, workspace);
  const uint64_t sum = Collect(
      row,
      distribution,
      workspace,
      [&](float) { return !has_top_k; },
      [&](TokenId, float logit) { return logit >= bound; });
  StoreSegments(sum, workspace);
  if (CandidatesOverflow(workspace)) {
    return false;
  }
  const int32_t count = SortCandidates(workspace);
  const auto mass_of = [&](int32_t i) {
    return distribution.MassOf(LogitOf(workspace->candidates[i]));
  };
  int32_t num_kept = has_top_k ? params.top_k : count;
  if (params.top_p < 1.0F) {
    uint64_t total = TotalOfSegments(workspace);
    if (has_top_k) {
      uint64_t kept = 0;
      for (auto i = static_cast<int32_t>(threadIdx.x); i < num_kept;
           i += static_cast<int32_t>(blockDim.x)) {
        kept += mass_of(i);
      }
      total = CtaSumOf(kept, &workspace->scratch);
    }
    const Found last =
        FindReached(num_kept, NucleusMass(params.top_p, total), &workspace->scratch, mass_of);
    if (last.index == num_kept) {
      return false;
    }
    num_kept = last.index + 1;
  }
  StoreSegments(0, workspace);
  AddCandidatesToSegments(num_kept, row, distribution, workspace);
  *cutoff = workspace->candidates[num_kept - 1];
  return true;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_SAMPLE_CUTOFF_CUH_
