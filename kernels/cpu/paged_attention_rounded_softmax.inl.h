// RoundedSoftmaxOfRow computes the softmax of one row over one chunk, with weights rounded to bf16.
// Needs AVX-512.
//
// exp(scale * (score - max)) is 2^t with t = (score - max) * f and f = scale / ln 2. For the
// highest score, t is exactly zero, however large the score is. The integer part of t becomes an
// exponent. A polynomial of degree 4 gives 2 to the power of the fractional part, which is in
// [0, 1), with an error of at most 2.6e-6. Rounding to bf16 adds an error of up to 2e-3. A weight
// below 2^-126 becomes zero.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_ROUNDED_SOFTMAX_INL_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_ROUNDED_SOFTMAX_INL_H_

#include <immintrin.h>

#include <cstdint>
#include <limits>

#include "kernels/cpu/paged_attention_softmax.inl.h"
#include "kernels/cpu/paged_attention_tile.inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace quire {
namespace {

// Returns 2^t, or 0 if t < -126. The integer part of t becomes the exponent, and a polynomial gives
// 2 to the power of the fractional part. NaN stays NaN.
inline __m512 PowerOfTwo(__m512 t) {
  constexpr int kMinusFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __mmask16 alive = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  const __m512 r = _mm512_reduce_ps(t, kMinusFloor);
  __m512 p = _mm512_set1_ps(1.3534168e-2F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.2011461e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24144276F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69300383F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0000026F));
  return _mm512_maskz_scalef_ps(alive, p, t);
}

// Calls fn(slot, low, high) for each group of 32 slots that overlaps the range. `slot` is the first
// slot of the group. Bit i of `low` tells whether slot + i is in the range; bit i of `high` tells
// it for slot + 16 + i.
template <typename Fn>
inline void ForEachGroup(SlotRange range, const Fn& fn) {
  constexpr int32_t kGroup = 32;
  for (int32_t slot = range.begin / kGroup * kGroup; slot < range.end; slot += kGroup) {
    if (range.begin <= slot && slot + kGroup <= range.end) {
      fn(slot, __mmask16{0xFFFF}, __mmask16{0xFFFF});
      continue;
    }
    const int32_t begin = range.begin > slot ? range.begin - slot : 0;
    const int32_t end = range.end - slot < kGroup ? range.end - slot : kGroup;
    const auto inside =
        static_cast<uint32_t>(((uint64_t{1} << end) - 1) & ~((uint64_t{1} << begin) - 1));
    fn(slot, static_cast<__mmask16>(inside), static_cast<__mmask16>(inside >> 16));
  }
}

// Loads 16 scores of a row, with minus infinity in the lanes that are not in `inside`.
inline __m512 ScoresAt(const float* scores, int32_t slot, __mmask16 inside) {
  const __m512 outside = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  return _mm512_mask_loadu_ps(outside, inside, scores + slot);
}

inline float MaxOfRow(const float* scores, SlotRange range) {
  __m512 low_max = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 high_max = low_max;
  ForEachGroup(range, [&](int32_t slot, __mmask16 low, __mmask16 high) {
    low_max = _mm512_max_ps(low_max, ScoresAt(scores, slot, low));
    high_max = _mm512_max_ps(high_max, ScoresAt(scores, slot + 16, high));
  });
  return SimdAvx512::ReduceMax(_mm512_max_ps(low_max, high_max));
}

// Does what SoftmaxOfRow does, given the maximum of the scores. The weights replace the scores:
// they become a bf16 array, indexed by slot, at the address of `scores`. In groups of 32 slots that
// overlap the range, slots outside the range get the weight zero. The returned sum is computed from
// the weights before rounding. REQUIRES: scale > 0.
inline SoftmaxStats RoundedWeightsOfRow(float* scores, SlotRange range, float scale, float max) {
  constexpr float kLog2E = 1.44269504F;
  if (range.empty()) {
    return {};
  }
  const __m512 factor = _mm512_set1_ps(scale * kLog2E);
  const __m512 highest = _mm512_set1_ps(max);
  const auto weights_at = [&](int32_t slot, __mmask16 inside) {
    const __m512 below = _mm512_sub_ps(ScoresAt(scores, slot, inside), highest);
    return PowerOfTwo(_mm512_mul_ps(below, factor));
  };
  __m512 sum = _mm512_setzero_ps();
  ForEachGroup(range, [&](int32_t slot, __mmask16 low, __mmask16 high) {
    const __m512 first = weights_at(slot, low);
    const __m512 second = weights_at(slot + 16, high);
    sum = _mm512_add_ps(_mm512_add_ps(sum, first), second);
    // A weight takes half the bytes of a score, so no score that is still needed is overwritten.
    _mm512_storeu_si512(reinterpret_cast<char*>(scores) + slot * sizeof(BFloat16),
                        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  });
  return {max * scale, SimdAvx512::ReduceSum(sum)};
}

inline SoftmaxStats RoundedSoftmaxOfRow(float* scores, SlotRange range, float scale) {
  return RoundedWeightsOfRow(scores, range, scale, MaxOfRow(scores, range));
}

// Computes RoundedSoftmaxOfRow for several rows, kScoreStride apart. The next row's maximum is
// computed before this row's weights, so that work on weights hides the latency of the maximum's
// last steps.
inline void RoundedSoftmaxOfRows(
    float* scores, const SlotRange* ranges, int32_t rows, float scale, SoftmaxStats* stats) {
  float max = MaxOfRow(scores, ranges[0]);
  for (int32_t r = 0; r < rows; ++r, scores += kScoreStride) {
    const float next_max = r + 1 < rows ? MaxOfRow(scores + kScoreStride, ranges[r + 1]) : 0.0F;
    stats[r] = RoundedWeightsOfRow(scores, ranges[r], scale, max);
    max = next_max;
  }
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_ROUNDED_SOFTMAX_INL_H_
