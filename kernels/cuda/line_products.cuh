// The products of decode by lines, for one stage. decode_lines.cuh says in which order they run.
//   S = Q K^T            for a warp's 16 keys
//   P = 2^(S - maximum)  for all four warps' 64 keys, in shared memory
//   O += P V             for a warp's dims
#ifndef QUIRE_KERNELS_CUDA_LINE_PRODUCTS_CUH_
#define QUIRE_KERNELS_CUDA_LINE_PRODUCTS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/decode_lines.h"
#include "kernels/cuda/device/async_proxy.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/tensor_core.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/line_results.cuh"
#include "kernels/cuda/line_ring.cuh"
#include "kernels/cuda/online_softmax.cuh"

namespace quire::gpu {

// ---- S: [rows, 16 keys] a warp ------------------------------------------------------------------

template <typename Shape>
using LineScores = float[Shape::kRowTiles][kTileKeys / 8][4];
template <typename Shape>
using LineQueries = QueryFragments<Shape::kHeadDim, Shape::kQueryInRegisters>[Shape::kRowTiles];

// scores += Q K^T for the warp's 16 keys of the stage.
template <typename Shape>
QUIRE_DEVICE void AddLineScores(LineScores<Shape>& scores,
                                const LineQueries<Shape>& queries,
                                const uint8_t* stage,
                                StageOrder<Shape> order) {
  using M = typename Shape::M;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int warp_key = static_cast<int>(threadIdx.x / kWarpSize) * kTileKeys;
  const auto add = [&](int k, int n, const uint32_t(&b)[2]) {
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      uint32_t a[4];
      queries[m].Get(k, a);
      Mma16816<M>(scores[m][n], a, b);
    }
  };
  if constexpr (Shape::kTilesPerChunk == 1) {
    // A load brings four matrices: (keys 0..7, chunk c), (keys 0..7, chunk c + 1), (keys 8..15,
    // chunk c), (keys 8..15, chunk c + 1).
    const int row = warp_key + lane / 16 * 8 + lane % 8;
    QUIRE_UNROLL
    for (int c = 0; c < Shape::kRowChunks; c += 2) {
      const KvPiece piece = KvPieceOf(Shape::kRowChunks, c);
      uint32_t b[4];
      LoadMatrixX4(b, stage + order.ChunkOffset(piece, row, c + lane / 8 % 2));
      add(c / 2, 0, {b[0], b[1]});
      add(c / 2, 1, {b[2], b[3]});
    }
  } else {
    // A load brings four matrices: (keys 0..7, chunk c), (keys 8..15, chunk c), (keys 0..7, chunk c
    // + 1), (keys 8..15, chunk c + 1). If the number of chunks is odd, the last load brings chunk c
    // twice.
    const int row = warp_key + lane % 16;
    QUIRE_UNROLL
    for (int c = 0; c < Shape::kRowChunks; c += 2) {
      const KvPiece piece = KvPieceOf(Shape::kRowChunks, c);
      const bool is_pair = c + 1 < Shape::kRowChunks;
      uint32_t b[4];
      LoadMatrixX4(b, stage + order.ChunkOffset(piece, row, is_pair ? c + lane / 16 : c));
      QUIRE_UNROLL
      for (int i = 0; i < (is_pair ? 2 : 1); ++i) {
        add(c + i, 0, {LowF8ToF16(b[2 * i]), HighF8ToF16(b[2 * i])});
        add(c + i, 1, {LowF8ToF16(b[2 * i + 1]), HighF8ToF16(b[2 * i + 1])});
      }
    }
  }
}

// Turns products Q K^T into capped scores, in base 2.
template <typename Shape>
QUIRE_DEVICE void CapScores(LineScores<Shape>& scores,
                            const ScoreRow* score_rows,
                            const SoftCap& soft_cap) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float scale = score_rows[m * kTileRows + half * 8 + lane / 4].scale;
      QUIRE_UNROLL
      for (int n = 0; n < kTileKeys / 8; ++n) {
        QUIRE_UNROLL
        for (int i = 0; i < 2; ++i) {
          float& score = scores[m][n][2 * half + i];
          score = soft_cap.Capped(score * scale);
        }
      }
    }
  }
}

// Turns products Q K^T into scores in base 2 and adds ALiBi's bias if has_alibi. Then masks the
// scores if needs_mask. kIsCapped: `scores` already holds capped scores, from CapScores. position:
// the stage's first position.
template <typename Shape, bool kIsCapped>
QUIRE_DEVICE void FinishScores(LineScores<Shape>& scores,
                               const ScoreRow* score_rows,
                               bool has_alibi,
                               bool needs_mask,
                               int32_t position) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int32_t first_key =
      position + static_cast<int32_t>(threadIdx.x / kWarpSize) * kTileKeys + 2 * (lane % 4);
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const ScoreRow row = score_rows[m * kTileRows + half * 8 + lane / 4];
      const float scale = kIsCapped ? 1.0F : row.scale;
      QUIRE_UNROLL
      for (int n = 0; n < kTileKeys / 8; ++n) {
        QUIRE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int32_t key = first_key + n * 8 + i;
          float& score = scores[m][n][2 * half + i];
          const float bias = has_alibi ? row.slope * static_cast<float>(key - row.position) : 0.0F;
          score = fmaf(score, scale, bias);
          if (needs_mask && (key < row.begin || key > row.position)) {
            score = -INFINITY;
          }
        }
      }
    }
  }
}

// Stores the maximum of each row over the warp's keys. maxima: [kRows, kLineWarps].
template <typename Shape>
QUIRE_DEVICE void StoreMaxima(float* maxima, const LineScores<Shape>& scores) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float(&low)[4] = scores[m][0];
      const float(&high)[4] = scores[m][1];
      float max =
          fmaxf(fmaxf(low[2 * half], low[2 * half + 1]), fmaxf(high[2 * half], high[2 * half + 1]));
      max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, 2));
      if (lane % 4 == 0) {
        maxima[(m * kTileRows + half * 8 + lane / 4) * kLineWarps + warp] = max;
      }
    }
  }
}

// ---- P: [rows, 64 keys] of the four warps -------------------------------------------------------

// Rows of P have 8 chunks of 16 bytes. Chunk c of row r is stored as chunk c ^ (r % 8).
QUIRE_DEVICE int32_t WeightOffset(int row, int chunk) {
  return row * kStageKeys * 2 + ((chunk ^ (row & 7)) << 4);
}

// State that a stage leaves for its product P V, which is computed one stage later.
template <typename Shape>
struct StageState {
  float max[Shape::kRowTiles][2];      // maxima of the rows' scores in the segment so far
  float factors[Shape::kRowTiles][2];  // rescale the segment's result before P V is added
};

// Turns the warp's scores into weights and stores them. Returns the stage's state. maxima: the
// rows' maxima of all warps, from StoreMaxima. earlier: the state of the previous stage; ignored if
// this stage begins a segment.
template <typename Shape>
QUIRE_DEVICE StageState<Shape> StoreWeights(uint8_t* weights,
                                            const StageState<Shape>& earlier,
                                            bool begins_segment,
                                            const LineScores<Shape>& scores,
                                            const float* maxima) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  StageState<Shape> state;
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = m * kTileRows + half * 8 + lane / 4;
      float of_warps[4];
      LoadVector<float, 4>(maxima + row * kLineWarps, of_warps);
      const float before = begins_segment ? -INFINITY : earlier.max[m][half];
      const float max =
          fmaxf(before, fmaxf(fmaxf(of_warps[0], of_warps[1]), fmaxf(of_warps[2], of_warps[3])));
      state.factors[m][half] = RescaleFactor(before, max);
      state.max[m][half] = max;
      const float shift = max == -INFINITY ? 0.0F : max;
      QUIRE_UNROLL
      for (int n = 0; n < kTileKeys / 8; ++n) {
        const float(&s)[4] = scores[m][n];
        *reinterpret_cast<uint32_t*>(weights + WeightOffset(row, 2 * warp + n) + lane % 4 * 4) =
            Pack2<typename Shape::M>(Exp2(s[2 * half] - shift), Exp2(s[2 * half + 1] - shift));
      }
    }
  }
  return state;
}

// ---- O: [rows, the warp's dims] -----------------------------------------------------------------

// For row tiles [kFirst, kPast): adds P V to the result, and the sums of P's rows to `sums`. A C
// tile of `sums` has a row's sum in all columns of that row.
template <typename Shape, int kFirst, int kPast>
QUIRE_DEVICE void AddLineValuesOf(LineResult<Shape>& result,
                                  float (&sums)[Shape::kRowTiles][4],
                                  const uint8_t* weights,
                                  const uint8_t* values,
                                  StageOrder<Shape> order) {
  using M = typename Shape::M;
  constexpr int kNum = kPast - kFirst;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const uint32_t one = Pack2<M>(1.0F, 1.0F);
  QUIRE_UNROLL
  for (int k = 0; k < kStageKeys / 32; ++k) {
    uint32_t a[kNum][2][4];
    QUIRE_UNROLL
    for (int m = 0; m < kNum; ++m) {
      QUIRE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int row = (kFirst + m) * kTileRows + lane % 16;
        LoadMatrixX4(a[m][j], weights + WeightOffset(row, 4 * k + 2 * j + lane / 16));
        Mma16816<M>(sums[kFirst + m], a[m][j], {one, one});
      }
    }
    const auto add = [&](int j, int tile, const uint32_t(&b)[2]) {
      QUIRE_UNROLL
      for (int m = 0; m < kNum; ++m) {
        Mma16816<M>(result.out[kFirst + m][tile], a[m][j], b);
      }
    };
    QUIRE_UNROLL
    for (int i = 0; i < Shape::kChunksPerWarp; ++i) {
      if (!HasChunk<Shape>(i)) {
        continue;
      }
      // Matrix j of the load has keys 8 j .. 8 j + 7 of the loop's 32 keys, and one chunk of dims.
      const int32_t chunk = ChunkOfWarp(i);
      const KvPiece piece = KvPieceOf(Shape::kRowChunks, chunk);
      uint32_t b[4];
      LoadMatrixX4Transposed(b, values + order.ChunkOffset(piece, k * 32 + lane, chunk));
      QUIRE_UNROLL
      for (int j = 0; j < 2; ++j) {
        if constexpr (Shape::kTilesPerChunk == 1) {
          add(j, i, {b[2 * j], b[2 * j + 1]});
        } else {
          // Puts the bytes of two keys side by side for each dim, as AddValues does
          // (attention_tile.cuh).
          const uint32_t low = BytePermute(b[2 * j], 0, 0x3120);
          const uint32_t high = BytePermute(b[2 * j + 1], 0, 0x3120);
          add(j, 2 * i, {LowF8ToF16(low), LowF8ToF16(high)});
          add(j, 2 * i + 1, {HighF8ToF16(low), HighF8ToF16(high)});
        }
      }
    }
  }
}

// Multiplies the result by the factors, then adds P V and the sums of P's rows. Takes two row tiles
// at a time, because the fragments of P of more row tiles would not fit the registers.
template <typename Shape>
QUIRE_DEVICE void AddLineValues(LineResult<Shape>& result,
                                const float (&factors)[Shape::kRowTiles][2],
                                const uint8_t* weights,
                                const uint8_t* values,
                                StageOrder<Shape> order) {
  constexpr int kAtOnce = Shape::kRowTiles < 2 ? Shape::kRowTiles : 2;
  float sums[Shape::kRowTiles][4];
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int r = 0; r < 4; ++r) {
      sums[m][r] = result.sum[m][r / 2] * factors[m][r / 2];
    }
    RescaleAccumulators(result.out[m], factors[m]);
  }
  AddLineValuesOf<Shape, 0, kAtOnce>(result, sums, weights, values, order);
  if constexpr (Shape::kRowTiles > kAtOnce) {
    static_assert(Shape::kRowTiles == 2 * kAtOnce);
    AddLineValuesOf<Shape, kAtOnce, 2 * kAtOnce>(result, sums, weights, values, order);
  }
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    result.sum[m][0] = sums[m][0];
    result.sum[m][1] = sums[m][2];
  }
}

// Zeroes the stage's rows of V at positions outside [begin, end). The fence orders the stores
// before the next bulk copy into the buffer.
template <typename Shape>
QUIRE_DEVICE void ZeroValues(
    uint8_t* stage, StageOrder<Shape> order, int32_t position, int32_t begin, int32_t end) {
  for (int i = static_cast<int>(threadIdx.x); i < kStageKeys * Shape::kRowChunks;
       i += Shape::kComputeThreads) {
    const int row = i / Shape::kRowChunks;
    const int chunk = i % Shape::kRowChunks;
    if (position + row < begin || position + row >= end) {
      uint8_t* to = stage + order.ValueOffset() +
                    order.ChunkOffset(KvPieceOf(Shape::kRowChunks, chunk), row, chunk);
      StoreWords<16>(to, {0, 0, 0, 0});
    }
  }
  FenceAsyncProxy();
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_LINE_PRODUCTS_CUH_
