// Declarations that the launcher of decode by lines (decode_lines.cu) and its kernels share.
//
// Thread safety: any thread may call the functions.
#ifndef QUIRE_KERNELS_CUDA_DECODE_LINES_H_
#define QUIRE_KERNELS_CUDA_DECODE_LINES_H_

#include <cstdint>

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/online_softmax.cuh"

namespace quire::gpu {

// Number of positions in a stage. A stage is the unit of copies and products.
inline constexpr int32_t kStageKeys = 64;
inline constexpr int kLineWarps = 4;  // computing warps of a CTA; a fifth warp copies

// Returns the number of accumulator tiles (C tiles) of O per warp. The CTA's warps divide the
// 16-byte chunks of a row of V among them. The dims of a chunk take one C tile, or two if the cache
// is e4m3.
constexpr int LineTilesPerWarp(int head_dim, int cache_element_bytes) {
  const int chunks = head_dim * cache_element_bytes / 16;
  return (chunks + kLineWarps - 1) / kLineWarps * (cache_element_bytes == 1 ? 2 : 1);
}

// Returns how many rows a line has room for: 16, 32 or 64. rows_of_sequence: the most rows that a
// sequence of the batch has for one KV head. If these rows do not fit into one line, the sequence
// has several lines for each KV head. Results do not depend on how many rows a line has.
constexpr int32_t RowsPerLine(int32_t head_dim, int32_t rows_of_sequence) {
  const int32_t most = head_dim <= 128 ? 64 : 16;
  const int32_t wanted = rows_of_sequence <= 16 ? 16 : rows_of_sequence <= 32 ? 32 : 64;
  return wanted < most ? wanted : most;
}
inline int32_t RowsPerLine(const PagedAttentionParams& params, const DecodePlan& plan) {
  const KvCacheLayout& layout = params.cache.layout;
  return RowsPerLine(layout.head_dim,
                     params.num_heads / layout.num_kv_heads * plan.max_query_tokens);
}

// The arguments of Decode, and values that the host derives from them once.
struct LineParams {
  PagedAttentionParams attention;
  DecodePlan plan;
  DType activations = DType::kBF16;
  int32_t block_shift = 0;              // log2 of the block size
  int32_t num_queries_per_kv_head = 0;  // query heads that share one KV head
  int32_t rows_per_line = 0;            // 16, 32 or 64
  int32_t half_tiles = 0;               // number of groups of 8 rows that a line can have
  int32_t partials_per_cta = 0;
  SoftCap soft_cap;
};

// Returns the number of floats in a partial result. Each group of 8 rows takes 64 floats per C tile
// of all warps, and 64 for the rows' maxima and sums (StorePartial in line_results.cuh).
constexpr int64_t LinePartialFloats(int32_t half_tiles, int32_t tiles_per_warp) {
  return int64_t{half_tiles} * (kLineWarps * tiles_per_warp + 1) * 64;
}

// Implements Decode for DecodeKernel::kLines.
int DecodeByLines(const PagedAttentionParams& params,
                  const DecodePlan& plan,
                  DType activations,
                  Stream stream);

// Runs the kernel for the types and rows_per_line in `params`. Returns kUnsupported unless the
// cache has the activations' type or kF8E4M3, and the head_dim has a kernel for rows_per_line. Each
// head_dim is instantiated in a separate .cu file.
template <int kHeadDim>
int RunLines(const LineParams& params, Stream stream);
// Sets *num_ctas to the number of CTAs of the same kernel that the device can run at once. Returns
// kUnsupported in the same cases as RunLines.
template <int kHeadDim>
int CountLineCtas(DType activations, DType cache_dtype, int32_t rows_per_line, int32_t* num_ctas);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DECODE_LINES_H_
