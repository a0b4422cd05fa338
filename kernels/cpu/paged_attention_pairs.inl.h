// PairProducts is the Products policy (paged_attention_tile.inl.h) of a bf16 cache on AVX512-BF16.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_PAIRS_INL_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_PAIRS_INL_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/paged_attention_tile.inl.h"
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/storage_types.h"

namespace quire {
namespace {

// Two bf16 numbers in one 32-bit lane.
struct Pair {
  uint32_t bits;
};

// Products of pairs of bf16 numbers, by the instruction vdpbf16ps. Queries and weights are rounded
// to bf16. A pair holds dims 2i and 2i + 1 of a key, or slots 2i and 2i + 1 of one dim of the
// values. The cache stores keys as K[dim][slot] and values as V[slot][dim], so the two numbers of a
// pair lie in adjacent rows. LoadKeys and LoadValues interleave two such rows, which costs no more
// than widening the rows to fp32.
struct PairProducts {
  using Simd = SimdAvx512;
  using Vec = __m512;
  using Operand = __m512i;
  using Panel = Pair;
  using Term = Pair;
  static constexpr int kGroup = 2;
  using TaskScope = NoTaskScope;
  using ProductScope = NoProductScope;
  static constexpr int kRows = kTileRows;
  static constexpr int32_t kTaskRows = WidenedProducts<Simd>::kTaskRows;
  static constexpr bool kHasRowTiles = false;
  static constexpr bool kRoundsWeights = false;
  static constexpr int kLanes = Simd::kLanes;
  template <typename E>
  static constexpr int kPerElement = 1;

  using Sum = Vec;
  static constexpr int kFoldTerms = 0;
  template <int kRowsOfTile>
  static constexpr int kVecs = TileVecs<Simd>(kRowsOfTile);
  static Sum Empty() { return Simd::Zero(); }
  static Vec Total(Sum sum) { return sum; }
  static int32_t KeySteps(int32_t head_dim) { return (head_dim + kGroup - 1) / kGroup; }
  static void PackKeys(
      const BFloat16* from, int64_t dim_stride, int32_t head_dim, int32_t n, Panel* to) {
    for (int32_t d = 0; d < head_dim; d += kGroup, to += kLanes) {
      const BFloat16* row = from + d * dim_stride;
      _mm512_mask_storeu_epi32(
          to,
          MaskOf(n),
          Interleave(LoadN(row, n), LoadN(row + dim_stride, d + 1 < head_dim ? n : 0)));
    }
  }
  // Packs all groups of kGroup slots that overlap `slots`. Slots outside `slots` become zeros.
  static void PackValues(const BFloat16* const* from,
                         SlotRange slots,
                         int32_t head_dim,
                         Panel* to) {
    for (int32_t slot = slots.begin / kGroup * kGroup; slot < slots.end; slot += kGroup) {
      const bool has_first = slots.contains(slot);
      const bool has_second = slots.contains(slot + 1);
      const BFloat16* first = has_first ? from[slot] : nullptr;
      const BFloat16* second = has_second ? from[slot + 1] : nullptr;
      Panel* row = to + int64_t{slot / kGroup} * head_dim;
      for (int32_t d = 0; d < head_dim; d += kLanes) {
        const int32_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
        const __m256i low = has_first ? LoadN(first + d, n) : _mm256_setzero_si256();
        const __m256i high = has_second ? LoadN(second + d, n) : _mm256_setzero_si256();
        _mm512_mask_storeu_epi32(row + d, MaskOf(n), Interleave(low, high));
      }
    }
  }
  static void PackQuery(
      const float* from, int32_t head_dim, int32_t row, int32_t rows, Term* tile) {
    Term* to = tile + row;
    for (int32_t d = 0; d < head_dim; d += kLanes) {
      const int32_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
      alignas(32) Pair pairs[kLanes / kGroup];
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), Round(Simd::LoadN(from + d, n)));
      for (int32_t i = 0; i * kGroup < n; ++i, to += rows) {
        *to = pairs[i];
      }
    }
  }
  static const Term* PackWeights(float* row, SlotRange slots) {
    auto* pairs = reinterpret_cast<__m256i*>(row);
    for (int32_t i = slots.begin / kLanes; i * kLanes < slots.end; ++i) {
      _mm256_storeu_si256(pairs + i, Round(Simd::Load(row + int64_t{i} * kLanes)));
    }
    return reinterpret_cast<const Term*>(row);
  }

  static Operand LoadKeys(const BFloat16* keys, int64_t dim_stride, int32_t dim, int32_t head_dim) {
    const BFloat16* row = keys + dim * dim_stride;
    return Interleave(Load(row),
                      dim + 1 < head_dim ? Load(row + dim_stride) : _mm256_setzero_si256());
  }
  static Operand LoadKeys(const Pair* keys, int64_t dim_stride, int32_t dim, int32_t /*head_dim*/) {
    return _mm512_loadu_si512(keys + dim / kGroup * dim_stride);
  }
  template <bool kPartial>
  static Operand LoadValues(const BFloat16* values, int64_t slot_stride, int32_t lanes) {
    return kPartial ? Interleave(LoadN(values, lanes), LoadN(values + slot_stride, lanes))
                    : Interleave(Load(values), Load(values + slot_stride));
  }
  template <bool kPartial>
  static Operand LoadValues(const Pair* values, int64_t /*slot_stride*/, int32_t lanes) {
    return kPartial ? _mm512_maskz_loadu_epi32(MaskOf(lanes), values) : _mm512_loadu_si512(values);
  }
  static Vec Multiply(Term term, Operand values, Vec sum) {
    return _mm512_dpbf16_ps(
        sum,
        reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(term.bits))),
        reinterpret_cast<__m512bh>(values));
  }
  // Does what Multiply does, but a slot of the pair outside `range` counts as weight 0 times value
  // 0.
  static Vec MultiplyPart(Term term, Operand values, int32_t slot, SlotRange range, Vec sum) {
    const uint32_t inside =
        (range.contains(slot) ? 0xFFFFU : 0U) | (range.contains(slot + 1) ? 0xFFFF0000U : 0U);
    return inside == 0
               ? sum
               : Multiply({term.bits & inside},
                          _mm512_and_si512(values, _mm512_set1_epi32(static_cast<int>(inside))),
                          sum);
  }

 protected:
  static __mmask16 MaskOf(int32_t n) { return static_cast<__mmask16>((1U << n) - 1U); }
  static __m256i Load(const BFloat16* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m256i LoadN(const BFloat16* p, int32_t n) {
    return _mm256_maskz_loadu_epi16(MaskOf(n), p);
  }
  static __m256i Round(Vec v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }
  // Returns a vector whose lane i has first[i] in its low half and second[i] in its high half.
  static __m512i Interleave(__m256i first, __m256i second) {
    return _mm512_permutexvar_epi16(Order(),
                                    _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
  }
  // Returns the permutation 0, 16, 1, 17, ..., 15, 31 of 16-bit elements.
  static __m512i Order() {
    const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_or_si512(numbers,
                           _mm512_slli_epi32(_mm512_add_epi32(numbers, _mm512_set1_epi32(16)), 16));
  }
};
template <>
constexpr int PairProducts::kPerElement<Pair> = PairProducts::kGroup;

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_PAIRS_INL_H_
