#include <immintrin.h>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/paged_attention_kernel.inl.h"
#include "kernels/cpu/paged_attention_pairs.inl.h"

namespace quire {
namespace {

constexpr int32_t kRows = AmxTile::kRows;
constexpr int32_t kColumns = AmxTile::kColumns;
constexpr int32_t kDepth = AmxTile::kDepth;
constexpr int32_t kTilesOfSums = 4;

constexpr int32_t RoundedUp(int32_t n, int32_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Products in the order of the tile instruction, by vectors: for few rows, which read the cache as
// it lies. Of each 32 terms those at even places are added up in one sum, those at odd places in
// another, then both to the total; denormals count as zero.
struct TileOrderProducts : PairProducts {
  struct Operand {
    Vec even;
    Vec odd;
  };
  struct Sum {
    Vec total;
    Vec even;
    Vec odd;
  };
  // Denormals are zero while it lives.
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
  static constexpr int kFoldTerms = kDepth;
  // 24 registers of sums at most.
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
  // Which zeros were added has no say in the sign of zero.
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

// Products of tiles. Queries are [rows][dims], weights [rows][slots], both padded to 32; packed
// keys and values are pairs, padded likewise with zeros. A slot outside a row's range has the
// weight 0.
struct TileProducts : PairProducts {
  struct TaskScope {
    explicit TaskScope(int32_t rows) : registers(rows) {}
    TileRegisters registers;
  };
  static constexpr int kRows = quire::kRows;
  // Tiles are through with keys and values sooner than they come from memory: many rows share them.
  // Queries, packed keys and values and what rows have come to stay in the second-level cache.
  static constexpr int32_t kTaskRows = 512;
  static constexpr bool kHasRowTiles = true;

  static int32_t KeySteps(int32_t head_dim) { return RoundedUp(head_dim, kDepth) / kGroup; }
  static void PackKeys(
      const BFloat16* from, int64_t dim_stride, int32_t head_dim, int32_t n, Panel* to) {
    if (dim_stride == kLanes && n == kLanes && head_dim % kGroup == 0) {
      for (int64_t d = 0; d < head_dim; d += kGroup) {  // two rows of the cache are a vector
        _mm512_storeu_si512(
            to + d / kGroup * kLanes,
            _mm512_permutexvar_epi16(Order(), _mm512_loadu_si512(from + d * kLanes)));
      }
    } else {
      PairProducts::PackKeys(from, dim_stride, head_dim, n, to);
    }
    for (int32_t step = (head_dim + 1) / kGroup; step < KeySteps(head_dim); ++step) {
      _mm512_mask_storeu_epi32(to + int64_t{step} * kLanes, MaskOf(n), _mm512_setzero_si512());
    }
  }
  static void PackValues(const BFloat16* const* from,
                         SlotRange slots,
                         int32_t head_dim,
                         Panel* to) {
    const int32_t stride = RoundedUp(head_dim, kColumns);
    const int32_t end = RoundedUp(slots.end, kDepth);
    for (int32_t slot = slots.begin / kDepth * kDepth; slot < end; slot += kGroup) {
      Panel* row = to + int64_t{slot / kGroup} * stride;
      if (head_dim % kDepth == 0 && slots.contains(slot) && slots.contains(slot + 1)) {
        PackPair(from[slot], from[slot + 1], head_dim, row);
        continue;
      }
      for (int32_t d = 0; d < head_dim; d += kLanes) {
        const int32_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
        _mm512_storeu_si512(
            row + d,
            Interleave(LoadSlot(from, slots, slot, d, n), LoadSlot(from, slots, slot + 1, d, n)));
      }
    }
  }
  static void PackQuery(
      const float* from, int32_t head_dim, int32_t row, int32_t /*rows*/, Term* tile) {
    const int32_t dims = RoundedUp(head_dim, kDepth);
    Term* to = tile + int64_t{row} * dims / kGroup;
    for (int32_t d = 0; d < dims; d += kLanes, to += kLanes / kGroup) {
      const int32_t left = head_dim - d < kLanes ? head_dim - d : kLanes;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                          Round(Simd::LoadN(from + d, left < 0 ? 0 : left)));
    }
  }

  // Scores of whole groups of slots that hold any of `any`.
  static void ScoreRows(
      const Term* q, const Panel* keys, SlotRange any, int32_t head_dim, float* scores) {
    const int32_t end = (any.end + kLanes - 1) / kLanes;
    for (int32_t group = any.begin / kLanes; group < end; group += kTilesOfSums) {
      const Panel* columns[kTilesOfSums];
      for (int32_t i = 0; i < kTilesOfSums; ++i) {
        const int32_t at = group + i < end ? group + i : group;
        columns[i] = keys + int64_t{at} * KeySteps(head_dim) * kLanes;
      }
      Multiply(reinterpret_cast<const std::byte*>(q),
               RoundedUp(head_dim, kDepth) * int64_t{sizeof(BFloat16)},
               columns,
               kLanes,
               KeySteps(head_dim) * kGroup / kDepth);
      float* to = scores + int64_t{group} * kLanes;
      constexpr int64_t kStride = kScoreStride * sizeof(float);
      _tile_stored(0, to, kStride);
      if (group + 1 < end) {
        _tile_stored(1, to + kLanes, kStride);
      }
      if (group + 2 < end) {
        _tile_stored(2, to + int64_t{2} * kLanes, kStride);
      }
      if (group + 3 < end) {
        _tile_stored(3, to + int64_t{3} * kLanes, kStride);
      }
    }
  }

  // out[r][dim] = sum over the slots of row r of weight * value. Uses the weights up.
  static void WeightValuesOfRows(float* weights,
                                 const SlotRange* ranges,
                                 int32_t rows,
                                 SlotRange any,
                                 const Panel* values,
                                 int32_t head_dim,
                                 float* out) {
    const int32_t begin = any.begin / kDepth * kDepth;
    const int32_t end = RoundedUp(any.end, kDepth);
    for (int32_t r = 0; r < rows; ++r) {
      RoundWeights(weights + int64_t{r} * kScoreStride, ranges[r], begin, end);
    }
    const int32_t stride = RoundedUp(head_dim, kColumns);
    for (int32_t dim = 0; dim < head_dim; dim += kTilesOfSums * kColumns) {
      const Panel* columns[kTilesOfSums];
      for (int32_t i = 0; i < kTilesOfSums; ++i) {
        const int32_t at = dim + i * kColumns < head_dim ? dim + i * kColumns : dim;
        columns[i] = values + int64_t{begin / kGroup} * stride + at;
      }
      Multiply(reinterpret_cast<const std::byte*>(weights) + begin * sizeof(BFloat16),
               kScoreStride * sizeof(float),
               columns,
               stride,
               (end - begin) / kDepth);
      alignas(64) float sums[kTilesOfSums][AmxTile::kFloats];
      _tile_stored(0, sums[0], AmxTile::kRowBytes);
      _tile_stored(1, sums[1], AmxTile::kRowBytes);
      _tile_stored(2, sums[2], AmxTile::kRowBytes);
      _tile_stored(3, sums[3], AmxTile::kRowBytes);
      for (int32_t i = 0; i < kTilesOfSums && dim + i * kColumns < head_dim; ++i) {
        StoreValues({weights, ranges, rows, values, head_dim, out}, dim + i * kColumns, sums[i]);
      }
    }
  }

 private:
  struct ValueRows {
    const float* weights;
    const SlotRange* ranges;
    int32_t rows;
    const Panel* values;
    int32_t head_dim;
    float* out;
  };

  // A tile of sums to the dims from `dim` on.
  static void StoreValues(const ValueRows& t, int32_t dim, const float* sums) {
    const int32_t columns = t.head_dim - dim < kColumns ? t.head_dim - dim : kColumns;
    for (int64_t r = 0; r < t.rows; ++r) {
      Vec sum = Simd::Load(sums + r * kColumns);
      if (_mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) != 0) {
        sum = SumOfRow(reinterpret_cast<const Pair*>(t.weights + r * kScoreStride),
                       t.ranges[r],
                       t.values + dim,
                       RoundedUp(t.head_dim, kColumns));
      }
      // Which zeros were added has no say in the sign of zero.
      Simd::StoreN(t.out + r * t.head_dim + dim, Simd::Add(sum, Simd::Zero()), columns);
    }
  }

  // The values of two slots, twice as many dims at a time as Interleave takes.
  static void PackPair(const BFloat16* first, const BFloat16* second, int32_t head_dim, Panel* to) {
    const __m512i low = Order();
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(kLanes));
    // Of two registers the second one's numbers begin at 32, not at 16.
    const __m512i of_second = _mm512_set1_epi32(kLanes << 16);
    for (int32_t d = 0; d < head_dim; d += 2 * kLanes) {
      const __m512i a = _mm512_loadu_si512(first + d);
      const __m512i b = _mm512_loadu_si512(second + d);
      _mm512_storeu_si512(to + d,
                          _mm512_permutex2var_epi16(a, _mm512_add_epi16(low, of_second), b));
      _mm512_storeu_si512(to + d + kLanes,
                          _mm512_permutex2var_epi16(a, _mm512_add_epi16(high, of_second), b));
    }
  }
  static __m256i LoadSlot(
      const BFloat16* const* from, SlotRange slots, int32_t slot, int32_t dim, int32_t n) {
    return slots.contains(slot) ? LoadN(from[slot] + dim, n) : _mm256_setzero_si256();
  }

  // To tiles 0 to 3: rows, so many bytes apart, times columns of pairs, so many apart.
  static void Multiply(const std::byte* rows,
                       int64_t row_stride,
                       const Panel* const (&columns)[kTilesOfSums],
                       int64_t column_stride,
                       int32_t depth) {
    const int64_t stride = column_stride * int64_t{sizeof(Panel)};
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int32_t k = 0; k < depth; ++k) {
      const int64_t at = int64_t{k} * (kDepth / kGroup) * column_stride;
      _tile_loadd(4, rows + int64_t{k} * AmxTile::kRowBytes, row_stride);
      _tile_loadd(6, columns[0] + at, stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, columns[1] + at, stride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(6, columns[2] + at, stride);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, columns[3] + at, stride);
      _tile_dpbf16ps(3, 4, 7);
    }
  }

  // A row of weights to bf16 in place; those outside the range become zero.
  static void RoundWeights(float* row, SlotRange range, int32_t begin, int32_t end) {
    auto* to = reinterpret_cast<BFloat16*>(row);
    for (int32_t slot = begin; slot < end; slot += kLanes) {
      const bool is_inside = slot < range.end && range.begin < slot + kLanes;
      const __m256i rounded = is_inside ? Round(Simd::Load(row + slot)) : _mm256_setzero_si256();
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + slot), rounded);
    }
  }

  // The sum of the row's slots alone: a value outside them that is infinite, times zero, would make
  // it NaN.
  static Vec SumOfRow(const Pair* weights, SlotRange range, const Panel* values, int64_t stride) {
    using Order = TileOrderProducts;
    const Order::ProductScope scope;
    Order::Sum sum = Order::Empty();
    for (int32_t slot = range.begin / kGroup * kGroup; slot < range.end; slot += kGroup) {
      const Panel* pairs = values + slot / kGroup * stride;
      sum = Order::MultiplyPart(
          weights[slot / kGroup], Order::LoadValues<false>(pairs, stride, 0), slot, range, sum);
      if ((slot + kGroup) % Order::kFoldTerms == 0) {
        Order::Fold(&sum);
      }
    }
    return Order::Total(sum);
  }
};

}  // namespace

void PagedAttentionAmx(const PagedAttentionParams& params, ThreadTeam& team) {
  if (params.cache.layout.dtype != DType::kBF16) {
    return PagedAttentionAvx512(params, team);
  }
  PagedAttentionOf<TileOrderProducts, TileProducts, BFloat16>(params, team);
}

}  // namespace quire
