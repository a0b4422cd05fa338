// The kernel of PagedAttention as a template over a Products policy P (paged_attention_tile.inl.h).
// Only paged_attention_<isa>.cc include it. paged_attention.h has the order of all sums.
//
// A row is one (query, query head) pair; a slot is a position of a chunk. A task computes its
// chunks in ascending order. In each chunk, AttendTile computes scores, softmax and weighted values
// for tiles of up to kTileRows rows. The chunk's result is then merged into the rows' running
// result. If a task is split by chunks, the part that finishes last does all merges.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_KERNEL_INL_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_KERNEL_INL_H_

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cpu/paged_attention_chunk.inl.h"
#include "kernels/cpu/paged_attention_plan.h"
#include "kernels/cpu/paged_attention_softmax.inl.h"
#include "kernels/cpu/paged_attention_tile.inl.h"
#include "kernels/cpu/storage_types.h"
#include "kernels/cpu/thread_team.h"

namespace quire {
namespace {

// Tasks of at least this many rows pack keys and values. With fewer rows, packing costs more than
// it saves.
inline constexpr int32_t kPackRows = 24;

// The merged result of some chunks for a task's rows, in PartialFloats(rows, head_dim) floats.
struct Partial {
  SoftmaxStats* stats;  // [rows]
  float* values;        // [rows, head_dim]

  Partial(float* memory, int64_t rows)
      : stats(reinterpret_cast<SoftmaxStats*>(memory)), values(memory + 2 * rows) {}
};

template <typename P>
int32_t MaxTaskRows(int32_t heads_per_kv_head) {
  return heads_per_kv_head > P::kTaskRows ? heads_per_kv_head : P::kTaskRows;
}

template <typename S>
struct TaskMemory {
  float* q;             // queries, in tiles of rows, as PackQuery writes them
  SlotRange* ranges;    // [rows], slots of the current chunk that each row attends to
  float* scores;        // [tile_rows, kScoreStride]
  float* running;       // a Partial of all chunks so far
  float* chunk;         // a Partial of the current chunk; unused if P::kHasRowTiles
  float* key_panel;     // room for [kGroups][head_dim][kLanes] floats
  float* value_panel;   // room for [kAttentionChunkTokens][head_dim] floats
  float* key_scales;    // [kAttentionChunkTokens], of the current chunk, if the cache has scales
  float* value_scales;  // as key_scales

  TaskMemory(void* memory, int64_t rows, int64_t tile_rows, int64_t head_dim) {
    auto* base = static_cast<float*>(memory);
    const Layout at(rows, tile_rows, head_dim);
    q = base + at.q;
    ranges = reinterpret_cast<SlotRange*>(base + at.ranges);
    scores = base + at.scores;
    running = base + at.running;
    chunk = base + at.chunk;
    key_panel = base + at.key_panel;
    value_panel = base + at.value_panel;
    key_scales = base + at.key_scales;
    value_scales = base + at.value_scales;
  }

  static size_t Bytes(int64_t rows, int64_t tile_rows, int64_t head_dim) {
    return static_cast<size_t>(Layout(rows, tile_rows, head_dim).end) * sizeof(float);
  }

  // Returns head_dim, padded to the multiple that the strictest Products policy needs.
  static int64_t PaddedDims(int64_t head_dim) {
    constexpr int64_t kMultiple = 32;
    return (head_dim + kMultiple - 1) / kMultiple * kMultiple;
  }

 private:
  // Offsets of the arrays in the memory, in floats. `end` is the size of the memory.
  struct Layout {
    int64_t end = 0;
    int64_t q, ranges, scores, running, chunk, key_panel, value_panel, key_scales, value_scales;

    Layout(int64_t rows, int64_t tile_rows, int64_t head_dim) {
      const int64_t dims = PaddedDims(head_dim);
      q = Take((rows + tile_rows) * dims);  // room to read a partial last tile like a full one
      ranges = Take(2 * rows);
      scores = Take(tile_rows * kScoreStride);
      running = Take(PartialFloats(rows, head_dim));
      chunk = Take(PartialFloats(rows, head_dim));
      key_panel = Take(kAttentionChunkTokens * dims);
      value_panel = Take(kAttentionChunkTokens * dims);
      key_scales = Take(kAttentionChunkTokens);
      value_scales = Take(kAttentionChunkTokens);
    }

    int64_t Take(int64_t floats) {
      constexpr int64_t kAlignment = 16;  // floats
      const int64_t begin = end;
      end += (floats + kAlignment - 1) / kAlignment * kAlignment;
      return begin;
    }
  };
};

// Divides the rows of a task, ordered by query and then head, into tiles of nearly equal size.
struct RowTiles {
  int32_t rows;
  int32_t tiles;

  RowTiles(int32_t num_rows, int32_t tile_rows)
      : rows(num_rows), tiles((num_rows + tile_rows - 1) / tile_rows) {}
  int32_t begin(int32_t tile) const { return static_cast<int32_t>(int64_t{rows} * tile / tiles); }
  int32_t end(int32_t tile) const { return begin(tile + 1); }
};

template <typename P, typename T>
class AttentionTaskRunner {
  using S = typename P::Simd;
  using Panel = typename P::Panel;
  using Term = typename P::Term;
  static_assert(sizeof(Panel) <= sizeof(float) && sizeof(Term) <= sizeof(float));

 public:
  AttentionTaskRunner(const PagedAttentionParams& params,
                      const AttentionPlan& plan,
                      const AttentionTask& task,
                      void* memory)
      : p_(params),
        plan_(plan),
        task_(task),
        head_dim_(params.cache.layout.head_dim),
        group_(params.num_heads / params.cache.layout.num_kv_heads),
        tiles_((task.query_end - task.query_begin) * group_, P::kRows),
        memory_(memory, MaxTaskRows<P>(group_), P::kRows, head_dim_) {
    first_token_ = p_.query_start[task.seq] + task.query_begin;
    const int32_t query_length = p_.query_start[task.seq + 1] - p_.query_start[task.seq];
    first_position_ = p_.seq_lens[task.seq] - query_length + task.query_begin;
    context_.layout = &p_.cache.layout;
    if (p_.first_places != nullptr) {
      context_.base = static_cast<const T*>(p_.cache.windows) +
                      p_.first_places[task.seq] * p_.cache.layout.block_stride;
      context_.table = nullptr;
    } else {
      context_.base = static_cast<const T*>(p_.cache.base);
      context_.table = p_.block_tables + int64_t{task.seq} * p_.max_blocks_per_seq;
    }
    context_.layer = p_.layer;
    context_.kv_head = task.kv_head;
    const int32_t block_size = p_.cache.layout.block_size_tokens;
    context_.num_blocks = (p_.seq_lens[task.seq] + block_size - 1) / block_size;
  }

  void Run() {
    const typename P::TaskScope scope((tiles_.rows + tiles_.tiles - 1) / tiles_.tiles);
    PackQueries();
    if (task_.split >= 0) {
      RunSplit();
      return;
    }
    const Partial running(memory_.running, tiles_.rows);
    if constexpr (P::kHasRowTiles) {
      Clear(running);
    }
    AttendChunk(task_.chunk_begin, running);
    for (int32_t chunk = task_.chunk_begin + 1; chunk < task_.chunk_end; ++chunk) {
      if constexpr (P::kHasRowTiles) {
        AttendChunk(chunk, running);
      } else {
        const Partial partial(memory_.chunk, tiles_.rows);
        AttendChunk(chunk, partial);
        MergeChunk(partial, running);
      }
    }
    Finish(running);
  }

 private:
  // The thread that decrements tasks_left to zero merges all partial results. This thread sees the
  // results of the other threads, because its acquire pairs with their releases.
  void RunSplit() {
    AttentionSplit& split = plan_.splits[task_.split];
    const int64_t partial_floats = PartialFloats(tiles_.rows, head_dim_);
    for (int32_t chunk = task_.chunk_begin; chunk < task_.chunk_end; ++chunk) {
      float* memory = split.partials + (chunk - split.chunk_begin) * partial_floats;
      const Partial partial(memory, tiles_.rows);
      if constexpr (P::kHasRowTiles) {
        Clear(partial);
      }
      AttendChunk(chunk, partial);
    }
    if (__atomic_sub_fetch(&split.tasks_left, 1, __ATOMIC_ACQ_REL) != 0) {
      return;
    }
    const Partial running(memory_.running, tiles_.rows);
    Clear(running);
    for (int32_t i = 0; i < split.chunk_end - split.chunk_begin; ++i) {
      MergeChunk(Partial(split.partials + i * partial_floats, tiles_.rows), running);
    }
    Finish(running);
  }

  // Marks a result as empty: no chunk has been merged into it yet.
  void Clear(const Partial& result) {
    for (int32_t row = 0; row < tiles_.rows; ++row) {
      result.stats[row] = {};
    }
  }

  void MergeChunk(const Partial& partial, const Partial& running) {
    for (int32_t row = 0; row < tiles_.rows; ++row) {
      const int64_t at = int64_t{row} * head_dim_;
      MergeRow<S>(partial.stats[row],
                  partial.values + at,
                  head_dim_,
                  &running.stats[row],
                  running.values + at);
    }
  }

  // Returns the offset of a row in q or out, in elements.
  int64_t RowOffset(int32_t row, int64_t token_stride) const {
    const int64_t head = int64_t{task_.kv_head} * group_ + row % group_;
    return (first_token_ + row / group_) * token_stride + head * head_dim_;
  }

  void Finish(const Partial& running) {
    for (int32_t row = 0; row < tiles_.rows; ++row) {
      FinishRow<S>(running.stats[row],
                   running.values + int64_t{row} * head_dim_,
                   head_dim_,
                   static_cast<float*>(p_.out) + RowOffset(row, int64_t{p_.num_heads} * head_dim_));
    }
  }

  void PackQueries() {
    for (int32_t tile = 0; tile < tiles_.tiles; ++tile) {
      const int32_t begin = tiles_.begin(tile);
      const int32_t rows = tiles_.end(tile) - begin;
      for (int32_t r = 0; r < rows; ++r) {
        const float* from = static_cast<const float*>(p_.q) + RowOffset(begin + r, p_.q_row_stride);
        P::PackQuery(from, head_dim_, r, rows, QueriesOf(begin));
      }
    }
  }

  // Returns the packed queries of the tile that begins at first_row.
  Term* QueriesOf(int32_t first_row) const {
    return reinterpret_cast<Term*>(memory_.q) + first_row * TaskMemory<S>::PaddedDims(head_dim_);
  }

  // Writes to memory_.ranges the slots of the chunk that each row attends to. Returns the union of
  // all rows' slots.
  SlotRange FindRanges(int32_t chunk_position) {
    SlotRange wanted{kAttentionChunkTokens, 0};
    for (int32_t row = 0; row < tiles_.rows; row += group_) {
      const int32_t position = first_position_ + row / group_;
      const int32_t oldest = p_.sliding_window > 0 ? position - p_.sliding_window + 1 : 0;
      SlotRange range{oldest - chunk_position, position + 1 - chunk_position};
      range.begin = range.begin > 0 ? range.begin : 0;
      range.end = range.end < kAttentionChunkTokens ? range.end : kAttentionChunkTokens;
      for (int32_t head = 0; head < group_; ++head) {
        memory_.ranges[row + head] = range;
      }
      if (!range.empty()) {
        wanted.begin = range.begin < wanted.begin ? range.begin : wanted.begin;
        wanted.end = range.end > wanted.end ? range.end : wanted.end;
      }
    }
    return wanted;
  }

  // Computes attention over one chunk. If P::kHasRowTiles, merges the chunk into `result`.
  // Otherwise overwrites `result`.
  void AttendChunk(int32_t chunk, const Partial& result) {
    const int32_t chunk_position = chunk * kAttentionChunkTokens;
    const SlotRange wanted = FindRanges(chunk_position);
    if constexpr (kHasScales<T>) {
      GatherScales(context_, chunk_position, wanted, memory_.key_scales, memory_.value_scales);
    }
    const bool vectors_inside_blocks = p_.cache.layout.block_size_tokens % S::kLanes == 0;
    if (P::kHasRowTiles || tiles_.rows >= kPackRows || !vectors_inside_blocks) {
      ChunkView<S, Panel> view;
      PackBlocks<P, T>(context_,
                       chunk_position,
                       wanted,
                       reinterpret_cast<Panel*>(memory_.key_panel),
                       reinterpret_cast<Panel*>(memory_.value_panel),
                       &view);
      if constexpr (P::kHasRowTiles) {
        AttendRowTiles(chunk_position, result);
      } else {
        AttendTiles<Panel, false>(view, result);
      }
    } else if constexpr (!P::kHasRowTiles) {
      ChunkView<S, T> view;
      ViewBlocks<S, T>(context_, chunk_position, wanted, &view);
      tiles_.tiles == 1 ? AttendTiles<T, true>(view, result) : AttendTiles<T, false>(view, result);
    }
  }

  void AttendRowTiles(int32_t chunk_position, const Partial& result) {
    for (int32_t tile = 0; tile < tiles_.tiles; ++tile) {
      const int32_t begin = tiles_.begin(tile);
      const int32_t rows = tiles_.end(tile) - begin;
      const SlotRange* ranges = memory_.ranges + begin;
      const SlotRange any = SlotsOfTile(ranges, rows).any;
      if (any.empty()) {
        continue;
      }
      P::ScoreRows(QueriesOf(begin),
                   rows,
                   reinterpret_cast<const Panel*>(memory_.key_panel),
                   any,
                   head_dim_,
                   memory_.scores);
      float scale = p_.scale;
      for (int32_t r = 0; p_.alibi_slopes != nullptr && r < rows; ++r) {
        scale = BiasRow(begin + r, chunk_position, ranges[r], memory_.scores + r * kScoreStride);
      }
      const auto factors =
          P::SoftmaxOfRows(memory_.scores, ranges, rows, scale, result.stats + begin);
      P::MergeValuesOfRows(memory_.scores,
                           ranges,
                           rows,
                           any,
                           reinterpret_cast<const Panel*>(memory_.value_panel),
                           head_dim_,
                           factors,
                           result.values + int64_t{begin} * head_dim_);
    }
  }

  template <typename E, bool kPrefetch>
  void AttendTiles(const ChunkView<S, E>& view, const Partial& result) {
    for (int32_t tile = 0; tile < tiles_.tiles; ++tile) {
      const int32_t begin = tiles_.begin(tile);
      switch (tiles_.end(tile) - begin) {
        case 1:
          AttendTile<E, 1, kPrefetch>(view, begin, result);
          break;
        case 2:
          AttendTile<E, 2, kPrefetch>(view, begin, result);
          break;
        case 3:
          AttendTile<E, 3, kPrefetch>(view, begin, result);
          break;
        case 4:
          AttendTile<E, 4, kPrefetch>(view, begin, result);
          break;
        case 5:
          AttendTile<E, 5, kPrefetch>(view, begin, result);
          break;
        default:
          AttendTile<E, kTileRows, kPrefetch>(view, begin, result);
      }
    }
  }

  static TileSlots SlotsOfTile(const SlotRange* ranges, int32_t rows) {
    TileSlots slots{{kAttentionChunkTokens, 0}, {0, kAttentionChunkTokens}, ranges};
    for (int32_t r = 0; r < rows; ++r) {
      const SlotRange range = ranges[r];
      slots.all.begin = range.begin > slots.all.begin ? range.begin : slots.all.begin;
      slots.all.end = range.end < slots.all.end ? range.end : slots.all.end;
      if (!range.empty()) {
        slots.any.begin = range.begin < slots.any.begin ? range.begin : slots.any.begin;
        slots.any.end = range.end > slots.any.end ? range.end : slots.any.end;
      }
    }
    return slots;
  }

  // With ALiBi, multiplies the scores by p_.scale, adds the bias and returns 1. Without ALiBi,
  // returns p_.scale, by which the scores must still be multiplied.
  float BiasRow(int32_t row, int32_t first_position, SlotRange range, float* scores) {
    if (p_.alibi_slopes == nullptr) {
      return p_.scale;
    }
    const float slope = p_.alibi_slopes[task_.kv_head * group_ + row % group_];
    const int32_t position = first_position_ + row / group_;
    BiasSlots<S>(scores, range, p_.scale, slope, first_position - position);
    return 1.0F;
  }

  // Turns the row's scores into softmax weights, multiplied by the values' scales if the cache has
  // scales. `first_position` is the position of the chunk's slot 0.
  SoftmaxStats WeightsOfRow(int32_t row, int32_t first_position, SlotRange range, float* scores) {
    if constexpr (kHasScales<T>) {
      MultiplySlots<S>(scores, range, memory_.key_scales);
    }
    const float scale = BiasRow(row, first_position, range, scores);
    if constexpr (P::kRoundsWeights) {
      return P::Softmax(scores, range, scale);
    } else {
      const SoftmaxStats stats = SoftmaxOfRow<S>(scores, range, scale);
      if constexpr (kHasScales<T>) {
        MultiplySlots<S>(scores, range, memory_.value_scales);
      }
      return stats;
    }
  }

  template <typename E, int kRows, bool kPrefetch>
  void AttendTile(const ChunkView<S, E>& view, int32_t first_row, const Partial& result) {
    const SlotRange* ranges = memory_.ranges + first_row;
    const TileSlots slots = SlotsOfTile(ranges, kRows);
    if (!slots.any.empty()) {
      const int32_t group_end = (slots.any.end + S::kLanes - 1) / S::kLanes;
      const typename P::ProductScope scope;
      ScoreGroups<P, E, kRows, kPrefetch>(view,
                                          slots.any.begin / S::kLanes,
                                          group_end,
                                          QueriesOf(first_row),
                                          head_dim_,
                                          memory_.scores);
    }
    for (int r = 0; r < kRows; ++r) {
      const int32_t row = first_row + r;
      result.stats[row] =
          WeightsOfRow(row, view.first_position, ranges[r], memory_.scores + r * kScoreStride);
    }
    if (!slots.any.empty()) {
      const typename P::ProductScope scope;
      WeightValues<P, E, kRows, kPrefetch>(
          view, slots, memory_.scores, head_dim_, result.values + int64_t{first_row} * head_dim_);
    }
  }

  const PagedAttentionParams& p_;
  const AttentionPlan& plan_;
  const AttentionTask& task_;
  const int32_t head_dim_;
  const int32_t group_;  // query heads per KV head
  const RowTiles tiles_;
  const TaskMemory<S> memory_;
  int64_t first_token_ = 0;
  int32_t first_position_ = 0;
  ContextBlocks<T> context_;
};

// Tasks of up to kFewRows rows use the policy Few if P::kHasRowTiles and each vector of slots lies
// inside one block. All other tasks use the policy P.
template <typename Few, typename P, typename T>
void PagedAttentionOf(const PagedAttentionParams& p, ThreadTeam& team) {
  using Memory = TaskMemory<typename P::Simd>;
  constexpr int32_t kFewRows = 4;
  const int32_t group = p.num_heads / p.cache.layout.num_kv_heads;
  const bool vectors_inside_blocks = p.cache.layout.block_size_tokens % P::Simd::kLanes == 0;
  static_assert(Few::kRows <= P::kRows && Few::kTaskRows <= P::kTaskRows);
  const size_t work_bytes = Memory::Bytes(MaxTaskRows<P>(group), P::kRows, p.cache.layout.head_dim);
  const AttentionPlan plan = PlanAttention(p, team, P::kTaskRows, work_bytes);
  team.ParallelFor(plan.num_tasks, [&](int64_t index, int thread) {
    const AttentionTask& task = plan.tasks[index];
    void* memory = plan.WorkMemory(team, thread);
    if constexpr (P::kHasRowTiles) {
      if ((task.query_end - task.query_begin) * group <= kFewRows && vectors_inside_blocks) {
        AttentionTaskRunner<Few, T>(p, plan, task, memory).Run();
        return;
      }
    }
    AttentionTaskRunner<P, T>(p, plan, task, memory).Run();
  });
}

template <typename S>
void PagedAttentionKernel(const PagedAttentionParams& p, ThreadTeam& team) {
  using P = WidenedProducts<S>;
  switch (p.cache.layout.dtype) {
    case DType::kF32:
      return PagedAttentionOf<P, P, float>(p, team);
    case DType::kF16:
      return PagedAttentionOf<P, P, Float16>(p, team);
    case DType::kBF16:
      return PagedAttentionOf<P, P, BFloat16>(p, team);
    case DType::kF8E4M3:
      return PagedAttentionOf<P, P, Float8E4M3>(p, team);
    case DType::kInt8:
      return PagedAttentionOf<P, P, Int8>(p, team);
  }
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_KERNEL_INL_H_
