// MergeStats and RowFactors merge a chunk into the running results of a tile of rows, with the same
// bits as MergeRow (paged_attention_softmax.inl.h). The factors of 16 rows are computed at once. A
// chunk's values go from registers directly into the running results. Needs AVX-512.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_MERGE_ROWS_INL_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_MERGE_ROWS_INL_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/paged_attention_softmax.inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace quire {
namespace {

// Maxima and sums of 16 rows.
struct StatsOfRows {
  __m512 max;
  __m512 sum;
};

// Masks for the stats of the first n of 16 rows, two floats a row: `low` for rows 0 to 7, `high`
// for rows 8 to 15.
struct StatsMasks {
  __mmask16 low;
  __mmask16 high;

  explicit StatsMasks(int32_t n) {
    const auto lanes = static_cast<uint32_t>((uint64_t{1} << (2 * n)) - 1);
    low = static_cast<__mmask16>(lanes);
    high = static_cast<__mmask16>(lanes >> 16);
  }
};

inline StatsOfRows LoadStats(const SoftmaxStats* from, StatsMasks masks) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 low = _mm512_maskz_loadu_ps(masks.low, from);
  const __m512 high = _mm512_maskz_loadu_ps(masks.high, from + 8);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
}

inline void StoreStats(StatsOfRows stats, StatsMasks masks, SoftmaxStats* to) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  _mm512_mask_storeu_ps(to, masks.low, _mm512_permutex2var_ps(stats.max, first, stats.sum));
  _mm512_mask_storeu_ps(to + 8, masks.high, _mm512_permutex2var_ps(stats.max, second, stats.sum));
}

// A merge sets a row's values to old * kept + new * added. A row without an earlier chunk has no
// old values: the memory for its values is uninitialized, so MergeValues does not read it.
struct RowFactors {
  static constexpr int32_t kRows = 32;
  alignas(64) float kept[kRows];
  alignas(64) float added[kRows];
  uint32_t has_old = 0;  // bit r is set if row r has old values

  void MergeValues(int64_t row, __m512 values, __mmask16 columns, float* to) const {
    const __mmask16 old = (has_old >> row & 1) != 0 ? columns : __mmask16{0};
    const __m512 part = _mm512_mul_ps(_mm512_maskz_loadu_ps(old, to), _mm512_set1_ps(kept[row]));
    _mm512_mask_storeu_ps(to, columns, _mm512_fmadd_ps(values, _mm512_set1_ps(added[row]), part));
  }
};

// Merges the stats of a chunk into `running`. Returns the factors for merging the values.
inline RowFactors MergeStats(const SoftmaxStats* chunk, int32_t rows, SoftmaxStats* running) {
  using S = SimdAvx512;
  const __m512 zero = _mm512_setzero_ps();
  const __m512 one = _mm512_set1_ps(1.0F);
  RowFactors factors;
  for (int32_t r = 0; r < rows; r += S::kLanes) {
    const StatsMasks masks(rows - r < S::kLanes ? rows - r : S::kLanes);
    const StatsOfRows fresh = LoadStats(chunk + r, masks);
    const StatsOfRows old = LoadStats(running + r, masks);
    const __mmask16 has_fresh = _mm512_cmp_ps_mask(fresh.sum, zero, _CMP_NEQ_UQ);
    const __mmask16 has_old = _mm512_cmp_ps_mask(old.sum, zero, _CMP_NEQ_UQ);
    // `fresh` holds the stats of the chunk, `old` the stats of the running result. A row with the
    // sum 0 has no stats. If only one of the two has stats, the row takes its maximum, and both
    // factors are 1.
    const __mmask16 rises = _mm512_cmp_ps_mask(fresh.max, old.max, _CMP_GT_OQ);
    const auto takes_fresh = static_cast<__mmask16>(has_fresh & (rises | ~has_old));
    const __m512 max = _mm512_mask_blend_ps(takes_fresh, old.max, fresh.max);
    const __m512 other = _mm512_mask_blend_ps(takes_fresh, fresh.max, old.max);
    const auto both = static_cast<__mmask16>(has_fresh & has_old);
    const __m512 factor = _mm512_mask_blend_ps(both, one, S::Exp(_mm512_sub_ps(other, max)));
    const __m512 kept = _mm512_mask_blend_ps(takes_fresh, one, factor);
    const __m512 added = _mm512_mask_blend_ps(takes_fresh, factor, one);
    const __m512 sum = _mm512_add_ps(_mm512_mul_ps(old.sum, kept), _mm512_mul_ps(fresh.sum, added));
    StoreStats({max, sum}, masks, running + r);
    _mm512_store_ps(factors.kept + r, kept);
    _mm512_store_ps(factors.added + r, added);
    factors.has_old |= uint32_t{has_old} << r;
  }
  return factors;
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_MERGE_ROWS_INL_H_
