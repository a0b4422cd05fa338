// The results of decode by lines: accumulators, their fold in a fixed order, partial results of
// lines that several CTAs share, and the output.
//
// A row's result is the left fold of its segments' results: it merges them from left to right. The
// bits of a row depend neither on the CTA that folds, nor on whether an operand comes from
// registers or from memory. Sums of products are written as fmaf, because a compiler may otherwise
// fuse them differently in different versions of a kernel.
#ifndef QUIRE_KERNELS_CUDA_LINE_RESULTS_CUH_
#define QUIRE_KERNELS_CUDA_LINE_RESULTS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/decode_lines.h"
#include "kernels/cuda/device/atomic.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/named_barrier.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/line_parts.cuh"
#include "kernels/cuda/line_ring.cuh"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/prefill_rows.cuh"

namespace quire::gpu {

// Number of the computing warps' named barrier. Barrier 0 belongs to __syncthreads.
inline constexpr int kComputeBarrier = 1;

template <typename Shape>
QUIRE_DEVICE void SyncComputingWarps() {
  SyncNamedBarrier(kComputeBarrier, Shape::kComputeThreads);
}

// Returns the index of the i-th chunk of V that the warp multiplies. REQUIRES: HasChunk(i) is true.
QUIRE_DEVICE int32_t ChunkOfWarp(int i) {
  return static_cast<int32_t>(threadIdx.x / kWarpSize) + kLineWarps * i;
}
// Returns whether the warp multiplies an i-th chunk of V, i from 0.
template <typename Shape>
QUIRE_DEVICE bool HasChunk(int i) {
  return Shape::kRowChunks % kLineWarps == 0 || ChunkOfWarp(i) < Shape::kRowChunks;
}

// A warp's result over some keys, not yet divided by the sums of weights. In row tile m, a lane has
// parts of rows lane / 4 and lane / 4 + 8. All warps have the same maxima and sums.
template <typename Shape>
struct LineResult {
  float out[Shape::kRowTiles][Shape::kTiles][4];
  float max[Shape::kRowTiles][2];
  float sum[Shape::kRowTiles][2];

  // Sets this result to the result over an empty set of keys.
  QUIRE_DEVICE void Clear() {
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        max[m][half] = -INFINITY;
        sum[m][half] = 0.0F;
      }
      QUIRE_UNROLL
      for (int i = 0; i < Shape::kTiles; ++i) {
        QUIRE_UNROLL
        for (int r = 0; r < 4; ++r) {
          out[m][i][r] = 0.0F;
        }
      }
    }
  }

  // Merges `next`, the result over the next segment, into this result.
  QUIRE_DEVICE void Fold(const LineResult& next) {
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float larger = fmaxf(max[m][half], next.max[m][half]);
        const float factor = RescaleFactor(max[m][half], larger);
        const float next_factor = RescaleFactor(next.max[m][half], larger);
        max[m][half] = larger;
        sum[m][half] = fmaf(sum[m][half], factor, next.sum[m][half] * next_factor);
        QUIRE_UNROLL
        for (int i = 0; i < Shape::kTiles; ++i) {
          QUIRE_UNROLL
          for (int r = 2 * half; r < 2 * half + 2; ++r) {
            out[m][i][r] = fmaf(out[m][i][r], factor, next.out[m][i][r] * next_factor);
          }
        }
      }
    }
  }
};

// The left fold of a line's segments. If a thread's LineResult has 64 floats or more
// (kFoldsInShared), the fold is in shared memory to save registers. This costs little, because the
// fold is accessed only once per segment.
template <typename Shape>
class LineFold {
 public:
  // memory: Shape::kFoldBytes of shared memory.
  QUIRE_DEVICE explicit LineFold(float* memory) : floats_(memory + threadIdx.x) {}

  QUIRE_DEVICE void Clear() {
    if constexpr (Shape::kFoldsInShared) {
      LineResult<Shape> empty;
      empty.Clear();
      Store(empty);
    } else {
      result_.Clear();
    }
  }
  QUIRE_DEVICE void Fold(const LineResult<Shape>& next) {
    if constexpr (Shape::kFoldsInShared) {
      LineResult<Shape> result = Get();
      result.Fold(next);
      Store(result);
    } else {
      result_.Fold(next);
    }
  }
  QUIRE_DEVICE LineResult<Shape> Get() const {
    if constexpr (Shape::kFoldsInShared) {
      LineResult<Shape> result;
      ForEachFloat(result, [&](int i, float& number) { number = floats_[i * kStride]; });
      return result;
    } else {
      return result_;
    }
  }

 private:
  // Distance between consecutive floats of a thread.
  static constexpr int kStride = Shape::kComputeThreads;

  QUIRE_DEVICE void Store(LineResult<Shape>& result) {
    ForEachFloat(result, [&](int i, const float& number) { floats_[i * kStride] = number; });
  }
  // Calls body(i, the i-th float).
  template <typename Body>
  QUIRE_DEVICE static void ForEachFloat(LineResult<Shape>& result, Body&& body) {
    constexpr int kOfRowTile = 4 * Shape::kTiles + 4;
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        body(m * kOfRowTile + half, result.max[m][half]);
        body(m * kOfRowTile + 2 + half, result.sum[m][half]);
      }
      QUIRE_UNROLL
      for (int i = 0; i < 4 * Shape::kTiles; ++i) {
        body(m * kOfRowTile + 4 + i, result.out[m][i / 4][i % 4]);
      }
    }
  }

  float* floats_;
  LineResult<Shape> result_;  // not used if kFoldsInShared
};

// ---- Partial results ----------------------------------------------------------------------------

// The partial results of a CTA belong to the lines that cross an end of the CTA's run of segments.
// Partial result 0 is for the line that continues in the next run. It folds all segments that the
// line has in this run. Partial results 1 + i are for the line that began in an earlier run. Each
// holds one segment, the line's i-th in this run, because the earlier run's results must be folded
// first.
template <typename Shape>
struct LinePartials {
  float* partials = nullptr;
  int64_t floats = 0;  // floats per partial result
  int32_t per_cta = 0;

  QUIRE_DEVICE explicit LinePartials(const LineParams& params)
      : partials(params.plan.partial_out),
        floats(LinePartialFloats(params.half_tiles, Shape::kTiles)),
        per_cta(params.partials_per_cta) {}

  QUIRE_DEVICE float* At(int32_t cta, int32_t index) const {
    return partials + (int64_t{cta} * per_cta + index) * floats;
  }
};

// Calls body(m, half, floats) for each group of 8 rows that has rows of the line. floats: the
// address of the row group's floats in the partial result.
template <typename Shape, typename Body>
QUIRE_DEVICE void ForEachHalfTile(float* partial, int32_t num_rows, Body&& body) {
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (m * kTileRows + half * 8 < num_rows) {
        body(m, half, partial + (2 * m + half) * (kLineWarps * Shape::kTiles + 1) * 64);
      }
    }
  }
}

// Stores a partial result. num_rows: rows of the line.
template <typename Shape>
QUIRE_DEVICE void StorePartial(float* partial, int32_t num_rows, const LineResult<Shape>& result) {
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  ForEachHalfTile<Shape>(partial, num_rows, [&](int m, int half, float* floats) {
    QUIRE_UNROLL
    for (int i = 0; i < Shape::kTiles; ++i) {
      const float pair[2] = {result.out[m][i][2 * half], result.out[m][i][2 * half + 1]};
      StoreVector<float, 2>(floats + ((warp * Shape::kTiles + i) * kWarpSize + lane) * 2, pair);
    }
    if (warp == 0) {
      const float state[2] = {result.max[m][half], result.sum[m][half]};
      StoreVector<float, 2>(floats + (kLineWarps * Shape::kTiles * kWarpSize + lane) * 2, state);
    }
  });
}

// Loads a partial result, by groups of 8 rows. A group that lies wholly past the line's num_rows
// rows is not loaded and keeps its old values.
template <typename Shape>
QUIRE_DEVICE void LoadPartial(LineResult<Shape>& result, float* partial, int32_t num_rows) {
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  ForEachHalfTile<Shape>(partial, num_rows, [&](int m, int half, const float* floats) {
    QUIRE_UNROLL
    for (int i = 0; i < Shape::kTiles; ++i) {
      float pair[2];
      LoadVector<float, 2>(floats + ((warp * Shape::kTiles + i) * kWarpSize + lane) * 2, pair);
      result.out[m][i][2 * half] = pair[0];
      result.out[m][i][2 * half + 1] = pair[1];
    }
    float state[2];
    LoadVector<float, 2>(floats + (kLineWarps * Shape::kTiles * kWarpSize + lane) * 2, state);
    result.max[m][half] = state[0];
    result.sum[m][half] = state[1];
  });
}

// Counts this CTA as arrived at the part's line. Returns whether it is the last of the line's CTAs
// to arrive. The last CTA sees the partial results of all of them, and sets the counter back to 0
// for the next launch. REQUIRES: this CTA has stored its partial results of the line. flag: in
// shared memory.
template <typename Shape>
QUIRE_DEVICE bool IsLastOfLine(const LineRuns& runs,
                               const LinePart& part,
                               int32_t* arrivals,
                               int32_t* flag) {
  SyncComputingWarps<Shape>();
  if (threadIdx.x == 0) {
    const int32_t first_cta = runs.Of(part.line_start);
    const int32_t last_cta = runs.Of(part.line_start + part.num_segments - 1);
    const int32_t before = AddAcquireRelease(arrivals + first_cta, 1);
    const bool is_last = before == last_cta - first_cta;
    if (is_last) {
      arrivals[first_cta] = 0;
    }
    *flag = is_last ? 1 : 0;
  }
  SyncComputingWarps<Shape>();
  return *flag != 0;
}

// Sets `result` to the fold of a line's partial results, in order.
template <typename Shape>
QUIRE_DEVICE void FoldPartials(LineResult<Shape>& result,
                               const LinePartials<Shape>& partials,
                               const LineRuns& runs,
                               const LinePart& part,
                               int32_t num_rows) {
  int32_t cta = runs.Of(part.line_start);
  result.Clear();
  LoadPartial<Shape>(result, partials.At(cta, 0), num_rows);
  const int32_t line_past = part.line_start + part.num_segments;
  for (int32_t segment = runs.Start(++cta); segment < line_past; segment = runs.Start(++cta)) {
    const int32_t run_past = runs.Start(cta + 1);
    const int32_t past = run_past < line_past ? run_past : line_past;
    // Loads of several partial results at once hide the latency, as far as registers allow.
    constexpr int kThatFit = 16 / (Shape::kRowTiles * Shape::kTiles);
    [[maybe_unused]] constexpr int kAtOnce = kThatFit < 1 ? 1 : kThatFit;
    QUIRE_UNROLL_BY(kAtOnce)
    for (int32_t i = 0; i < past - segment; ++i) {
      LineResult<Shape> next;
      next.Clear();
      LoadPartial<Shape>(next, partials.At(cta, 1 + i), num_rows);
      result.Fold(next);
    }
  }
}

// ---- The output ---------------------------------------------------------------------------------

// Writes the rows of the line: sums * v_scale / sum of weights. A sink is added to the sum of
// weights here, because only here all of the line's segments are folded.
template <typename Shape>
QUIRE_DEVICE void StoreLine(const LineResult<Shape>& result,
                            const PagedAttentionParams& args,
                            const ItemRows& rows) {
  using T = typename Shape::T;
  const int group = static_cast<int>(threadIdx.x % kWarpSize / 4);
  const int quad = static_cast<int>(threadIdx.x % 4);
  const int64_t token_stride = int64_t{args.num_heads} * Shape::kHeadDim;
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t row = rows.first_row + m * kTileRows + half * 8 + group;
      if (row >= rows.num_rows) {
        continue;
      }
      SoftmaxState state = {.max = result.max[m][half], .sum = result.sum[m][half]};
      float scale = args.v_scale;
      if (args.sinks != nullptr) {
        scale *= AddSink(state, args.sinks[rows.HeadOf(row)] * kLog2E);
      }
      const float factor = state.sum > 0.0F ? scale / state.sum : state.sum;
      T* out = static_cast<T*>(args.out) + rows.PlaceOf(row, token_stride, Shape::kHeadDim);
      const int r = 2 * half;
      QUIRE_UNROLL
      for (int i = 0; i < Shape::kChunksPerWarp; ++i) {
        if (!HasChunk<Shape>(i)) {
          continue;
        }
        if constexpr (Shape::kTilesPerChunk == 1) {
          const float(&x)[4] = result.out[m][i];
          auto* to = reinterpret_cast<uint32_t*>(out + ChunkOfWarp(i) * 8 + 2 * quad);
          *to = Pack2<T>(x[r] * factor, x[r + 1] * factor);
        } else {
          // The even dims of a chunk are the columns of one C tile, and the odd dims are the
          // columns of the next C tile (attention_tile.cuh).
          const float(&even)[4] = result.out[m][2 * i];
          const float(&odd)[4] = result.out[m][2 * i + 1];
          StoreWords<8>(out + ChunkOfWarp(i) * 16 + 4 * quad,
                        {Pack2<T>(even[r] * factor, odd[r] * factor),
                         Pack2<T>(even[r + 1] * factor, odd[r + 1] * factor)});
        }
      }
    }
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_LINE_RESULTS_CUH_
