// The two inner products of attention for a tile of up to kTileRows rows: scores (q . k) and
// weighted values, held in registers. Templates over a Simd struct S and the stored type E.
//
// Every accumulator belongs to one (row, position) or one (row, dim), and takes its terms in
// ascending order; the shape of a tile is therefore free.
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
// Scores of a row, with a gap so that the rows of a tile do not fall into the same cache sets.
inline constexpr int kScoreStride = kAttentionChunkTokens + 16;

// Vectors next to each other in a tile: enough accumulators to hide the latency of Fma (two a
// cycle, four cycles each), no more than there are registers.
template <typename S>
constexpr int TileVecs(int rows) {
  if (S::kLanes == 16) {
    return rows <= 2 ? 8 : 4;  // 32 registers
  }
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;  // 16 registers
}

// As it lies in the cache.
template <typename S, typename E>
constexpr int kVecBytes = static_cast<int>(sizeof(E)) * S::kLanes;
inline constexpr int kCacheLine = 64;

// Slots [begin, end) of a chunk whose values lie next to each other.
template <typename E>
struct ValueSegment {
  const E* values;       // of slot `begin`
  const void* prefetch;  // what will be wanted next, as many bytes as the values
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

  int32_t first_position;  // of the context, where the chunk begins
  // keys[g]: dim 0 of slots [g * kLanes, (g + 1) * kLanes), for groups that hold a wanted slot.
  const E* keys[kGroups];
  const void* prefetch[kGroups];  // what will be wanted next, as many bytes as the group's keys
  int64_t key_dim_stride;
  ValueSegment<E> segments[kAttentionChunkTokens];
  int32_t num_segments;
  int64_t value_slot_stride;
};

template <typename S, typename E, int kRows, int kVecs, bool kPrefetch>
inline void ScoreTile(
    const ChunkView<S, E>& chunk, int32_t group, const float* q, int32_t head_dim, float* scores) {
  const E* keys[kVecs];
  const char* prefetch[kVecs];
  typename S::Vec sums[kRows][kVecs];
  QUIRE_UNROLL
  for (int v = 0; v < kVecs; ++v) {
    keys[v] = chunk.keys[group + v];
    prefetch[v] = static_cast<const char*>(chunk.prefetch[group + v]);
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sums[r][v] = S::Zero();
    }
  }
  for (int32_t d = 0; d < head_dim; ++d) {
    const int64_t at = d * chunk.key_dim_stride;
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const typename S::Vec k = S::Load(keys[v] + at);
      if (kPrefetch && d * kVecBytes<S, E> % kCacheLine == 0) {
        __builtin_prefetch(prefetch[v] + d * kVecBytes<S, E>, 0, 2);
      }
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = S::Fma(S::Broadcast(q[d * kRows + r]), k, sums[r][v]);
      }
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      S::Store(scores + int64_t{r} * kScoreStride + int64_t{group + v} * S::kLanes, sums[r][v]);
    }
  }
}

// scores[r][slot] = q[r] . k[slot] for the slots of groups [group, group_end). q is
// [head_dim, kRows].
template <typename S, typename E, int kRows, bool kPrefetch>
inline void ScoreGroups(const ChunkView<S, E>& chunk,
                        int32_t group,
                        int32_t group_end,
                        const float* q,
                        int32_t head_dim,
                        float* scores) {
  constexpr int kMost = TileVecs<S>(kRows);
  for (; group_end - group >= kMost; group += kMost) {
    ScoreTile<S, E, kRows, kMost, kPrefetch>(chunk, group, q, head_dim, scores);
  }
  if (kMost > 4 && group_end - group >= 4) {
    ScoreTile<S, E, kRows, 4, kPrefetch>(chunk, group, q, head_dim, scores);
    group += 4;
  }
  if (kMost > 2 && group_end - group >= 2) {
    ScoreTile<S, E, kRows, 2, kPrefetch>(chunk, group, q, head_dim, scores);
    group += 2;
  }
  if (group_end > group) {
    ScoreTile<S, E, kRows, 1, kPrefetch>(chunk, group, q, head_dim, scores);
  }
}

// The slots of a tile's rows: wanted by any row, and wanted by all.
struct TileSlots {
  SlotRange any;
  SlotRange all;
  const SlotRange* rows;  // [kRows]
};

template <typename S, typename E, int kRows, int kVecs, bool kPartial, bool kPrefetch>
inline void ValueTile(const ChunkView<S, E>& chunk,
                      const TileSlots& slots,
                      const float* weights,
                      int32_t dim,
                      int32_t lanes,
                      float* out,
                      int64_t out_stride) {
  typename S::Vec sums[kRows][kVecs];
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = S::Zero();
    }
  }
  for (int32_t i = 0; i < chunk.num_segments; ++i) {
    const ValueSegment<E>& segment = chunk.segments[i];
    const int32_t begin = segment.begin > slots.any.begin ? segment.begin : slots.any.begin;
    const int32_t end = segment.end < slots.any.end ? segment.end : slots.any.end;
    int64_t at = (begin - segment.begin) * chunk.value_slot_stride + dim;
    for (int32_t slot = begin; slot < end; ++slot, at += chunk.value_slot_stride) {
      typename S::Vec values[kVecs];
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const E* source = segment.values + at + v * S::kLanes;
        values[v] = kPartial ? S::LoadN(source, lanes) : S::Load(source);
        if (kPrefetch && v * kVecBytes<S, E> % kCacheLine == 0) {
          const auto* ahead = static_cast<const E*>(segment.prefetch) + at + v * S::kLanes;
          __builtin_prefetch(ahead, 0, 2);
        }
      }
      // A row takes nothing, not even a zero, from a slot outside its range: the value there may be
      // infinite.
      const bool all = slots.all.contains(slot);
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (all || slots.rows[r].contains(slot)) {
          const typename S::Vec weight = S::Broadcast(weights[r * kScoreStride + slot]);
          QUIRE_UNROLL
          for (int v = 0; v < kVecs; ++v) {
            sums[r][v] = S::Fma(weight, values[v], sums[r][v]);
          }
        }
      }
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      float* to = out + r * out_stride + dim + v * S::kLanes;
      kPartial ? S::StoreN(to, sums[r][v], lanes) : S::Store(to, sums[r][v]);
    }
  }
}

// out[r][dim] = sum over the row's slots of weights[r][slot] * v[slot][dim].
template <typename S, typename E, int kRows, bool kPrefetch>
inline void WeightValues(const ChunkView<S, E>& chunk,
                         const TileSlots& slots,
                         const float* weights,
                         int32_t head_dim,
                         float* out) {
  constexpr int kMost = TileVecs<S>(kRows);
  int32_t dim = 0;
  for (; head_dim - dim >= kMost * S::kLanes; dim += kMost * S::kLanes) {
    ValueTile<S, E, kRows, kMost, false, kPrefetch>(chunk, slots, weights, dim, 0, out, head_dim);
  }
  if (kMost > 4 && head_dim - dim >= 4 * S::kLanes) {
    ValueTile<S, E, kRows, 4, false, kPrefetch>(chunk, slots, weights, dim, 0, out, head_dim);
    dim += 4 * S::kLanes;
  }
  if (kMost > 2 && head_dim - dim >= 2 * S::kLanes) {
    ValueTile<S, E, kRows, 2, false, kPrefetch>(chunk, slots, weights, dim, 0, out, head_dim);
    dim += 2 * S::kLanes;
  }
  if (head_dim - dim >= S::kLanes) {
    ValueTile<S, E, kRows, 1, false, kPrefetch>(chunk, slots, weights, dim, 0, out, head_dim);
    dim += S::kLanes;
  }
  if (head_dim > dim) {
    ValueTile<S, E, kRows, 1, true, kPrefetch>(
        chunk, slots, weights, dim, head_dim - dim, out, head_dim);
  }
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_TILE_INL_H_
