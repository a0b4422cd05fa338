// Code that the prefill kernels share, in part also with decode by lines: an item's rows, the
// positions that the rows attend to, and the softmax of one row.
#ifndef QUIRE_KERNELS_CUDA_PREFILL_ROWS_CUH_
#define QUIRE_KERNELS_CUDA_PREFILL_ROWS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/online_softmax.cuh"

namespace quire::gpu {

// The rows of an item, and the positions that the rows attend to. A row is a pair (token, query
// head). All query heads of an item share its KV head.
struct ItemRows {
  int32_t first_token = 0;  // index in q of the sequence's first query token
  int32_t context = 0;      // tokens of the sequence before its first query
  int32_t num_rows = 0;     // rows of the whole sequence
  int32_t group = 1;        // query heads per KV head
  int32_t first_head = 0;   // the first query head of the KV head
  int32_t first_row = 0;    // index of the item's first row in the sequence
  int32_t begin = 0;        // the item's rows together attend to [begin, end)
  int32_t end = 0;
  int32_t common_begin = 0;  // each of the item's rows attends to all of [common_begin, common_end)
  int32_t common_end = 0;

  QUIRE_DEVICE int32_t PositionOf(int32_t row) const { return context + row / group; }
  QUIRE_DEVICE int32_t HeadOf(int32_t row) const { return first_head + row % group; }
  // Returns the row's offset, in elements, in an array [tokens, heads, head_dim].
  QUIRE_DEVICE int64_t PlaceOf(int32_t row, int64_t token_stride, int32_t head_dim) const {
    return (first_token + row / group) * token_stride + int64_t{HeadOf(row)} * head_dim;
  }
};

// group: query heads per KV head.
QUIRE_DEVICE ItemRows MakeItemRows(const PagedAttentionParams& args,
                                   int32_t group,
                                   PrefillItem item,
                                   int kv_head,
                                   int32_t rows_of_item) {
  ItemRows rows;
  rows.first_token = args.query_start[item.sequence];
  int32_t query_len = args.query_start[item.sequence + 1] - rows.first_token;
  rows.context = args.seq_lens[item.sequence] - query_len;
  rows.group = group;
  rows.num_rows = query_len * rows.group;
  rows.first_head = kv_head * rows.group;
  rows.first_row = item.first_row;

  int32_t past_rows = rows.first_row + rows_of_item;
  int32_t last_row = (past_rows < rows.num_rows ? past_rows : rows.num_rows) - 1;
  if (last_row >= rows.first_row) {
    int32_t first_position = rows.PositionOf(rows.first_row);
    int32_t last_position = rows.PositionOf(last_row);
    rows.begin = FirstKey(first_position, args.sliding_window);
    rows.end = last_position + 1;
    rows.common_begin = FirstKey(last_position, args.sliding_window);
    rows.common_end = first_position + 1;
  }
  return rows;
}

// Does the same as UpdateSoftmax on scores * scale: replaces each score of one row by
// 2^(score * scale - max). One multiply-add computes the exponent, so the scale costs nothing.
// REQUIRES: scale > 0.
template <int kTiles>
QUIRE_DEVICE float UpdateScaledSoftmax(SoftmaxState& state,
                                       float (&scores)[kTiles][4],
                                       int half,
                                       float scale) {
  float tile_max = -INFINITY;
  QUIRE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    tile_max = fmaxf(tile_max, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
  }
  tile_max = fmaxf(tile_max, __shfl_xor_sync(kWholeWarp, tile_max, 1));
  tile_max = fmaxf(tile_max, __shfl_xor_sync(kWholeWarp, tile_max, 2));

  float max = fmaxf(state.max, tile_max * scale);
  float factor = RescaleFactor(state.max, max);
  float shift = max == -INFINITY ? 0.0F : max;
  float sum = 0.0F;
  QUIRE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    QUIRE_UNROLL
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      scores[n][i] = Exp2(fmaf(scores[n][i], scale, -shift));
      sum += scores[n][i];
    }
  }
  state.max = max;
  state.sum = state.sum * factor + sum;
  return factor;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PREFILL_ROWS_CUH_
