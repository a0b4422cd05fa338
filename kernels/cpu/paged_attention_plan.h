// AttentionPlan holds the tasks of one PagedAttention call and the memory that they share.
//
// A task computes a tile of queries of one sequence, for all query heads of one KV head, over a
// range of chunks of 256 positions. Usually the range is the whole context. If there are too few
// tasks for the threads, tasks are split by chunks. The parts of a split task write a partial
// result per chunk, and the part that finishes last merges the partial results in order. Splitting
// changes no bit of the result.
//
// Thread safety: the caller's thread makes the plan. Afterwards all threads read it, and change
//                only AttentionSplit::tasks_left and the memory for results.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_PLAN_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

struct AttentionTask {
  int32_t seq = 0;
  int32_t kv_head = 0;
  // The task has queries [query_begin, query_end) of the sequence, counted from the sequence's
  // first query in this step.
  int32_t query_begin = 0;
  int32_t query_end = 0;
  // The task attends to chunks [chunk_begin, chunk_end) of the context.
  int32_t chunk_begin = 0;
  int32_t chunk_end = 0;
  int32_t split = -1;  // index of the AttentionSplit that this task is a part of; -1: not split
};

// State that the parts of one split task share.
struct AttentionSplit {
  int32_t tasks_left = 0;  // changed by atomic builtins only
  int32_t chunk_begin = 0;
  int32_t chunk_end = 0;
  float* partials = nullptr;  // [chunk_end - chunk_begin]: a result per chunk, for the task's rows
};

struct AttentionPlan {
  const AttentionTask* tasks = nullptr;
  AttentionSplit* splits = nullptr;
  int32_t num_tasks = 0;
  size_t work_bytes = 0;  // bytes of the memory that each thread needs for a task
  // The memory of work_bytes bytes for thread 0. It follows the plan in thread 0's scratch memory.
  void* work_of_thread_0 = nullptr;

  void* WorkMemory(ThreadTeam& team, int thread) const {
    return thread == 0 ? work_of_thread_0 : team.Scratch(thread, work_bytes);
  }
};

// Returns how many floats hold the partial result of one chunk: maximum, sum and weighted values of
// each row.
inline int64_t PartialFloats(int64_t rows, int64_t head_dim) { return rows * (head_dim + 2); }

// Writes the plan into team.Scratch(0, ...). No other code may use that memory until the attention
// call returns. A row is one (query, head) pair. A task has at most max_task_rows rows, but at
// least all rows of one query and KV head. With more rows per task, K and V are read less often;
// with fewer rows, there are more tasks to spread over the threads.
AttentionPlan PlanAttention(const PagedAttentionParams& params,
                            ThreadTeam& team,
                            int32_t max_task_rows,
                            size_t work_bytes);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_PLAN_H_
