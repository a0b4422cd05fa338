// Finds the likeliest tokens of a row without sorting the row: by a sorted short list, or by a
// search over the bits of the tokens' ranks. The head of sample.cu explains both.
//
// All threads of the CTA call a function together.
#ifndef QUIRE_KERNELS_CUDA_SAMPLE_CANDIDATES_CUH_
#define QUIRE_KERNELS_CUDA_SAMPLE_CANDIDATES_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/cta_integers.cuh"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/sample_masses.cuh"
#include "kernels/cuda/sample_row.cuh"

namespace quire::gpu {

inline constexpr int kGroupThreads = 4;  // threads of a thread group (BoundOfLikeliest)

// ---- The short list ----

QUIRE_DEVICE bool CandidatesOverflow(const SampleWorkspace* workspace) {
  return workspace->num_candidates > kMaxCandidates;
}

// Collects the ranks (RankOf) of all tokens for which is_candidate is true, in any order. Returns
// the summed mass (MassOf) of this thread's tokens for which is_summed is true.
template <typename IsSummed, typename IsCandidate>
QUIRE_DEVICE uint64_t Collect(const LogitRow& row,
                              const Distribution& distribution,
                              SampleWorkspace* workspace,
                              IsSummed is_summed,
                              IsCandidate is_candidate) {
  if (threadIdx.x == 0) {
    workspace->num_candidates = 0;
  }
  __syncthreads();
  uint64_t sum = 0;
  ForEachToken(row, [&](TokenId token_id, float logit) {
    if (is_summed(logit)) {
      sum += distribution.MassOf(logit);
    }
    if (is_candidate(token_id, logit)) {
      const uint32_t place = atomicAdd(&workspace->num_candidates, 1U);
      if (place < kMaxCandidates) {
        workspace->candidates[place] = RankOf(logit, token_id);
      }
    }
  });
  __syncthreads();
  return sum;
}

// Sorts the candidates, likeliest first. Returns their number. REQUIRES: !CandidatesOverflow.
QUIRE_DEVICE int32_t SortCandidates(SampleWorkspace* workspace) {
  const auto count = static_cast<int32_t>(workspace->num_candidates);
  int32_t padded_count = 1;
  while (padded_count < count) {
    padded_count *= 2;
  }
  for (int32_t i = count + static_cast<int32_t>(threadIdx.x); i < padded_count;
       i += static_cast<int32_t>(blockDim.x)) {
    workspace->candidates[i] = 0;
  }
  __syncthreads();
  SortDescending(workspace->candidates, padded_count);
  return count;
}

// The maximum of a thread group (kGroupThreads consecutive threads) is the greatest logit that its
// threads read. Returns the count-th greatest maximum. At least `count` tokens, and usually few
// more, have this logit or a greater one. Returns -infinity if fewer than `count` thread groups
// read a token that is not banned. best_rank: the greatest rank of this thread's tokens.
QUIRE_DEVICE float BoundOfLikeliest(int32_t count, uint64_t best_rank, SampleWorkspace* workspace) {
  const auto num_groups = static_cast<int32_t>(blockDim.x) / kGroupThreads;
  if (count > num_groups) {
    return -INFINITY;
  }
  for (int lane_mask = kGroupThreads / 2; lane_mask > 0; lane_mask /= 2) {
    const uint64_t other = __shfl_xor_sync(kWholeWarp, best_rank, lane_mask);
    best_rank = best_rank < other ? other : best_rank;
  }
  if (threadIdx.x % kGroupThreads == 0) {
    workspace->candidates[threadIdx.x / kGroupThreads] = best_rank;
  }
  __syncthreads();
  SortDescending(workspace->candidates, num_groups);
  const uint64_t rank = workspace->candidates[count - 1];
  __syncthreads();
  return rank == 0 ? -INFINITY : LogitOf(rank);
}

// ---- Limits ----

enum class LimitKind : uint8_t { kCount, kMass };

// How many tokens are kept. Tokens are kept in order, likeliest first, until their number (kCount)
// or their mass (kMass) reaches `value`.
struct Limit {
  LimitKind kind;
  uint64_t value;
};

QUIRE_DEVICE Found FindBin(const Limit& limit, int32_t num_bins, SampleWorkspace* workspace) {
  return FindReached(num_bins, limit.value, &workspace->scratch, [&](int32_t bin) {
    return workspace->bins.Get(bin);
  });
}

// Counts the tokens of each bin, or sums up their masses, as `kind` says. bin_of(token_id, logit)
// returns the token's bin, or -1 for a token to skip.
template <typename BinOf>
QUIRE_DEVICE void BuildHistogram(const LogitRow& row,
                                 const Distribution& distribution,
                                 LimitKind kind,
                                 SampleWorkspace* workspace,
                                 BinOf bin_of) {
  for (auto bin = static_cast<int32_t>(threadIdx.x); bin < kNumBins;
       bin += static_cast<int32_t>(blockDim.x)) {
    workspace->bins.Set(bin, 0);
  }
  __syncthreads();
  ForEachToken(row, [&](TokenId token_id, float logit) {
    const int32_t bin = bin_of(token_id, logit);
    if (bin >= 0) {
      const uint64_t value = kind == LimitKind::kCount ? 1 : distribution.MassOf(logit);
      if (value != 0) {
        workspace->bins.Add(bin, value);
      }
    }
  });
  __syncthreads();
}

// Goes through the tokens for which is_in_scope(logit) is true, likeliest first. Returns the rank
// (RankOf) of the token at which their number or mass reaches the limit. Finds eleven bits of this
// rank at a time.
template <typename IsInScope>
QUIRE_DEVICE uint64_t FindCutoffByDigits(const LogitRow& row,
                                         const Distribution& distribution,
                                         Limit limit,
                                         SampleWorkspace* workspace,
                                         IsInScope is_in_scope) {
  uint64_t prefix = 0;  // the bits of the cutoff found so far: cutoff >> shift
  int shift = 64;
  while (shift > 0) {
    const int digit_bits = shift < kDigitBits ? shift : kDigitBits;
    const int prefix_shift = shift;
    shift -= digit_bits;
    const int32_t greatest = (1 << digit_bits) - 1;  // bin 0 is for the greatest digit
    BuildHistogram(row, distribution, limit.kind, workspace, [&](TokenId token_id, float logit) {
      const uint64_t rank = RankOf(logit, token_id);
      const bool has_prefix = prefix_shift == 64 || rank >> prefix_shift == prefix;
      return is_in_scope(logit) && has_prefix
                 ? greatest - (static_cast<int32_t>(rank >> shift) & greatest)
                 : -1;
    });
    const Found bin = FindBin(limit, kNumBins, workspace);
    limit.value -= bin.before;
    prefix = prefix << digit_bits | static_cast<uint64_t>(greatest - bin.index);
  }
  return prefix;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_SAMPLE_CANDIDATES_CUH_
