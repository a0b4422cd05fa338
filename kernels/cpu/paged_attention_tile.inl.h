// ScoreGroups and WeightValues compute the two products of attention for a tile of up to kTileRows
// rows: scores (q . k) and weighted values. A row is one (query, query head) pair. Sums are held in
// registers. Both are templates over a Products policy P and the stored type E.
//
// Every accumulator belongs to one (row, position) or one (row, dim), and adds its terms in
// ascending order. So the shape of a tile does not affect the result.
//
// A Products policy defines the products of queries and keys, and of weights and values. One step
// multiplies kGroup terms: dims of a key, or slots (positions of the chunk) of the values.
//   Simd              vector interface that the policy uses
//   Panel             element type of the panels of PackBlocks (paged_attention_chunk.inl.h)
//   Operand           kLanes elements of kGroup terms each, in registers
//   Term              kGroup dims of a query, or kGroup weights, side by side
//   kPerElement<E>    terms in one element of E
//   TaskScope         object that exists during a task; its argument: rows of the largest tile
//   ProductScope      object that exists while products are computed
//   kRows             upper bound on the rows of a tile
//   kTaskRows         upper bound on the rows of a task (one query may have more)
//   kHasRowTiles      whether P has ScoreRows, SoftmaxOfRows and MergeValuesOfRows, which compute
//                     a whole tile of rows and replace LoadKeys and all members below it
//   kRoundsWeights    whether P::Softmax, which writes weights as Terms, replaces SoftmaxOfRow
//   KeySteps          number of steps for a packed key
//   PackKeys          packs the keys of n slots into a panel, kLanes elements a step
//   PackValues        packs the values of slots into a panel, head_dim elements a step
//   PackQuery         packs a row of a tile of queries into Terms, kGroup dims each
//   PackWeights       packs a row's weights into Terms, kGroup slots each, in place
//   LoadKeys          loads the step's keys of kLanes slots; dims beyond head_dim are zero
//   LoadValues        loads the step's values of `lanes` dims
//   Sum, Empty, Total a vector of running sums, its initial value, its result
//   kFoldTerms        Fold is called after every kFoldTerms terms, counted from dim or slot 0. If
//                     kFoldTerms is 0, Fold is never called
//   Fold              adds the partial sums in a Sum to the total in the same Sum
//   kVecs<rows>       in a tile of `rows` rows, the number of adjacent vectors of sums per row
//   Multiply          adds the step's products to a Sum
//   MultiplyPart      as Multiply, only for the step's slots inside a range
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_TILE_INL_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_TILE_INL_H_

#include <cstdint>

#include "kernels/api/attention.h"

#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("unroll")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace quire {
namespace {

inline constexpr int kTileRows = 6;
// Floats from one row of scores to the next. The 16 unused floats spread the rows of a tile over
// different cache sets.
inline constexpr int kScoreStride = kAttentionChunkTokens + 16;

// Returns the number of adjacent vectors of sums for each row of a tile: enough to hide the latency
// of Fma (two start per cycle, each takes four cycles), but no more than the registers can hold.
template <typename S>
constexpr int TileVecs(int rows) {
  if (S::kLanes == 16) {
    return rows <= 2 ? 8 : 4;  // AVX-512 has 32 registers
  }
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;  // AVX2 and portable code have 16 registers
}

// Bytes that a vector of kLanes elements takes in the KV cache.
template <typename S, typename E>
constexpr int kVecBytes = static_cast<int>(sizeof(E)) * S::kLanes;
inline constexpr int kCacheLine = 64;

// Slots [begin, end) of a chunk. The values of these slots lie next to each other.
template <typename E>
struct ValueSegment {
  const E* values;       // values of slot `begin`
  const void* prefetch;  // memory to prefetch, as large as the values
  int32_t begin;
  int32_t end;
};

// Slots of a chunk, counted from the chunk's first position.
struct SlotRange {
  int32_t begin = 0;
  int32_t end = 0;

  bool empty() const { return begin >= end; }
  bool contains(int32_t slot) const { return begin <= slot && slot < end; }
};

// The keys and values of one chunk of one KV head.
template <typename S, typename E>
struct ChunkView {
  static constexpr int kGroups = kAttentionChunkTokens / S::kLanes;

  int32_t first_position;  // position of slot 0 in the context
  // keys[g] points to dim 0 of slots [g * kLanes, (g + 1) * kLanes). Set only for groups with a
  // wanted slot: a slot to which some row of the task attends.
  const E* keys[kGroups];
  const void* prefetch[kGroups];  // memory to prefetch, as large as the group's keys
  int64_t key_dim_stride;
  ValueSegment<E> segments[kAttentionChunkTokens];
  int32_t num_segments;
  int64_t value_slot_stride;
};

struct NoProductScope {
  NoProductScope() {}  // NOLINT(modernize-use-equals-default): otherwise an unused variable
};
struct NoTaskScope {
  explicit NoTaskScope(int32_t /*rows*/) {}
};

// The Products policy that widens keys and values to fp32. A step has one term: a dim of a key, or
// a slot of the values.
template <typename S>
struct WidenedProducts {
  using Simd = S;
  using Vec = typename S::Vec;
  using Operand = Vec;
  using Panel = float;
  using Term = float;
  static constexpr int kGroup = 1;
  using TaskScope = NoTaskScope;
  using ProductScope = NoProductScope;
  static constexpr int kRows = kTileRows;
  static constexpr int32_t kTaskRows = 96;
  static constexpr bool kHasRowTiles = false;
  static constexpr bool kRoundsWeights = false;
  template <typename E>
  static constexpr int kPerElement = 1;

  using Sum = Vec;
  static constexpr int kFoldTerms = 0;
  template <int kRowsOfTile>
  static constexpr int kVecs = TileVecs<Simd>(kRowsOfTile);
  static Sum Empty() { return Simd::Zero(); }
  static Vec Total(Sum sum) { return sum; }
  static int32_t KeySteps(int32_t head_dim) { return head_dim; }
  template <typename T>
  static void PackKeys(const T* from, int64_t dim_stride, int32_t head_dim, int32_t n, Panel* to) {
    for (int32_t d = 0; d < head_dim; ++d, to += S::kLanes) {
      S::StoreN(to, S::LoadN(from + d * dim_stride, n), n);
    }
  }
  template <typename T>
  static void PackValues(const T* const* from, SlotRange slots, int32_t head_dim, Panel* to) {
    for (int32_t slot = slots.begin; slot < slots.end; ++slot) {
      for (int32_t d = 0; d < head_dim; d += S::kLanes) {
        const int32_t n = head_dim - d < S::kLanes ? head_dim - d : S::kLanes;
        S::StoreN(to + int64_t{slot} * head_dim + d, S::LoadN(from[slot] + d, n), n);
      }
    }
  }
  static void PackQuery(
      const float* from, int32_t head_dim, int32_t row, int32_t rows, Term* tile) {
    for (int32_t d = 0; d < head_dim; ++d) {
      tile[int64_t{d} * rows + row] = from[d];
    }
  }
  static const Term* PackWeights(float* row, SlotRange /*slots*/) { return row; }

  template <typename E>
  static Vec LoadKeys(const E* keys, int64_t dim_stride, int32_t dim, int32_t /*head_dim*/) {
    return S::Load(keys + dim * dim_stride);
  }
  template <bool kPartial, typename E>
  static Vec LoadValues(const E* values, int64_t /*slot_stride*/, int32_t lanes) {
    return kPartial ? S::LoadN(values, lanes) : S::Load(values);
  }
  static Vec Multiply(Term term, Vec values, Vec sum) {
    return S::Fma(S::Broadcast(term), values, sum);
  }
  static Vec MultiplyPart(Term term, Vec values, int32_t slot, SlotRange range, Vec sum) {
    return range.contains(slot) ? Multiply(term, values, sum) : sum;
  }
};

// Calls P::Fold for all sums if the terms from `at` to `at + P::kGroup - 1` are the last terms of a
// run of kFoldTerms terms. `at` is a dim of the keys or a slot of the values.
template <typename P, int kRows, int kVecs>
inline void FoldSums(int32_t at, typename P::Sum (&sums)[kRows][kVecs]) {
  if constexpr (P::kFoldTerms > 0) {
    if ((at + P::kGroup) % P::kFoldTerms != 0) {
      return;
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        P::Fold(&sums[r][v]);
      }
    }
  }
}

template <typename P, typename E, int kRows, int kVecs, bool kPrefetch>
inline void ScoreTile(const ChunkView<typename P::Simd, E>& chunk,
                      int32_t group,
                      const typename P::Term* q,
                      int32_t head_dim,
                      float* scores) {
  using S = typename P::Simd;
  const E* keys[kVecs];
  const char* prefetch[kVecs];
  typename P::Sum sums[kRows][kVecs];
  QUIRE_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    keys[v] = chunk.keys[group + v];
    prefetch[v] = static_cast<const char*>(chunk.prefetch[group + v]);
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sums[r][v] = P::Empty();
    }
  }
  for (int32_t d = 0; d < head_dim; d += P::kGroup, q += kRows) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const auto k = P::LoadKeys(keys[v], chunk.key_dim_stride, d, head_dim);
      if (kPrefetch && d * kVecBytes<S, E> % kCacheLine == 0) {
        __builtin_prefetch(prefetch[v] + d * kVecBytes<S, E>, 0, 2);
      }
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = P::Multiply(q[r], k, sums[r][v]);
      }
    }
    FoldSums<P>(d, sums);
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      S::Store(scores + int64_t{r} * kScoreStride + int64_t{group + v} * S::kLanes,
               P::Total(sums[r][v]));
    }
  }
}

// Computes scores[r][slot] = q[r] . k[slot] for the slots of groups [group, group_end). The shape
// of q is [head_dim / kGroup, kRows].
template <typename P, typename E, int kRows, bool kPrefetch>
inline void ScoreGroups(const ChunkView<typename P::Simd, E>& chunk,
                        int32_t group,
                        int32_t group_end,
                        const typename P::Term* q,
                        int32_t head_dim,
                        float* scores) {
  constexpr int kMost = P::template kVecs<kRows>;
  for (; group_end - group >= kMost; group += kMost) {
    ScoreTile<P, E, kRows, kMost, kPrefetch>(chunk, group, q, head_dim, scores);
  }
  if (kMost > 4 && group_end - group >= 4) {
    ScoreTile<P, E, kRows, 4, kPrefetch>(chunk, group, q, head_dim, scores);
    group += 4;
  }
  if (kMost > 2 && group_end - group >= 2) {
    ScoreTile<P, E, kRows, 2, kPrefetch>(chunk, group, q, head_dim, scores);
    group += 2;
  }
  if (group_end > group) {
    ScoreTile<P, E, kRows, 1, kPrefetch>(chunk, group, q, head_dim, scores);
  }
}

// The slots to which the rows of a tile attend.
struct TileSlots {
  SlotRange any;          // slots of at least one row
  SlotRange all;          // slots of every row
  const SlotRange* rows;  // [kRows], slots of each row
};

template <typename P, typename E, int kRows, int kVecs, bool kPartial, bool kPrefetch>
inline void ValueTile(const ChunkView<typename P::Simd, E>& chunk,
                      const TileSlots& slots,
                      const typename P::Term* const (&weights)[kRows],
                      int32_t dim,
                      int32_t lanes,
                      float* out,
                      int64_t out_stride) {
  using S = typename P::Simd;
  constexpr int kPerElement = P::template kPerElement<E>;
  typename P::Sum sums[kRows][kVecs];
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = P::Empty();
    }
  }
  for (int32_t i = 0; i < chunk.num_segments; ++i) {
    const ValueSegment<E>& segment = chunk.segments[i];
    const int32_t begin = segment.begin > slots.any.begin ? segment.begin : slots.any.begin;
    const int32_t end = segment.end < slots.any.end ? segment.end : slots.any.end;
    const int32_t first = begin / P::kGroup * P::kGroup;
    const int64_t step = P::kGroup / kPerElement * chunk.value_slot_stride;
    int64_t at =
        (first / kPerElement - segment.begin / kPerElement) * chunk.value_slot_stride + dim;
    for (int32_t slot = first; slot < end; slot += P::kGroup, at += step) {
      typename P::Operand values[kVecs];
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const E* source = segment.values + at + v * S::kLanes;
        values[v] = P::template LoadValues<kPartial>(source, chunk.value_slot_stride, lanes);
        if (kPrefetch && v * kVecBytes<S, E> % kCacheLine == 0) {
          const auto* ahead = static_cast<const E*>(segment.prefetch) + at + v * S::kLanes;
          QUIRE_UNROLL
          for (int row = 0; row < P::kGroup / kPerElement; ++row) {
            __builtin_prefetch(ahead + row * chunk.value_slot_stride, 0, 2);
          }
        }
      }
      // A value outside the row's range must not even be added with weight zero: an infinite value
      // times zero is NaN.
      const bool all = slots.all.begin <= slot && slot + P::kGroup <= slots.all.end;
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const typename P::Term weight = weights[r][slot / P::kGroup];
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          sums[r][v] = all ? P::Multiply(weight, values[v], sums[r][v])
                           : P::MultiplyPart(weight, values[v], slot, slots.rows[r], sums[r][v]);
        }
      }
      FoldSums<P>(slot, sums);
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      float* to = out + r * out_stride + dim + v * S::kLanes;
      kPartial ? S::StoreN(to, P::Total(sums[r][v]), lanes) : S::Store(to, P::Total(sums[r][v]));
    }
  }
}

// Computes out[r][dim], the sum over the row's slots of weight[r][slot] * v[slot][dim]. The weights
// are in `scores`, which PackWeights may overwrite.
template <typename P, typename E, int kRows, bool kPrefetch>
inline void WeightValues(const ChunkView<typename P::Simd, E>& chunk,
                         const TileSlots& slots,
                         float* scores,
                         int32_t head_dim,
                         float* out) {
  using S = typename P::Simd;
  constexpr int kMost = P::template kVecs<kRows>;
  const typename P::Term* weights[kRows];
  for (int r = 0; r < kRows; ++r) {
    weights[r] = P::PackWeights(scores + int64_t{r} * kScoreStride, slots.any);
  }
  int32_t dim = 0;
  for (; head_dim - dim >= kMost * S::kLanes; dim += kMost * S::kLanes) {
    ValueTile<P, E, kRows, kMost, false, kPrefetch>(chunk, slots, weights, dim, 0, out, head_dim);
  }
  if (kMost > 4 && head_dim - dim >= 4 * S::kLanes) {
    ValueTile<P, E, kRows, 4, false, kPrefetch>(chunk, slots, weights, dim, 0, out, head_dim);
    dim += 4 * S::kLanes;
  }
  if (kMost > 2 && head_dim - dim >= 2 * S::kLanes) {
    ValueTile<P, E, kRows, 2, false, kPrefetch>(chunk, slots, weights, dim, 0, out, head_dim);
    dim += 2 * S::kLanes;
  }
  if (head_dim - dim >= S::kLanes) {
    ValueTile<P, E, kRows, 1, false, kPrefetch>(chunk, slots, weights, dim, 0, out, head_dim);
    dim += S::kLanes;
  }
  if (head_dim > dim) {
    ValueTile<P, E, kRows, 1, true, kPrefetch>(
        chunk, slots, weights, dim, head_dim - dim, out, head_dim);
  }
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_TILE_INL_H_
