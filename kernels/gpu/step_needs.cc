#include "kernels/gpu/step_needs.h"

#include <algorithm>

#include "common/base/math.h"
#include "kernels/gpu/gpu_sampler.h"
#include "kernels/gpu/step_packer.h"

namespace quire {
namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t PartialOutBytes(const StepShape& shape) {
  return int64_t{shape.num_heads} * shape.head_dim * kFloat;
}

int64_t PartialStateBytes(const StepShape& shape) {
  constexpr int64_t kNumbers = 2;  // maximum and sum
  return int64_t{shape.num_heads} * kNumbers * kFloat;
}

// At least the splits of one sequence, which cannot be divided.
int64_t MaxSplits(const StepBounds& bounds, const StepShape& shape) {
  const int64_t of_one = NumSplits(bounds.max_context_tokens, shape);
  const int64_t split_bytes = PartialOutBytes(shape) + PartialStateBytes(shape);
  return std::min(bounds.max_seqs * of_one,
                  std::max(of_one, shape.max_partial_bytes / split_bytes));
}

}  // namespace

int64_t NumSplits(int64_t context_tokens, const StepShape& shape) {
  const int64_t whole = DivCeil(context_tokens, int64_t{shape.split_tokens});
  // A window that begins inside of a split touches one more.
  return shape.sliding_window == 0
             ? whole
             : std::min(whole,
                        DivCeil(int64_t{shape.sliding_window}, int64_t{shape.split_tokens}) + 1);
}

StepNeeds NeedsOf(const StepBounds& bounds, const StepShape& shape) {
  const int64_t rows = std::max(bounds.max_tokens, bounds.max_seqs) + int64_t{kMaxPaddingRows};
  const int64_t max_splits = MaxSplits(bounds, shape);
  return {.input_bytes = StepPacker::MaxBytes(bounds, shape.num_queries_per_kv_head()) +
                         GpuSampler::AheadBytes(DecodeBucket(bounds.max_seqs)),
          .table_bytes = int64_t{DecodeBucket(bounds.max_seqs)} * bounds.max_blocks_per_seq *
                         int64_t{sizeof(BlockId)},
          .max_splits = max_splits,
          .partial_out_bytes = max_splits * PartialOutBytes(shape),
          .partial_state_bytes = max_splits * PartialStateBytes(shape),
          .split_start_bytes = StepPacker::MaxSplitStarts(bounds) * int64_t{sizeof(int32_t)},
          .fp8_rows_bytes = shape.fp8_width == 0 ? 0 : rows * shape.fp8_width,
          .fp8_scales_bytes = shape.fp8_width == 0 ? 0 : rows * kFloat,
          .gathered_bytes =
              (bounds.max_seqs + int64_t{kMaxPaddingRows}) * shape.received_width * kFloat};
}

StepBounds Cover(const StepBounds& a, const StepBounds& b) {
  return {.max_tokens = std::max(a.max_tokens, b.max_tokens),
          .max_seqs = std::max(a.max_seqs, b.max_seqs),
          .max_context_tokens = std::max(a.max_context_tokens, b.max_context_tokens),
          .max_blocks_per_seq = std::max(a.max_blocks_per_seq, b.max_blocks_per_seq)};
}

}  // namespace quire
