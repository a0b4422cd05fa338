#include "kernels/cpu/paged_attention_plan.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "common/base/math.h"

namespace quire {
namespace {

// Where possible, a task has at most 1 / (kPartsPerThread * threads) of the work.
constexpr int64_t kPartsPerThread = 4;
// Work is not cut into tasks of fewer rows than this: two tiles of 6 rows. A row is one (query,
// head) pair.
constexpr int64_t kMinTaskRows = 12;
// A task of several queries is split by chunks only if it has at most this many rows, because each
// row and chunk takes memory for a partial result. A task of more rows can be cut into tiles of
// fewer queries instead.
constexpr int64_t kMaxSplitRows = 16;

struct Tiling {
  int32_t heads_per_kv_head = 0;
  int32_t queries_per_tile = 0;
  int64_t rows_chunks_per_task = 0;  // a larger task (rows * chunks) is split; 0: no splits
};

struct Counts {
  int64_t tasks = 0;
  int64_t splits = 0;
  int64_t partial_floats = 0;
  int64_t rows_chunks = 0;
};

int32_t QueryLength(const PagedAttentionParams& p, int32_t seq) {
  return p.query_start[seq + 1] - p.query_start[seq];
}

AttentionTask MakeTask(const PagedAttentionParams& p, int32_t seq, int32_t begin, int32_t end) {
  const int32_t first_position = p.seq_lens[seq] - QueryLength(p, seq) + begin;
  const int32_t end_position = p.seq_lens[seq] - QueryLength(p, seq) + end;
  const int32_t oldest =
      p.sliding_window > 0 ? std::max(0, first_position - p.sliding_window + 1) : 0;
  AttentionTask task;
  task.seq = seq;
  task.query_begin = begin;
  task.query_end = end;
  task.chunk_begin = oldest / kAttentionChunkTokens;
  task.chunk_end = DivCeil(end_position, kAttentionChunkTokens);
  return task;
}

template <typename Fn>
void ForEachTileOf(const PagedAttentionParams& p, const Tiling& tiling, int32_t seq, const Fn& fn) {
  const int32_t length = QueryLength(p, seq);
  const int32_t num_tiles = DivCeil(length, tiling.queries_per_tile);
  for (int32_t tile = num_tiles - 1; tile >= 0; --tile) {
    const auto begin = static_cast<int32_t>(int64_t{length} * tile / num_tiles);
    const auto end = static_cast<int32_t>(int64_t{length} * (tile + 1) / num_tiles);
    AttentionTask task = MakeTask(p, seq, begin, end);
    for (int32_t head = 0; head < p.cache.layout.num_kv_heads; ++head) {
      task.kv_head = head;
      fn(task);
    }
  }
}

// Visits the tasks of prompts, then the tasks of decodes. A prompt's last task comes first, because
// it has the longest context. With small tasks last, threads finish at about the same time.
template <typename Fn>
void ForEachWholeTask(const PagedAttentionParams& p, const Tiling& tiling, const Fn& fn) {
  for (bool decodes : {false, true}) {
    for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
      if ((QueryLength(p, seq) <= 1) == decodes) {
        ForEachTileOf(p, tiling, seq, fn);
      }
    }
  }
}

int64_t RowsOf(const AttentionTask& task, const Tiling& tiling) {
  return int64_t{task.query_end - task.query_begin} * tiling.heads_per_kv_head;
}

int32_t PartsOf(const AttentionTask& task, const Tiling& tiling) {
  const int64_t rows = RowsOf(task, tiling);
  const bool single_query = task.query_end - task.query_begin == 1;
  if (tiling.rows_chunks_per_task == 0 || (rows > kMaxSplitRows && !single_query)) {
    return 1;
  }
  const int32_t chunks = task.chunk_end - task.chunk_begin;
  const int64_t wanted = DivCeil(rows * chunks, tiling.rows_chunks_per_task);
  return static_cast<int32_t>(std::min<int64_t>(wanted, chunks));
}

Counts CountTasks(const PagedAttentionParams& p, const Tiling& tiling) {
  Counts counts;
  ForEachWholeTask(p, tiling, [&](const AttentionTask& task) {
    const int32_t chunks = task.chunk_end - task.chunk_begin;
    const int32_t parts = PartsOf(task, tiling);
    const int64_t rows = RowsOf(task, tiling);
    counts.tasks += parts;
    counts.rows_chunks += rows * chunks;
    if (parts > 1) {
      ++counts.splits;
      counts.partial_floats += chunks * PartialFloats(rows, p.cache.layout.head_dim);
    }
  });
  return counts;
}

// Writes the tasks and splits. `partials` is memory for the partial results of all splits.
void FillPlan(const PagedAttentionParams& p,
              const Tiling& tiling,
              AttentionTask* next_task,
              AttentionSplit* splits,
              float* partials) {
  int32_t num_splits = 0;
  ForEachWholeTask(p, tiling, [&](AttentionTask task) {
    const int32_t parts = PartsOf(task, tiling);
    if (parts == 1) {
      *next_task++ = task;
      return;
    }
    const int32_t first = task.chunk_begin;
    const int32_t chunks = task.chunk_end - task.chunk_begin;
    splits[num_splits] = {parts, task.chunk_begin, task.chunk_end, partials};
    partials += chunks * PartialFloats(RowsOf(task, tiling), p.cache.layout.head_dim);
    task.split = num_splits++;
    for (int32_t part = 0; part < parts; ++part) {
      task.chunk_begin = first + static_cast<int32_t>(int64_t{chunks} * part / parts);
      task.chunk_end = first + static_cast<int32_t>(int64_t{chunks} * (part + 1) / parts);
      *next_task++ = task;
    }
  });
}

}  // namespace

AttentionPlan PlanAttention(const PagedAttentionParams& p,
                            ThreadTeam& team,
                            int32_t max_task_rows,
                            size_t work_bytes) {
  constexpr size_t kAlignment = 64;
  const int64_t parts = kPartsPerThread * team.num_threads();
  const int64_t total_rows = int64_t{p.query_start[p.num_seqs]} * p.num_heads;
  const int64_t task_rows = std::clamp<int64_t>(total_rows / parts, kMinTaskRows, max_task_rows);
  Tiling tiling;
  tiling.heads_per_kv_head = p.num_heads / p.cache.layout.num_kv_heads;
  tiling.queries_per_tile = std::max(1, static_cast<int32_t>(task_rows) / tiling.heads_per_kv_head);
  Counts counts = CountTasks(p, tiling);
  if (team.num_threads() > 1) {
    tiling.rows_chunks_per_task = std::max<int64_t>(1, counts.rows_chunks / parts);
    counts = CountTasks(p, tiling);
  }

  const size_t tasks_bytes =
      RoundUp(static_cast<size_t>(counts.tasks) * sizeof(AttentionTask), kAlignment);
  const size_t splits_bytes =
      RoundUp(static_cast<size_t>(counts.splits) * sizeof(AttentionSplit), kAlignment);
  const size_t partials_bytes =
      RoundUp(static_cast<size_t>(counts.partial_floats) * sizeof(float), kAlignment);
  auto* memory = static_cast<unsigned char*>(
      team.Scratch(0, tasks_bytes + splits_bytes + partials_bytes + work_bytes));
  auto* tasks = reinterpret_cast<AttentionTask*>(memory);
  auto* splits = reinterpret_cast<AttentionSplit*>(memory + tasks_bytes);
  auto* partials = reinterpret_cast<float*>(memory + tasks_bytes + splits_bytes);
  FillPlan(p, tiling, tasks, splits, partials);

  AttentionPlan plan;
  plan.tasks = tasks;
  plan.splits = splits;
  plan.num_tasks = static_cast<int32_t>(counts.tasks);
  plan.work_bytes = work_bytes;
  plan.work_of_thread_0 = memory + tasks_bytes + splits_bytes + partials_bytes;
  return plan;
}

}  // namespace quire
