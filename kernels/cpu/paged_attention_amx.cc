#include <immintrin.h>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/paged_attention_kernel.inl.h"
#include "kernels/cpu/paged_attention_merge_rows.inl.h"
#include "kernels/cpu/paged_attention_pairs.inl.h"
#include "kernels/cpu/paged_attention_rounded_softmax.inl.h"
#include "kernels/cpu/paged_attention_tile_order.inl.h"

namespace quire {
namespace {

constexpr int32_t kColumns = AmxTile::kColumns;
constexpr int32_t kDepth = AmxTile::kDepth;
constexpr int32_t kTilesOfSums = 4;
static_assert(TileOrderProducts::kFoldTerms == kDepth);

constexpr int32_t RoundedUp(int32_t n, int32_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The policy that multiplies with tile instructions, two tiles of rows at a time. A row is one
// query of one query head; a slot is a position of the chunk of 256 positions. Queries are
// [rows][dims], softmax weights [rows][slots]. Keys and values are packed as elements of type Pair,
// values as [dims / 16][slots / 2][16 dims]. Dims and slots are padded to multiples of 32; packed
// keys and values are padded with zeros. A slot to which a row does not attend has the weight 0 in
// that row.
struct TileProducts : RoundedPairs {
  struct TaskScope {
    explicit TaskScope(int32_t rows) : registers(rows < AmxTile::kRows ? rows : AmxTile::kRows) {}
    TileRegisters registers;
  };
  static constexpr int kRows = 2 * AmxTile::kRows;
  // Tile instructions consume keys and values faster than memory delivers them, so many rows must
  // share each key and value. With this number of rows, the second-level cache still holds the
  // queries, packed keys and values, and running results.
  static constexpr int32_t kTaskRows = 1024;
  static constexpr bool kHasRowTiles = true;

  static int32_t KeySteps(int32_t head_dim) { return RoundedUp(head_dim, kDepth) / kGroup; }
  static void PackKeys(
      const BFloat16* from, int64_t dim_stride, int32_t head_dim, int32_t n, Panel* to) {
    if (dim_stride == kLanes && n == kLanes && head_dim % kGroup == 0) {
      for (int64_t d = 0; d < head_dim; d += kGroup) {  // two dims of 16 keys fill a vector
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
    const int32_t end = RoundedUp(slots.end, kDepth);
    for (int32_t slot = slots.begin / kDepth * kDepth; slot < end; slot += kGroup) {
      Panel* row = to + int64_t{slot / kGroup} * kColumns;
      if (head_dim % kDepth == 0 && slots.contains(slot) && slots.contains(slot + 1)) {
        PackPair(from[slot], from[slot + 1], head_dim, row);
        continue;
      }
      for (int32_t d = 0; d < head_dim; d += kLanes) {
        const int32_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
        _mm512_storeu_si512(
            row + d / kColumns * kDimsStride,
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

  // Computes scores in groups of kLanes slots. `any` has the slots to which some row attends.
  // Writes each group that overlaps `any` as a whole, including its slots outside `any`.
  static void ScoreRows(const Term* q,
                        int32_t rows,
                        const Panel* keys,
                        SlotRange any,
                        int32_t head_dim,
                        float* scores) {
    constexpr int64_t kStride = kScoreStride * sizeof(float);
    const int64_t row_bytes = RoundedUp(head_dim, kDepth) * int64_t{sizeof(BFloat16)};
    const int64_t group_pairs = int64_t{KeySteps(head_dim)} * kLanes;
    const int32_t end = (any.end + kLanes - 1) / kLanes;
    Factors factors = {.rows = reinterpret_cast<const std::byte*>(q), .row_stride = row_bytes};
    factors.has_second = rows > AmxTile::kRows;
    for (int32_t group = any.begin / kLanes; group < end; group += 2) {
      const bool is_pair = group + 1 < end;
      factors.columns[0] = keys + group * group_pairs;
      factors.columns[1] = is_pair ? factors.columns[0] + group_pairs : factors.columns[0];
      Multiply(factors, KeySteps(head_dim) * kGroup / kDepth);
      float* to = scores + int64_t{group} * kLanes;
      _tile_stored(0, to, kStride);
      if (is_pair) {
        _tile_stored(1, to + kLanes, kStride);
      }
      if (factors.has_second) {
        to += int64_t{AmxTile::kRows} * kScoreStride;
        _tile_stored(2, to, kStride);
        if (is_pair) {
          _tile_stored(3, to + kLanes, kStride);
        }
      }
    }
  }

  // Replaces the rows' scores by softmax weights, and merges the rows' maxima and sums of weights
  // into `running`. Returns the factors with which MergeValuesOfRows merges the rows' values.
  static RowFactors SoftmaxOfRows(
      float* scores, const SlotRange* ranges, int32_t rows, float scale, SoftmaxStats* running) {
    static_assert(kRows <= RowFactors::kRows);
    SoftmaxStats stats[kRows];
    RoundedSoftmaxOfRows(scores, ranges, rows, scale, stats);
    return MergeStats(stats, rows, running);
  }

  // For each row, sums weight * value over the row's slots and merges the sums into the row's
  // running result in `out`.
  static void MergeValuesOfRows(float* weights,
                                const SlotRange* ranges,
                                int32_t rows,
                                SlotRange any,
                                const Panel* values,
                                int32_t head_dim,
                                const RowFactors& row_factors,
                                float* out) {
    const int32_t begin = any.begin / kDepth * kDepth;
    const int32_t end = RoundedUp(any.end, kDepth);
    for (int32_t r = 0; r < rows; ++r) {
      if (ranges[r].begin >= begin + kDepth || ranges[r].end <= end - kDepth) {
        ZeroOutside(weights + int64_t{r} * kScoreStride, ranges[r], {begin, end});
      }
    }
    Factors factors = {
        .rows = reinterpret_cast<const std::byte*>(weights) + begin * sizeof(BFloat16),
        .row_stride = kScoreStride * sizeof(float)};
    factors.has_second = rows > AmxTile::kRows;
    for (int32_t dim = 0; dim < head_dim; dim += 2 * kColumns) {
      const bool is_pair = dim + kColumns < head_dim;
      factors.columns[0] =
          values + dim / kColumns * kDimsStride + int64_t{begin / kGroup} * kColumns;
      factors.columns[1] = is_pair ? factors.columns[0] + kDimsStride : factors.columns[0];
      Multiply(factors, (end - begin) / kDepth);
      alignas(64) float sums[kTilesOfSums][AmxTile::kFloats];
      _tile_stored(0, sums[0], AmxTile::kRowBytes);
      _tile_stored(1, sums[1], AmxTile::kRowBytes);
      _tile_stored(2, sums[2], AmxTile::kRowBytes);
      _tile_stored(3, sums[3], AmxTile::kRowBytes);
      const ValueRows to = {weights, ranges, rows, values, head_dim, &row_factors, out};
      MergeValues(to, dim, sums[0], sums[2]);
      if (is_pair) {
        MergeValues(to, dim + kColumns, sums[1], sums[3]);
      }
    }
  }

 private:
  // Distance from the values of 16 dims to the values of the next 16 dims, in elements of type
  // Pair.
  static constexpr int64_t kDimsStride = int64_t{kAttentionChunkTokens} / kGroup * kColumns;

  struct ValueRows {
    const float* weights;
    const SlotRange* ranges;
    int32_t rows;
    const Panel* values;
    int32_t head_dim;
    const RowFactors* factors;
    float* out;
  };

  // Merges two tiles of sums into 16 dims of the running results, from `dim` on. `first` has the
  // sums of the first 16 rows, `second` those of the other rows.
  static void MergeValues(const ValueRows& t,
                          int32_t dim,
                          const float* first,
                          const float* second) {
    const int32_t columns = t.head_dim - dim < kColumns ? t.head_dim - dim : kColumns;
    const auto mask = static_cast<__mmask16>((1U << columns) - 1);
    for (int64_t r = 0; r < t.rows; ++r) {
      const float* sums = r < AmxTile::kRows ? first : second - AmxTile::kFloats;
      Vec sum = Simd::Load(sums + r * kColumns);
      if (_mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) != 0) {
        sum = SumOfRow(reinterpret_cast<const Pair*>(t.weights + r * kScoreStride),
                       t.ranges[r],
                       t.values + dim / kColumns * kDimsStride);
      }
      // Adds +0, which turns -0 into +0. Else the sign of a zero sum would depend on which zeros
      // were added.
      t.factors->MergeValues(r, Simd::Add(sum, Simd::Zero()), mask, t.out + r * t.head_dim + dim);
    }
  }

  // Packs the values of two slots, 32 dims at a time (Interleave packs 16 dims at a time).
  static void PackPair(const BFloat16* first, const BFloat16* second, int32_t head_dim, Panel* to) {
    const __m512i low = Order();
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(kLanes));
    // permutex2var counts the elements of its second register from 32, but Order() counts them from
    // 16.
    const __m512i of_second = _mm512_set1_epi32(kLanes << 16);
    for (int32_t d = 0; d < head_dim; d += 2 * kLanes) {
      const __m512i a = _mm512_loadu_si512(first + d);
      const __m512i b = _mm512_loadu_si512(second + d);
      Panel* dims = to + d / kColumns * kDimsStride;
      _mm512_storeu_si512(dims, _mm512_permutex2var_epi16(a, _mm512_add_epi16(low, of_second), b));
      _mm512_storeu_si512(dims + kDimsStride,
                          _mm512_permutex2var_epi16(a, _mm512_add_epi16(high, of_second), b));
    }
  }
  static __m256i LoadSlot(
      const BFloat16* const* from, SlotRange slots, int32_t slot, int32_t dim, int32_t n) {
    return slots.contains(slot) ? LoadN(from[slot] + dim, n) : _mm256_setzero_si256();
  }

  // Operands of Multiply: one or two tiles of rows (row_stride bytes from row to row), and two
  // tiles of columns (each contiguous).
  struct Factors {
    const std::byte* rows;
    int64_t row_stride;
    const Panel* columns[2];
    bool has_second;
  };

  // Tiles 0 and 1 get the products of the first tile of rows, 2 and 3 those of the second tile.
  static void Multiply(const Factors& f, int32_t depth) {
    constexpr int64_t kTilePairs = int64_t{kDepth} / kGroup * kColumns;
    const std::byte* first = f.rows;
    const std::byte* second = f.rows + (f.has_second ? AmxTile::kRows * f.row_stride : 0);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < depth; ++k) {
      KeepVectorUnitAwake();
      _tile_loadd(6, f.columns[0] + k * kTilePairs, AmxTile::kRowBytes);
      _tile_loadd(4, first + k * AmxTile::kRowBytes, f.row_stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, f.columns[1] + k * kTilePairs, AmxTile::kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
      if (f.has_second) {
        _tile_loadd(5, second + k * AmxTile::kRowBytes, f.row_stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }

  // For each group of 32 slots in `slots`: zeroes the weights if the group does not overlap
  // `range`.
  static void ZeroOutside(float* row, SlotRange range, SlotRange slots) {
    auto* weights = reinterpret_cast<BFloat16*>(row);
    for (int32_t slot = slots.begin; slot < slots.end; slot += kDepth) {
      if (slot >= range.end || slot + kDepth <= range.begin) {
        _mm512_storeu_si512(weights + slot, _mm512_setzero_si512());
      }
    }
  }

  // Sums weight * value over the row's own slots only. Needed if the row's sum in a tile is NaN: a
  // tile also adds slots outside the row's range, and an infinite value times the weight zero is
  // NaN.
  static Vec SumOfRow(const Pair* weights, SlotRange range, const Panel* values) {
    using Order = TileOrderProducts;
    const Order::ProductScope scope;
    Order::Sum sum = Order::Empty();
    for (int32_t slot = range.begin / kGroup * kGroup; slot < range.end; slot += kGroup) {
      const Panel* pairs = values + int64_t{slot / kGroup} * kColumns;
      sum = Order::MultiplyPart(
          weights[slot / kGroup], Order::LoadValues<false>(pairs, kColumns, 0), slot, range, sum);
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
