// Sampling: one CTA a row, without sorting the row. The meaning is that of kernels/api/sampling.h.
//
// Mass: the probability of a token relative to the likeliest, in units of 2^-40, cut to an integer.
// Integers add up to the same in any order: sums over a row are the same bits whichever threads
// formed them, and histograms may use atomics. What is cut off is at most 2^-40 a token, 2^-23 of
// the total for 128k tokens, less than the error of one fp32 logit. Tokens below 2^-40 are never
// drawn; the random number of the draw has but 32 bits.
//
// Rank: a 64-bit integer for each token of a row, greater for the likelier, and for the lower id
// among equals. Ranks are distinct, so that top-k and top-p are each one number: the tokens of
// rank >= cutoff are kept, exactly as after a sort.
//
// Passes over the row:
//   1. Is it finite; the greatest logit, and that of each group of four threads; the sum of
//      exponentials where log-probabilities are wanted. Greedy rows are done.
//   2. Without top-k and top-p: the mass of each warp's segment of the row.
//      With them the short list: the k-th greatest of the groups' maxima is a bound that at least k
//      tokens reach, and hardly more than k. These are collected, sorted in shared memory and cut.
//      A nucleus must lie within the list; it does unless top_p is near 1 or the row is flat.
//      Then a search for u * total finds a segment, and reading that again, the token.
//   Where the short list does not reach, instead of 2:
//   2. A histogram in steps of 1/50 octave finds the bin that holds the cutoff.
//   3. The tokens of the bin are collected, sorted and cut, and the masses before it summed up.
//      Bins of more than kMaxCandidates tokens (ties; all logits within a hair) are searched by
//      the bits of the rank, eleven at a time: six passes, and one for the masses.
//   Top log-probabilities take one pass more, a short list of the raw row; a row that is adjusted
//   and wants log-probabilities takes pass 1 twice.
//
// Cost: 64 rows of 128256 are 33 MB and stay in the L2 cache. An SM reads about 64 bytes a clock
// from there: 513 kB are 8000 clocks, 4.7 us a pass at 1.7 GHz. The masses of pass 2 take about 12
// instructions a token, 12000 clocks, 7 us; a sort of 512 has 45 steps of some 40 ns. So greedy
// rows take 5 us, plain ones 13, top-k 50 with or without top-p 14, top-p alone 17, the histogram
// 30, whatever the number of rows up to one a multiprocessor. These are estimates, not measured.
// Rows that do not start at 16 bytes are read element by element.
//
// Source: Salmon et al. 2011 (Philox); Holtzman et al. 2020 (top-p); Batcher 1968 (bitonic sort).
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/cta_integers.cuh"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warp.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/philox.cuh"

namespace quire::gpu {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxSegments = kMaxThreads / kWarpSize;
constexpr int32_t kMaxCandidates = 4096;  // a power of two
constexpr int kGroupThreads = 4;          // that share one maximum of pass 1
constexpr int kUnroll = 4;                // 16-byte loads in flight a thread

constexpr float kMassOfLikeliest = 0x1p40F;
constexpr int kDigitBits = 11;
constexpr int kNumBins = 1 << kDigitBits;
// The last bin holds all from 41 octaves on, where masses are 0.
constexpr float kBinsPerOctave = 49.9F;

constexpr float kGreedyTemperature = 1e-5F;

// ---- Shared memory ----

// 64-bit sums by 32-bit atomics, which the hardware has for shared memory: a carry is known from
// what the low half was before.
template <int kCount>
struct MassSums {
  uint32_t low[kCount];
  uint32_t high[kCount];

  QUIRE_DEVICE uint64_t Get(int32_t i) const { return uint64_t{high[i]} << 32 | low[i]; }
  QUIRE_DEVICE void Set(int32_t i, uint64_t mass) {
    low[i] = static_cast<uint32_t>(mass);
    high[i] = static_cast<uint32_t>(mass >> 32);
  }
  QUIRE_DEVICE void Add(int32_t i, uint64_t mass) {
    const auto mass_low = static_cast<uint32_t>(mass);
    const uint32_t before = atomicAdd(&low[i], mass_low);
    const uint32_t carry = before + mass_low < before ? 1 : 0;
    const uint32_t mass_high = static_cast<uint32_t>(mass >> 32) + carry;
    if (mass_high != 0) {
      atomicAdd(&high[i], mass_high);
    }
  }
};

struct Workspace {
  uint64_t candidates[kMaxCandidates];  // ranks
  // Counts use low alone.
  MassSums<kNumBins> bins;
  MassSums<kMaxSegments> segments;  // mass of what is kept, by segment of the row
  CtaScratch scratch;
  float float_scratch[kWarpSize];
  uint32_t num_candidates;  // found; there may be more than fit
  float raw_logit;
};

// ---- The row ----

struct Row {
  const float* logits;
  int32_t vocab_size;
  bool is_aligned;  // to 16 bytes
  // Each warp reads a segment of consecutive tokens, in quads of four, one a lane. Which token is
  // whose depends on vocab_size alone.
  int32_t quads_per_segment;
};

QUIRE_DEVICE Row RowOf(const SampleArgs& args, int32_t index) {
  const float* logits = args.logits + index * args.row_stride;
  const auto num_warps = static_cast<int32_t>(blockDim.x) / kWarpSize;
  const int32_t quads = (args.vocab_size + 3) / 4;
  const int32_t per_warp = (quads + num_warps - 1) / num_warps;
  return {logits,
          args.vocab_size,
          reinterpret_cast<uintptr_t>(logits) % 16 == 0,
          (per_warp + kWarpSize - 1) / kWarpSize * kWarpSize};
}

// visit(token_id, logit), ids ascending, for this thread's tokens.
template <typename Visit>
QUIRE_DEVICE void ForEachToken(const Row& row, Visit visit) {
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpSize);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpSize);
  const int32_t begin = warp * row.quads_per_segment;
  const int32_t quads = (row.vocab_size + 3) / 4;
  const int32_t end = begin + row.quads_per_segment < quads ? begin + row.quads_per_segment : quads;
  const int32_t whole_quads = row.is_aligned ? row.vocab_size / 4 : 0;
  const int32_t whole_end = end < whole_quads ? end : whole_quads;

  int32_t quad = begin + lane;
  for (; quad + (kUnroll - 1) * kWarpSize < whole_end; quad += kUnroll * kWarpSize) {
    float logits[kUnroll][4];
    QUIRE_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      LoadVector(row.logits + 4 * (quad + u * kWarpSize), logits[u]);
    }
    QUIRE_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      QUIRE_UNROLL
      for (int e = 0; e < 4; ++e) {
        visit(4 * (quad + u * kWarpSize) + e, logits[u][e]);
      }
    }
  }
  for (; quad < end; quad += kWarpSize) {
    for (int32_t id = 4 * quad; id < 4 * quad + 4 && id < row.vocab_size; ++id) {
      visit(id, row.logits[id]);
    }
  }
}

// ---- Ranks ----

QUIRE_DEVICE uint64_t RankOf(float logit, TokenId token_id) {
  constexpr uint32_t kSign = uint32_t{1} << 31;
  const uint32_t bits = __float_as_uint(logit + 0.0F);  // -0 becomes 0
  const uint32_t key = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return uint64_t{key} << 32 | ~static_cast<uint32_t>(token_id);
}

QUIRE_DEVICE TokenId TokenOf(uint64_t rank) {
  return static_cast<TokenId>(~static_cast<uint32_t>(rank));
}

QUIRE_DEVICE float LogitOf(uint64_t rank) {
  constexpr uint32_t kSign = uint32_t{1} << 31;
  const auto key = static_cast<uint32_t>(rank >> 32);
  return __uint_as_float((key & kSign) != 0 ? key & ~kSign : ~key);
}

// ---- Masses ----

struct Distribution {
  float max_logit;
  float octaves_per_logit;
  float min_p;

  // Below the likeliest token.
  QUIRE_DEVICE float OctavesOf(float logit) const {
    return (max_logit - logit) * octaves_per_logit;
  }

  // 0: below min-p, or too small to be drawn.
  QUIRE_DEVICE uint64_t MassOf(float logit) const {
    const float weight = Exp2(-OctavesOf(logit));
    if (weight < min_p) {
      return 0;
    }
    const float mass = weight * kMassOfLikeliest;
    // Most are small, and conversion to 32 bits is the faster one.
    return mass < 0x1p32F ? uint64_t{static_cast<uint32_t>(mass)} : static_cast<uint64_t>(mass);
  }

  // Likelier tokens have lower positions. The integer part is the bin.
  QUIRE_DEVICE float BinPosition(float logit) const { return OctavesOf(logit) * kBinsPerOctave; }

  QUIRE_DEVICE int32_t BinOf(float logit) const {
    const float position = BinPosition(logit);
    return position < kNumBins - 1 ? static_cast<int32_t>(position) : kNumBins - 1;
  }
};

// ---- Pass 1 ----

// What one thread saw of the row.
struct Scan {
  uint64_t best_rank;  // 0: no token, or only banned ones
  float best_logit;
  float sum;  // of exponentials relative to best_logit
  uint32_t num_not_finite;
};

template <bool kWithSum>
QUIRE_DEVICE Scan ScanRow(const Row& row) {
  float best = -INFINITY;
  TokenId best_id = 0;
  float sum = 0.0F;
  uint32_t num_not_finite = 0;
  ForEachToken(row, [&](TokenId token_id, float logit) {
    num_not_finite += fabsf(logit) <= FLT_MAX ? 0 : 1;
    if (logit > best) {
      if constexpr (kWithSum) {
        sum = sum * Exp2((best - logit) * kLog2E) + 1.0F;
      }
      best = logit;
      best_id = token_id;
    } else if constexpr (kWithSum) {
      sum += Exp2((logit - best) * kLog2E);
    }
  });
  return {best == -INFINITY ? 0 : RankOf(best, best_id), best, sum, num_not_finite};
}

// log(sum(exp(logit - max_logit))).
QUIRE_DEVICE float LogSum(const Scan& scan, float max_logit, Workspace* workspace) {
  const float sum = scan.sum * Exp2((scan.best_logit - max_logit) * kLog2E);
  return Log(CtaSum(sum, workspace->float_scratch));
}

// ---- Candidates ----

QUIRE_DEVICE bool CandidatesOverflow(const Workspace* workspace) {
  return workspace->num_candidates > kMaxCandidates;
}

// Collects the ranks of the tokens that are candidates, in any order; returns this thread's sum of
// the masses of those that are summed.
template <typename IsSummed, typename IsCandidate>
QUIRE_DEVICE uint64_t Collect(const Row& row,
                              const Distribution& distribution,
                              Workspace* workspace,
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

// Likeliest first. Returns how many there are.
QUIRE_DEVICE int32_t SortCandidates(Workspace* workspace) {
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

// A logit that at least count tokens reach, and few more: the count-th greatest of the maxima of
// the groups of threads. -infinity: not known.
QUIRE_DEVICE float BoundOfLikeliest(int32_t count, uint64_t best_rank, Workspace* workspace) {
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

// ---- Segments ----

// Sets the masses of the segments from each thread's sum.
QUIRE_DEVICE void StoreSegments(uint64_t sum, Workspace* workspace) {
  sum = WarpInclusiveSum(sum);
  if (threadIdx.x % kWarpSize == kWarpSize - 1) {
    workspace->segments.Set(static_cast<int32_t>(threadIdx.x / kWarpSize), sum);
  }
  __syncthreads();
}

QUIRE_DEVICE void AddCandidatesToSegments(int32_t count,
                                          const Row& row,
                                          const Distribution& distribution,
                                          Workspace* workspace) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(blockDim.x)) {
    const uint64_t rank = workspace->candidates[i];
    workspace->segments.Add(TokenOf(rank) / (4 * row.quads_per_segment),
                            distribution.MassOf(LogitOf(rank)));
  }
  __syncthreads();
}

QUIRE_DEVICE uint64_t TotalOfSegments(const Workspace* workspace) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < blockDim.x / kWarpSize; ++i) {
    total += workspace->segments.Get(static_cast<int32_t>(i));
  }
  return total;
}

// ---- Cutoffs ----

QUIRE_DEVICE bool HasTopK(const SampleRow& params, int32_t vocab_size) {
  return params.top_k > 0 && params.top_k < vocab_size;
}

enum class LimitKind : uint8_t { kCount, kMass };

// Keeps the likeliest tokens until there are value of them, or until their mass reaches value.
struct Limit {
  LimitKind kind;
  uint64_t value;
};

QUIRE_DEVICE Found FindBin(const Limit& limit, int32_t num_bins, Workspace* workspace) {
  return FindReached(num_bins, limit.value, &workspace->scratch, [&](int32_t bin) {
    return workspace->bins.Get(bin);
  });
}

// Adds up, for each bin, what the limit is about. bin_of gives -1 for tokens that do not matter.
template <typename BinOf>
QUIRE_DEVICE void BuildHistogram(const Row& row,
                                 const Distribution& distribution,
                                 LimitKind kind,
                                 Workspace* workspace,
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

// The rank at which the limit is reached, among the tokens in scope alone: eleven bits at a time.
template <typename IsInScope>
QUIRE_DEVICE uint64_t FindCutoffByDigits(const Row& row,
                                         const Distribution& distribution,
                                         Limit limit,
                                         Workspace* workspace,
                                         IsInScope is_in_scope) {
  uint64_t prefix = 0;  // of the cutoff: its bits from shift on
  int shift = 64;
  while (shift > 0) {
    const int digit_bits = shift < kDigitBits ? shift : kDigitBits;
    const int prefix_shift = shift;
    shift -= digit_bits;
    const int32_t greatest = (1 << digit_bits) - 1;  // in bin 0, likeliest first
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

// The rank at which the limit is reached. Sets the masses of the segments to those of the tokens
// kept.
QUIRE_DEVICE uint64_t FindCutoff(const Row& row,
                                 const Distribution& distribution,
                                 const Limit& limit,
                                 Workspace* workspace) {
  BuildHistogram(row, distribution, limit.kind, workspace, [&](TokenId, float logit) {
    return distribution.BinOf(logit);
  });
  const Found bin = FindBin(limit, kNumBins, workspace);
  if (bin.index >= kNumBins - 1) {  // all that have mass are kept
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

// The least mass that is at least top_p of the total.
QUIRE_DEVICE uint64_t NucleusMass(float top_p, uint64_t total) {
  return static_cast<uint64_t>(ceil(static_cast<double>(top_p) * static_cast<double>(total)));
}

// As FindCutoff for both filters, by the short list. False where it does not reach.
QUIRE_DEVICE bool FindCutoffInShortList(const Row& row,
                                        const Distribution& distribution,
                                        const SampleRow& params,
                                        uint64_t best_rank,
                                        Workspace* workspace,
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

// ---- The draw ----

// The first token in ascending id order at which the running sum over the tokens kept exceeds
// u * total, u = word * 2^-32. Sums are integers, so that they exceed u * total where they reach
// floor(u * total) + 1.
QUIRE_DEVICE TokenId Draw(const Row& row,
                          const Distribution& distribution,
                          uint64_t cutoff,
                          uint32_t word,
                          Workspace* workspace) {
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

QUIRE_DEVICE TokenId SampleToken(const Row& row,
                                 const SampleRow& params,
                                 const Scan& scan,
                                 float max_logit,
                                 Workspace* workspace) {
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
    // top-k, then top-p of what it left: one call, since the code behind it is long.
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

// ---- Adjustments ----

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

// Changes the row in place. Each bias, of no more use, makes room for the raw logit. Returns how
// many tokens this thread banned, which are then not finite and yet no fault.
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

// The logit of a token before AdjustRow.
QUIRE_DEVICE float RawLogit(const Row& row,
                            const LogitAdjustment* adjustments,
                            const SampleRow& params,
                            TokenId token_id,
                            Workspace* workspace) {
  if (threadIdx.x == 0) {
    workspace->raw_logit = row.logits[token_id];
  }
  __syncthreads();
  for (auto i = static_cast<int32_t>(threadIdx.x); i < params.num_adjustments;
       i += static_cast<int32_t>(blockDim.x)) {
    if (adjustments[i].token_id == token_id) {
      workspace->raw_logit = adjustments[i].bias;
    }
  }
  __syncthreads();
  return workspace->raw_logit;
}

// ---- Log-probabilities ----

// Of the row as the model gave it.
struct Normaliser {
  float max_logit;
  float log_sum;

  QUIRE_DEVICE float LogprobOf(float logit) const {
    // The difference of two logits may need more digits than fp32 has.
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max_logit) -
                              static_cast<double>(log_sum));
  }
};

QUIRE_DEVICE void WriteTopLogprobs(const SampleArgs& args,
                                   const Row& row,
                                   int32_t count,
                                   uint64_t best_rank,
                                   const Normaliser& normaliser,
                                   Workspace* workspace) {
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
  const int64_t first = int64_t{blockIdx.x} * args.top_stride;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(blockDim.x)) {
    const uint64_t rank = workspace->candidates[i];
    args.top_token_ids[first + i] = TokenOf(rank);
    args.top_logprobs[first + i] = normaliser.LogprobOf(LogitOf(rank));
  }
  __syncthreads();
}

// ---- The kernel ----

// What all threads saw of the row.
struct Summary {
  bool is_valid;  // finite but for what was banned, and not all banned
  float max_logit;
  uint64_t best_rank;
};

QUIRE_DEVICE Summary Summarise(const Scan& scan, uint32_t num_banned, Workspace* workspace) {
  const uint64_t faults = uint64_t{scan.num_not_finite} - num_banned;
  const bool is_finite = CtaSumOf(faults, &workspace->scratch) == 0;
  const uint64_t best_rank = CtaMaxOf(scan.best_rank, &workspace->scratch);
  const float max_logit = LogitOf(best_rank);
  return {is_finite && best_rank != 0 && max_logit <= FLT_MAX, max_logit, best_rank};
}

QUIRE_DEVICE void WriteInvalid(const SampleArgs& args, int32_t index, int32_t num_logprobs) {
  if (threadIdx.x == 0) {
    args.token_ids[index] = 0;
    args.finite[index] = 0;
    if (num_logprobs >= 0) {
      args.logprobs[index] = 0.0F;
    }
  }
}

QUIRE_DEVICE void ClearTopLogprobs(const SampleArgs& args, int32_t index, int32_t count) {
  const int64_t first = int64_t{index} * args.top_stride;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(blockDim.x)) {
    args.top_token_ids[first + i] = 0;
    args.top_logprobs[first + i] = 0.0F;
  }
}

QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kMaxThreads, 1) SampleKernel(SampleArgs args) {
  QUIRE_SHARED_MEMORY(shared);
  auto* workspace = reinterpret_cast<Workspace*>(shared);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const SampleRow& params = args.rows[index];
  const Row row = RowOf(args, index);
  LogitAdjustment* adjustments = args.adjustments + params.first_adjustment;
  const bool has_logprobs = params.num_logprobs >= 0;
  const bool is_adjusted = params.num_adjustments > 0;

  // ---- The row as the model gave it ----
  Scan scan = {};
  Summary summary = {};
  Normaliser normaliser = {};
  if (has_logprobs) {
    const int32_t num_top =
        params.num_logprobs < row.vocab_size ? params.num_logprobs : row.vocab_size;
    scan = ScanRow<true>(row);
    summary = Summarise(scan, 0, workspace);
    if (!summary.is_valid) {
      ClearTopLogprobs(args, index, num_top);
      WriteInvalid(args, index, params.num_logprobs);
      return;
    }
    normaliser = {summary.max_logit, LogSum(scan, summary.max_logit, workspace)};
    if (num_top > 0) {
      WriteTopLogprobs(args, row, num_top, scan.best_rank, normaliser, workspace);
    }
  }

  // ---- The row as it is sampled ----
  if (is_adjusted || !has_logprobs) {
    const uint32_t num_banned =
        is_adjusted ? AdjustRow(args.logits + index * args.row_stride, adjustments, params) : 0;
    scan = ScanRow<false>(row);
    summary = Summarise(scan, num_banned, workspace);
    if (!summary.is_valid) {
      WriteInvalid(args, index, params.num_logprobs);
      return;
    }
  }
  const TokenId token_id = params.temperature < kGreedyTemperature
                               ? TokenOf(summary.best_rank)
                               : SampleToken(row, params, scan, summary.max_logit, workspace);

  // ---- Results ----
  const float raw_logit =
      has_logprobs ? RawLogit(row, adjustments, params, token_id, workspace) : 0.0F;
  if (threadIdx.x == 0) {
    args.token_ids[index] = token_id;
    args.finite[index] = 1;
    if (has_logprobs) {
      args.logprobs[index] = normaliser.LogprobOf(raw_logit);
    }
  }
}

uint32_t ThreadsFor(int32_t vocab_size) {
  if (vocab_size <= 4096) {
    return 128;
  }
  return vocab_size <= 32768 ? 512 : kMaxThreads;
}

}  // namespace

int Sample(const SampleArgs& args, Stream stream) {
  if (args.num_rows == 0) {
    return 0;
  }
  return QUIRE_LAUNCH(SampleKernel,
                      dim3(static_cast<uint32_t>(args.num_rows)),
                      dim3(ThreadsFor(args.vocab_size)),
                      sizeof(Workspace),
                      stream,
                      args);
}

}  // namespace quire::gpu
