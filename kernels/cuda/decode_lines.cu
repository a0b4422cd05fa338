// The host side of decode by lines: checks what the kernels of decode_lines.cuh require, and sizes
// the memory of their partial results.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cuda/decode_lines.h"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {
namespace {

// Returns 0 if decode by lines can run on the device for the layout. V of a block and head must
// follow K, because one bulk copy brings both.
int CheckLines(const KvCacheLayout& layout) {
  // Devices of compute capability 12.x have bulk copies, but too little shared memory for a ring.
  constexpr int32_t kFirstCapability = 90;
  constexpr int32_t kPastCapability = 120;
  int32_t capability = 0;
  if (const int error = QueryComputeCapability(&capability); error != 0) {
    return error;
  }
  const bool is_supported =
      capability >= kFirstCapability && capability < kPastCapability && HasSwizzledRows(layout) &&
      layout.value_offset == int64_t{layout.head_dim} * layout.block_size_tokens;
  return is_supported ? 0 : kUnsupported;
}

int32_t RowsOfSequence(const PagedAttentionParams& params, const DecodePlan& plan) {
  return params.num_heads / params.cache.layout.num_kv_heads * plan.max_query_tokens;
}

int32_t HalfTiles(const PagedAttentionParams& params, const DecodePlan& plan) {
  return (std::min(RowsPerLine(params, plan), RowsOfSequence(params, plan)) + 7) / 8;
}

// Returns the number of partial results that a CTA needs room for: one for the last line of its
// run, and one for each of the run's segments that belong to the run's first line. A run has the
// most segments if all sequences have the greatest length, so this length is assumed.
int32_t PartialsPerCta(const PagedAttentionParams& params, const DecodePlan& plan) {
  if (plan.partials_per_cta > 0) {
    return plan.partials_per_cta;
  }
  const KvCacheLayout& layout = params.cache.layout;
  int64_t keys = int64_t{params.max_blocks_per_seq} * layout.block_size_tokens;
  int64_t of_line = (keys + plan.split_tokens - 1) / plan.split_tokens;
  if (params.sliding_window > 0) {
    keys = int64_t{params.sliding_window} + plan.max_query_tokens - 1;
    of_line = std::min(of_line, (keys + plan.split_tokens - 1) / plan.split_tokens + 1);
  }
  const int32_t rows = RowsPerLine(params, plan);
  const int64_t row_groups = (RowsOfSequence(params, plan) + rows - 1) / rows;
  const int64_t of_batch = of_line * plan.num_decodes * layout.num_kv_heads * row_groups;
  const int64_t of_run = (of_batch + plan.num_ctas - 1) / plan.num_ctas;
  return static_cast<int32_t>(std::min(of_run, of_line)) + 1;
}

}  // namespace

int64_t DecodePartialFloats(const PagedAttentionParams& params, const DecodePlan& plan) {
  const KvCacheLayout& layout = params.cache.layout;
  const int tiles = LineTilesPerWarp(layout.head_dim, static_cast<int>(SizeOf(layout.dtype)));
  return plan.num_ctas * int64_t{PartialsPerCta(params, plan)} *
         LinePartialFloats(HalfTiles(params, plan), tiles);
}

int DecodeByLines(const PagedAttentionParams& params,
                  const DecodePlan& plan,
                  DType activations,
                  Stream stream) {
  const KvCacheLayout& layout = params.cache.layout;
  if (const int error = CheckLines(layout); error != 0) {
    return error;
  }
  if (plan.num_decodes == 0) {
    return 0;
  }
  LineParams lines = {.attention = params, .plan = plan, .activations = activations};
  lines.block_shift = std::countr_zero(static_cast<uint32_t>(layout.block_size_tokens));
  lines.num_queries_per_kv_head = params.num_heads / layout.num_kv_heads;
  lines.rows_per_line = RowsPerLine(params, plan);
  lines.half_tiles = HalfTiles(params, plan);
  lines.partials_per_cta = PartialsPerCta(params, plan);
  lines.soft_cap = SoftCap::Of(params.soft_cap);
  return DispatchHeadDim(layout.head_dim,
                         [&]<int kHeadDim>() { return RunLines<kHeadDim>(lines, stream); });
}

int DecodeLinesGridSize(const PagedAttentionParams& params,
                        const DecodePlan& plan,
                        DType activations,
                        int32_t* num_ctas) {
  const KvCacheLayout& layout = params.cache.layout;
  if (const int error = CheckLines(layout); error != 0) {
    return error;
  }
  return DispatchHeadDim(layout.head_dim, [&]<int kHeadDim>() {
    return CountLineCtas<kHeadDim>(activations, layout.dtype, RowsPerLine(params, plan), num_ctas);
  });
}

}  // namespace quire::gpu
