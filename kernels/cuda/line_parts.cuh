// The division of decode's work among CTAs.
//
// A line is up to rows_per_line consecutive rows of one sequence and KV head. A row is a pair
// (query token, query head), numbered as in prefill (gpu_ops.h). A line's keys are cut into
// segments at multiples of split_tokens. All segments of the batch are numbered line by line. CTA c
// of n computes the run of segments [c * total / n, (c + 1) * total / n). A run consists of parts;
// a part is the run's consecutive segments of one line. A run can share only its first and its last
// line with other CTAs.
#ifndef QUIRE_KERNELS_CUDA_LINE_PARTS_CUH_
#define QUIRE_KERNELS_CUDA_LINE_PARTS_CUH_

#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/decode_lines.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/split_owner.cuh"

namespace quire::gpu {

// The division of `total` segments into num_runs runs. num_runs is at most `total`, so no run is
// empty. A CTA whose number is not below num_runs has no run.
struct LineRuns {
  int32_t total = 0;
  int32_t num_runs = 0;

  QUIRE_DEVICE int32_t Start(int32_t run) const {
    return static_cast<int32_t>(int64_t{run} * total / num_runs);
  }
  // Returns the run that has the segment.
  QUIRE_DEVICE int32_t Of(int32_t segment) const {
    return static_cast<int32_t>((int64_t{segment + 1} * num_runs - 1) / total);
  }
};

QUIRE_DEVICE LineRuns MakeLineRuns(const DecodePlan& plan) {
  LineRuns runs;
  runs.total = plan.split_start[plan.num_decodes];
  runs.num_runs = runs.total < plan.num_ctas ? runs.total : plan.num_ctas;
  return runs;
}

struct LinePart {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t first_row = 0;
  int32_t context = 0;  // tokens of the sequence before its queries
  int32_t begin = 0;    // the sequence's queries together attend to [begin, end)
  int32_t end = 0;
  int32_t line_start = 0;    // number of the line's first segment, counted over the batch
  int32_t num_segments = 0;  // segments of the whole line
  int32_t first = 0;         // the part has the segments [first, past) of the line
  int32_t past = 0;

  QUIRE_DEVICE bool is_whole() const { return past - first == num_segments; }
  // The part covers stages [FirstStage, PastStage) of the sequence. Stage 0 begins at position 0.
  QUIRE_DEVICE int32_t FirstStage(int32_t split_tokens) const {
    const int32_t from = (begin / split_tokens + first) * split_tokens;
    return (from > begin ? from : begin) / kStageKeys;
  }
  QUIRE_DEVICE int32_t PastStage(int32_t split_tokens) const {
    const int32_t to = (begin / split_tokens + past) * split_tokens;
    return ((to < end ? to : end) + kStageKeys - 1) / kStageKeys;
  }
};

// Returns the part that begins with segment `next`, in the run that ends at `run_end`. REQUIRES:
// all lanes of a warp call together; next < run_end.
QUIRE_DEVICE LinePart FindLinePart(const LineParams& params, int32_t next, int32_t run_end) {
  const DecodePlan& plan = params.plan;
  const PagedAttentionParams& args = params.attention;
  const int32_t i = FindSplitOwner(plan.split_start, plan.num_decodes, next);
  const int32_t start = plan.split_start[i];
  const int32_t num_in_sequence = plan.split_start[i + 1] - start;

  LinePart part;
  part.sequence = plan.seq_index != nullptr ? plan.seq_index[i] : i;
  const int32_t query_len = args.query_start[part.sequence + 1] - args.query_start[part.sequence];
  part.end = args.seq_lens[part.sequence];
  part.context = part.end - query_len;
  part.begin = FirstKey(part.context, args.sliding_window);

  const int32_t num_rows = query_len * params.num_queries_per_kv_head;
  const int32_t row_groups = (num_rows + params.rows_per_line - 1) / params.rows_per_line;
  part.num_segments = num_in_sequence / (row_groups * args.cache.layout.num_kv_heads);
  const int32_t line = (next - start) / part.num_segments;
  part.line_start = start + line * part.num_segments;
  part.kv_head = line / row_groups;
  part.first_row = line % row_groups * params.rows_per_line;
  part.first = next - part.line_start;
  const int32_t left = run_end - part.line_start;
  part.past = left < part.num_segments ? left : part.num_segments;
  return part;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_LINE_PARTS_CUH_
