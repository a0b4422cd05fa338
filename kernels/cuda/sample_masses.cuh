// Probabilities as integers, in the sampling kernel's shared memory: the mass of a token, and the
// mass of the kept tokens in each warp's segment of the row. The head of sample.cu defines mass.
//
// All threads of the CTA call a free function together. A single thread may call a member function.
#ifndef QUIRE_KERNELS_CUDA_SAMPLE_MASSES_CUH_
#define QUIRE_KERNELS_CUDA_SAMPLE_MASSES_CUH_

#include <cstdint>

#include "kernels/cuda/cta_integers.cuh"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/sample_row.cuh"

namespace quire::gpu {

inline constexpr int kMaxSampleThreads = 1024;
inline constexpr int kMaxSegments = kMaxSampleThreads / kWarpSize;
inline constexpr int32_t kMaxCandidates = 4096;  // a power of two

inline constexpr float kMassOfLikeliest = 0x1p40F;
inline constexpr int kDigitBits = 11;
inline constexpr int kNumBins = 1 << kDigitBits;
// Bins per octave, a factor of two in probability. At this value the last bin holds the tokens that
// are 41 octaves or more below the likeliest. The masses of such tokens are 0.
inline constexpr float kBinsPerOctave = 49.9F;

// ---- Shared memory ----

// 64-bit sums by 32-bit atomics, which shared memory has in hardware. The low half's value before
// an addition shows whether the addition carried.
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

struct SampleWorkspace {
  uint64_t candidates[kMaxCandidates];  // ranks (RankOf), which hold the logits and token ids
  // The mass of the tokens in each bin, or their number. A number needs only MassSums::low.
  MassSums<kNumBins> bins;
  MassSums<kMaxSegments> segments;  // mass of kept tokens in each segment of the row
  CtaScratch scratch;
  float float_scratch[kWarpSize];
  uint32_t num_candidates;  // counts all candidates found, even those beyond kMaxCandidates
  float raw_logit;
};

// ---- Masses ----

struct Distribution {
  float max_logit;
  float octaves_per_logit;
  float min_p;

  // Returns how many octaves (factors of two) less likely the token is than the likeliest token.
  QUIRE_DEVICE float OctavesOf(float logit) const {
    return (max_logit - logit) * octaves_per_logit;
  }

  // Returns the token's mass: its probability, relative to the likeliest token's, as an integer.
  // The mass is 0 for tokens below min_p or too unlikely to be drawn.
  QUIRE_DEVICE uint64_t MassOf(float logit) const {
    const float weight = Exp2(-OctavesOf(logit));
    if (weight < min_p) {
      return 0;
    }
    const float mass = weight * kMassOfLikeliest;
    // Converts small masses, the most frequent, to 32 bits, which is faster than to 64 bits.
    return mass < 0x1p32F ? uint64_t{static_cast<uint32_t>(mass)} : static_cast<uint64_t>(mass);
  }

  // Returns a number whose integer part is the token's bin. The number is lower for likelier
  // tokens.
  QUIRE_DEVICE float BinPosition(float logit) const { return OctavesOf(logit) * kBinsPerOctave; }

  QUIRE_DEVICE int32_t BinOf(float logit) const {
    const float position = BinPosition(logit);
    return position < kNumBins - 1 ? static_cast<int32_t>(position) : kNumBins - 1;
  }
};

// ---- Segments ----

// Sets the mass of each segment (a warp's part of the row) to the total of the sums that the warp's
// threads pass.
QUIRE_DEVICE void StoreSegments(uint64_t sum, SampleWorkspace* workspace) {
  sum = WarpInclusiveSum(sum);
  if (threadIdx.x % kWarpSize == kWarpSize - 1) {
    workspace->segments.Set(static_cast<int32_t>(threadIdx.x / kWarpSize), sum);
  }
  __syncthreads();
}

QUIRE_DEVICE void AddCandidatesToSegments(int32_t count,
                                          const LogitRow& row,
                                          const Distribution& distribution,
                                          SampleWorkspace* workspace) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += static_cast<int32_t>(blockDim.x)) {
    const uint64_t rank = workspace->candidates[i];
    workspace->segments.Add(TokenOf(rank) / (4 * row.quads_per_segment),
                            distribution.MassOf(LogitOf(rank)));
  }
  __syncthreads();
}

QUIRE_DEVICE uint64_t TotalOfSegments(const SampleWorkspace* workspace) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < blockDim.x / kWarpSize; ++i) {
    total += workspace->segments.Get(static_cast<int32_t>(i));
  }
  return total;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_SAMPLE_MASSES_CUH_
