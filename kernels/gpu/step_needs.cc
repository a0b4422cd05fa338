#include "kernels/gpu/step_needs.h"

#include <algorithm>

#include "common/base/math.h"
#include "kernels/gpu/gpu_sampler.h"
#include "kernels/gpu/step_packer.h"

namespace quire {
namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

StepNeeds NeedsOf(const StepBounds& bounds, const StepShape& shape) {
  const int64_t rows = std::max(bounds.max_tokens, bounds.max_seqs) + int64_t{kMaxPaddingRows};
  return {.input_bytes = StepPacker::MaxBytes(bounds, shape.num_queries_per_kv_head()) +
                         GpuSampler::AheadBytes(DecodeBucket(bounds.max_seqs)),
          .table_bytes = int64_t{DecodeBucket(bounds.max_seqs)} * bounds.max_blocks_per_seq *
                         int64_t{sizeof(BlockId)},
          .partial_bytes = MaxPartialBytes(bounds, shape),
          .counter_bytes = (1 + shape.lines.num_ctas) * int64_t{sizeof(int32_t)},
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
