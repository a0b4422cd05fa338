#include "kernels/gpu/decode_memory.h"

#include <algorithm>

#include "common/base/math.h"
#include "kernels/cuda/decode_lines.h"

namespace quire {
namespace {

constexpr int64_t kFloat = sizeof(float);

int32_t RowsOf(int32_t query_tokens, const StepShape& shape) {
  return query_tokens * shape.num_queries_per_kv_head();
}

// Returns the most splits that a sequence's keys can touch.
int64_t NumSplits(int64_t context_tokens, int32_t query_tokens, const StepShape& shape) {
  const int64_t whole = DivCeil(context_tokens, int64_t{shape.split_tokens});
  if (shape.sliding_window == 0) {
    return whole;
  }
  const int64_t keys = int64_t{shape.sliding_window} + query_tokens - 1;
  // A sliding window can begin inside a split and then touches one split more.
  return std::min(whole, DivCeil(keys, int64_t{shape.split_tokens}) + 1);
}

// Decode by splits stores, for each split and head, an output, a maximum and a sum.
int64_t BytesBySplits(const DecodeWork& work, const StepShape& shape) {
  constexpr int64_t kNumbers = 2;
  return work.num_splits * shape.num_heads * (shape.head_dim + kNumbers) * kFloat;
}

// Decode by lines gives each CTA a run of at most ceil(num_splits / CTAs) consecutive splits, from
// one or several lines. Only lines that several CTAs share need partial results (decode_lines.cuh).
// A CTA stores one partial result for the line in which its run ends. It stores one for each split
// of the line in which its run begins, because other CTAs may have the line's first splits.
int64_t BytesByLines(const DecodeWork& work, const StepShape& shape) {
  const int64_t ctas = shape.lines.num_ctas;
  // A line of one split belongs to one CTA. If no line has more splits, nothing is stored.
  const int64_t partials =
      work.longest <= 1 ? 0 : std::min(work.num_splits + 2 * ctas, ctas * (work.longest + 1));
  return partials * LinePartialFloats(work.query_tokens, shape) * kFloat;
}

// Returns the work of num_sequences sequences if one sequence has the work `work`.
DecodeWork Times(int64_t num_sequences, DecodeWork work) {
  work.num_splits *= num_sequences;
  return work;
}

}  // namespace

DecodeWork WorkOf(int64_t context_tokens, int32_t query_tokens, const StepShape& shape) {
  const int64_t splits = NumSplits(context_tokens, query_tokens, shape);
  DecodeWork work = {.num_splits = splits, .longest = splits, .query_tokens = query_tokens};
  if (shape.decodes_by_lines()) {
    const int32_t rows = RowsOf(query_tokens, shape);
    work.num_splits *=
        int64_t{shape.num_kv_heads} * DivCeil(rows, gpu::RowsPerLine(shape.head_dim, rows));
  }
  return work;
}

DecodeWork Join(const DecodeWork& a, const DecodeWork& b) {
  return {.num_splits = a.num_splits + b.num_splits,
          .longest = std::max(a.longest, b.longest),
          .query_tokens = std::max(a.query_tokens, b.query_tokens)};
}

int64_t PartialBytes(const DecodeWork& work, const StepShape& shape) {
  return shape.decodes_by_lines() ? BytesByLines(work, shape) : BytesBySplits(work, shape);
}

int64_t LinePartialFloats(int32_t query_tokens, const StepShape& shape) {
  constexpr int32_t kHalfTileRows = 8;
  const int32_t rows = RowsOf(query_tokens, shape);
  return DivCeil(std::min(rows, gpu::RowsPerLine(shape.head_dim, rows)), kHalfTileRows) *
         shape.lines.half_tile_floats;
}

int64_t MaxPartialBytes(const StepBounds& bounds, const StepShape& shape) {
  int64_t all = 0;
  for (const int32_t query_tokens : {1, shape.lines.max_query_tokens}) {
    const DecodeWork one = WorkOf(bounds.max_context_tokens, query_tokens, shape);
    all = std::max(all, PartialBytes(Times(bounds.max_seqs, one), shape));
  }
  const int64_t of_one = PartialBytes(WorkOf(bounds.max_context_tokens, 1, shape), shape);
  return std::min(all, std::max(of_one, shape.max_partial_bytes));
}

}  // namespace quire
