// TileOrderProducts is a Products policy (paged_attention_tile.inl.h) for a bf16 cache. The policy
// adds in the order of AMX's tile instruction, but computes with vector instructions of
// AVX512-BF16.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_TILE_ORDER_INL_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_TILE_ORDER_INL_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/paged_attention_pairs.inl.h"
#include "kernels/cpu/paged_attention_rounded_softmax.inl.h"

namespace quire {
namespace {

// The common base of the two policies that add in the tile instruction's order. One computes with
// tiles (paged_attention_amx.cc), the other with vectors.
struct RoundedPairs : PairProducts {
  static constexpr bool kRoundsWeights = true;
  static SoftmaxStats Softmax(float* scores, SlotRange range, float scale) {
    return RoundedSoftmaxOfRow(scores, range, scale);
  }
  static const Term* PackWeights(float* row, SlotRange /*slots*/) {
    return reinterpret_cast<const Term*>(row);
  }
};

// Adds in the order of the tile instruction, but by vector instructions, for tasks of few rows.
// Such tasks read keys and values from the KV blocks, without packing. For every 32 terms, one sum
// adds the even terms and another sum the odd terms; then even + odd is added to the total.
// Denormals count as zero.
struct TileOrderProducts : RoundedPairs {
  struct Operand {
    Vec even;
    Vec odd;
  };
  struct Sum {
    Vec total;
    Vec even;
    Vec odd;
  };
  // While a ProductScope exists, the thread treats denormals as zero.
  class ProductScope {
   public:
    ProductScope() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kDenormalsAreZero); }
    ~ProductScope() { _mm_setcsr(saved_); }
    ProductScope(const ProductScope&) = delete;
    ProductScope& operator=(const ProductScope&) = delete;

   private:
    static constexpr unsigned int kDenormalsAreZero = 0x8040;
    unsigned int saved_;
  };
  static constexpr int kFoldTerms = 32;  // terms that one tile instruction adds
  // Vectors of sums per row. The sums of a tile take at most 24 registers.
  template <int kRowsOfTile>
  static constexpr int kVecs = kRowsOfTile == 1   ? 8
                               : kRowsOfTile == 2 ? 4
                               : kRowsOfTile <= 4 ? 2
                                                  : 1;

  static Sum Empty() { return {Simd::Zero(), Simd::Zero(), Simd::Zero()}; }
  static void Fold(Sum* sum) {
    sum->total = Simd::Add(sum->total, Simd::Add(sum->even, sum->odd));
    sum->even = Simd::Zero();
    sum->odd = Simd::Zero();
  }
  // Adds +0, which turns -0 into +0. Else the sign of a zero sum would depend on which zeros were
  // added.
  static Vec Total(Sum sum) {
    Fold(&sum);
    return Simd::Add(sum.total, Simd::Zero());
  }
  static Operand LoadKeys(const BFloat16* keys, int64_t dim_stride, int32_t dim, int32_t head_dim) {
    const BFloat16* row = keys + dim * dim_stride;
    return {Simd::Load(row), dim + 1 < head_dim ? Simd::Load(row + dim_stride) : Simd::Zero()};
  }
  static Operand LoadKeys(const Pair* keys, int64_t dim_stride, int32_t dim, int32_t /*head_dim*/) {
    return Halves(PairProducts::LoadKeys(keys, dim_stride, dim, 0));
  }
  template <bool kPartial>
  static Operand LoadValues(const BFloat16* values, int64_t slot_stride, int32_t lanes) {
    return kPartial ? Operand{Simd::LoadN(values, lanes), Simd::LoadN(values + slot_stride, lanes)}
                    : Operand{Simd::Load(values), Simd::Load(values + slot_stride)};
  }
  template <bool kPartial>
  static Operand LoadValues(const Pair* values, int64_t slot_stride, int32_t lanes) {
    return Halves(PairProducts::LoadValues<kPartial>(values, slot_stride, lanes));
  }
  static Sum Multiply(Term term, Operand values, Sum sum) {
    const Operand factors = Halves(_mm512_set1_epi32(static_cast<int>(term.bits)));
    sum.even = Simd::Fma(factors.even, values.even, sum.even);
    sum.odd = Simd::Fma(factors.odd, values.odd, sum.odd);
    return sum;
  }
  static Sum MultiplyPart(Term term, Operand values, int32_t slot, SlotRange range, Sum sum) {
    const Operand factors = Halves(_mm512_set1_epi32(static_cast<int>(term.bits)));
    if (range.contains(slot)) {
      sum.even = Simd::Fma(factors.even, values.even, sum.even);
    }
    if (range.contains(slot + 1)) {
      sum.odd = Simd::Fma(factors.odd, values.odd, sum.odd);
    }
    return sum;
  }

 private:
  static Operand Halves(__m512i pairs) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)))};
  }
};

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_TILE_ORDER_INL_H_
