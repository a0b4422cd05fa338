// The softmax of prefill on warpgroup products, shared by its kernels: the scores of a tile become
// weights in the registers of a computing warpgroup.
#ifndef QUIRE_KERNELS_CUDA_PREFILL_WEIGHTS_CUH_
#define QUIRE_KERNELS_CUDA_PREFILL_WEIGHTS_CUH_

#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/shared_barrier.h"
#include "kernels/cuda/device/warpgroup.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/prefill_rows.cuh"

namespace quire::gpu {

// Fragments of S and of P, which have Shape::kKeys columns.
template <typename Shape>
using WgmmaScores = float[Shape::kKeys / 8][4];
template <typename Shape>
using WgmmaWeights = uint32_t[Shape::kKeys / 16][4];

// Arrives once for the whole warp, after its threads' earlier reads and writes.
QUIRE_DEVICE void ArriveOfWarp(SharedBarrier& barrier) {
  __syncwarp();
  if (threadIdx.x % kWarpSize == 0) {
    barrier.Arrive();
  }
}

// Turns the scores of a tile into weights, in place. first_key: position of the tile's first key.
// lane_row: the lane's first row, as an index among the sequence's rows. The lane's second row is
// lane_row + 8. Sets rescale to the factors for sums accumulated earlier.
template <typename Shape>
QUIRE_DEVICE void ComputeWeights(WgmmaScores<Shape>& scores,
                                 SoftmaxState (&states)[2],
                                 float (&rescale)[2],
                                 const PrefillParams& params,
                                 const ItemRows& rows,
                                 int32_t lane_row,
                                 int32_t first_key) {
  const PagedAttentionParams& args = params.attention;
  if (!params.has_plain_scores) {
    ScoreRow score_rows[2];
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t row = lane_row + half * 8;
      score_rows[half] = MakeScoreRow(args, rows.HeadOf(row), rows.PositionOf(row), 1.0F);
    }
    // Scales 8 keys at a time, because more would exhaust the registers at head_dim 256.
    QUIRE_UNROLL
    for (int n = 0; n < Shape::kKeys / 8; ++n) {
      float part[1][4] = {{scores[n][0], scores[n][1], scores[n][2], scores[n][3]}};
      ScaleScores(part, args.alibi_slopes != nullptr, score_rows, first_key + n * 8);
      FenceAccumulator(part);
      QUIRE_UNROLL
      for (int r = 0; r < 4; ++r) {
        scores[n][r] = part[0][r];
      }
    }
  }
  if (first_key < rows.common_begin || first_key + Shape::kKeys > rows.common_end) {
    ScoreRow score_rows[2];
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      score_rows[half].position = rows.PositionOf(lane_row + half * 8);
      score_rows[half].begin = FirstKey(score_rows[half].position, args.sliding_window);
    }
    MaskScores(scores, score_rows, first_key);
  }
  const float scale = params.has_plain_scores ? args.scale * args.k_scale * kLog2E : 1.0F;
  QUIRE_UNROLL
  for (int half = 0; half < 2; ++half) {
    rescale[half] = UpdateScaledSoftmax(states[half], scores, half, scale);
  }
}

// Stores `number` to memory that is never read, so that the number is computed before the next
// wait. ptxas of nvcc 13.0 moves a wait for products ahead of earlier arithmetic, but not ahead of
// earlier stores. Without the store, the softmax would begin only after the products that it should
// overlap with. unread: one float of shared memory per computing thread.
QUIRE_DEVICE void FinishBefore(float* unread, float number) {
  static_cast<volatile float*>(unread)[threadIdx.x - kWarpgroupSize] = number;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PREFILL_WEIGHTS_CUH_
