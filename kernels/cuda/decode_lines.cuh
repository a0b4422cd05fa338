// Paged attention of a few queries per sequence, on tensor cores, at the speed of memory: decode,
// and steps of 2 to 16 tokens. For compute capability 9.0 and 10.x, since copies are bulk copies.
//
// Work. line_parts.cuh divides all segments of the batch into equal runs, one for each CTA of a
// persistent grid. A captured graph can be replayed after the sequences have grown, because the
// division is made on the device from split_start.
//
// A CTA has a copying warp and four computing warps. The copying warp fills a ring of stages of 64
// positions with one bulk copy for each block, which brings K and V (kv_cache_layout.h). It knows
// nothing of the ends of lines, and so never drains. While the computing warps load the queries of
// the next line, or end a line, the ring fills: it holds several times the bytes of these pauses.
//
// The computing warps divide S by keys and O by dims. For each stage:
//   S [rows, 16] = Q K^T   each warp for its 16 keys; the rows' maxima go to shared memory
//   barrier                the maxima of this stage and the weights of the last one are visible
//   P = 2^(S - maximum)    to shared memory, in two buffers
//   O += P V               of the last stage: each warp for its dims and all 64 keys
// So one barrier a stage suffices, the warps need no merge at the end, and a warp has a quarter of
// the accumulators. A product of P with ones gives the sums of weights, equal in all warps.
//
// Order of sums. A segment's result starts from nothing and takes its stages in order; a row's
// result is the left fold of its segments (line_results.cuh). So a row's bits depend on its
// sequence alone: neither on the number of CTAs, the cuts between them, the other sequences, nor on
// rows_per_line. A stage that a row does not attend to leaves its result unchanged.
//
// A line that several CTAs share. Each CTA writes its part's segments to partial results; the CTA
// with the first segments writes their fold. Each CTA then adds 1 to the line's counter. The last
// to arrive folds the partial results in order, and sets the counter back. No CTA waits for another
// CTA.
//
// Keys outside [begin, end) of the sequence. Their scores are set to -infinity. Their rows of V are
// zeroed in shared memory, since 0 times a NaN is a NaN and a bulk copy brings whole blocks.
//
// ALiBi, soft caps and sinks are branches that all threads take alike, not versions of the kernel:
// versions would double the compile time. A sink is added when a line is stored, never in a
// segment.
//
// Bound. Memory: 134 MB for 8 sequences of 8192 and 4 KV heads of 128, 29.8 us at 4.5 TB/s. A stage
// of 64 keys (32 KiB of bf16) may then take 3400 cycles of a CTA, if an SM has two. A warp's 36
// mma, 20 ldmatrix and one barrier need a fraction of them (calculated, not measured).
//
// Shared memory on an H200, 16 rows, bf16; the number of stages in flight is one less:
//   head_dim               64   80   96   112  128  256
//   CTAs per SM            2    2    2    2    2    1
//   stages                 6    5    4    3    3    3
//
// Source: FlashAttention-2, Dao 2023, section 3; FlashDecoding's split over keys, Dao et al. 2023.
#ifndef QUIRE_KERNELS_CUDA_DECODE_LINES_CUH_
#define QUIRE_KERNELS_CUDA_DECODE_LINES_CUH_

#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/decode_lines.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/early_start.h"
#include "kernels/cuda/device/occupancy.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/line_parts.cuh"
#include "kernels/cuda/line_products.cuh"
#include "kernels/cuda/line_results.cuh"
#include "kernels/cuda/line_ring.cuh"
#include "kernels/cuda/prefill_rows.cuh"

namespace quire::gpu {

// Shared memory of the computing warps, beside the ring.
template <typename Shape>
struct LineMemory {
  uint8_t* queries = nullptr;
  uint8_t* weights = nullptr;      // two buffers of Shape::kWeightBytes
  float* fold = nullptr;           // LineFold
  float* maxima = nullptr;         // two buffers of [kRows, kLineWarps]
  ScoreRow* score_rows = nullptr;  // [kRows]
  SharedBarrier* barriers = nullptr;
  int32_t* flag = nullptr;

  QUIRE_DEVICE explicit LineMemory(uint8_t* shared) {
    queries = shared + Shape::kStages * Shape::kStageBytes;
    weights = queries + Shape::kQueryBytes;
    fold = reinterpret_cast<float*>(weights + 2 * Shape::kWeightBytes);
    maxima = fold + Shape::kFoldBytes / 4;
    score_rows = reinterpret_cast<ScoreRow*>(maxima + 2 * Shape::kMaximaFloats);
    barriers = reinterpret_cast<SharedBarrier*>(score_rows + Shape::kRows);
    flag = reinterpret_cast<int32_t*>(barriers + 2 * Shape::kMaxStages);
  }
  // use: number of the CTA's stage. The buffers of two consecutive stages are different.
  QUIRE_DEVICE uint8_t* Weights(int use) const { return weights + use % 2 * Shape::kWeightBytes; }
  QUIRE_DEVICE float* Maxima(int use) const { return maxima + use % 2 * Shape::kMaximaFloats; }
};

// ---- Queries ------------------------------------------------------------------------------------

// Stores the line's rows of Q and the conversion of their scores. Each warp takes every fourth row.
// Rows past the line's last are zeros, and masked as its last row.
template <typename Shape>
QUIRE_DEVICE void StoreLineQueries(const LineMemory<Shape>& memory,
                                   const PagedAttentionParams& args,
                                   const ItemRows& rows) {
  using T = typename Shape::T;
  using Cache = typename Shape::Cache;
  constexpr int kAtOnce = 4;  // rows whose loads a warp has in flight
  const int warp = static_cast<int>(threadIdx.x / kWarpSize);
  for (int first = warp; first < Shape::kRows; first += kAtOnce * kLineWarps) {
    QueryRow<Shape::kHeadDim> q[kAtOnce];
    QUIRE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t row = rows.first_row + first + i * kLineWarps;
      q[i].Clear();
      if (row < rows.num_rows) {
        q[i].Load(static_cast<const T*>(args.q) +
                  rows.PlaceOf(row, args.q_row_stride, Shape::kHeadDim));
      }
    }
    QUIRE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int in_line = first + i * kLineWarps;
      const int32_t row = rows.first_row + in_line;
      const float factor = q[i].template Store<T, Cache>(
          memory.queries + in_line * QueryTile<Shape::kHeadDim>::kRowStride);
      if (threadIdx.x % kWarpSize == 0) {
        const int32_t known = row < rows.num_rows ? row : rows.num_rows - 1;
        memory.score_rows[in_line] =
            MakeScoreRow(args, rows.HeadOf(known), rows.PositionOf(known), factor);
      }
    }
  }
}

// ---- A part of a line
// -----------------------------------------------------------------------------

// Computes the part. Returns the fold of its segments if the part begins the line. Else stores each
// segment's result as a partial result. use: number of the CTA's next stage.
template <typename Shape>
QUIRE_DEVICE void ComputePart(LineFold<Shape>& line,
                              int& use,
                              const LineRing<Shape>& ring,
                              const LineMemory<Shape>& memory,
                              const LinePartials<Shape>& partials,
                              const LineParams& params,
                              const LinePart& part,
                              const ItemRows& rows) {
  const PagedAttentionParams& args = params.attention;
  const StageOrder<Shape> order(params.block_shift);
  const int32_t stages_per_segment = params.plan.split_tokens / kStageKeys;
  const int32_t first_stage = part.FirstStage(params.plan.split_tokens);
  const int32_t past_stage = part.PastStage(params.plan.split_tokens);
  const int32_t line_rows = rows.num_rows - rows.first_row;
  LineQueries<Shape> queries;
  QUIRE_UNROLL
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    queries[m].Load(memory.queries + m * QueryTile<Shape::kHeadDim>::kBytes);
  }

  line.Clear();
  LineResult<Shape> segment;
  segment.Clear();
  int32_t num_stored = 0;  // partial results
  // Adds the products of stage s, whose number is `of_use`. Ends its segment if it is the last one.
  const auto add_values = [&](int32_t s, int of_use, const StageState<Shape>& state) {
    AddLineValues<Shape>(segment,
                         state.factors,
                         memory.Weights(of_use),
                         ring.Stage(of_use) + order.ValueOffset(),
                         order);
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) {
      ring.Free(of_use).Arrive();
    }
    if ((s + 1) % stages_per_segment != 0 && s + 1 < past_stage) {
      return;
    }
    QUIRE_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      segment.max[m][0] = state.max[m][0];
      segment.max[m][1] = state.max[m][1];
    }
    if (part.first == 0) {
      line.Fold(segment);
    } else {
      StorePartial<Shape>(
          partials.At(static_cast<int32_t>(blockIdx.x), 1 + num_stored++), line_rows, segment);
    }
    segment.Clear();
  };

  StageState<Shape> state = {};
  for (int32_t s = first_stage; s < past_stage; ++s, ++use) {
    const int32_t position = s * kStageKeys;
    ring.WaitUntilFull(use);
    uint8_t* stage = ring.Stage(use);
    LineScores<Shape> scores = {};
    AddLineScores<Shape>(scores, queries, stage, order);
    const bool needs_mask = position < rows.common_begin || position + kStageKeys > rows.common_end;
    const bool has_alibi = args.alibi_slopes != nullptr;
    if (params.soft_cap.is_set()) {
      CapScores<Shape>(scores, memory.score_rows, params.soft_cap);
      FinishScores<Shape, true>(scores, memory.score_rows, has_alibi, needs_mask, position);
    } else {
      FinishScores<Shape, false>(scores, memory.score_rows, has_alibi, needs_mask, position);
    }
    if (position < part.begin || position + kStageKeys > part.end) {
      ZeroValues<Shape>(stage, order, position, part.begin, part.end);
    }
    StoreMaxima<Shape>(memory.Maxima(use), scores);
    SyncComputingWarps<Shape>();

    const bool begins_segment = s == first_stage || s % stages_per_segment == 0;
    const StageState<Shape> next =
        StoreWeights<Shape>(memory.Weights(use), state, begins_segment, scores, memory.Maxima(use));
    if (s > first_stage) {
      add_values(s - 1, use - 1, state);
    }
    state = next;
  }
  SyncComputingWarps<Shape>();
  add_values(past_stage - 1, use - 1, state);
}

// Computes all parts of the run [next, run_end).
template <typename Shape>
QUIRE_DEVICE void ComputeRun(const LineRing<Shape>& ring,
                             const LineMemory<Shape>& memory,
                             const LineParams& params,
                             const LineRuns& runs,
                             int32_t next,
                             int32_t run_end) {
  const PagedAttentionParams& args = params.attention;
  const LinePartials<Shape> partials(params);
  int use = 0;
  while (next < run_end) {
    const LinePart part = FindLinePart(params, next, run_end);
    next += part.past - part.first;
    const ItemRows rows = MakeItemRows(args,
                                       params.num_queries_per_kv_head,
                                       {part.sequence, part.first_row},
                                       part.kv_head,
                                       Shape::kRows);
    StoreLineQueries<Shape>(memory, args, rows);
    SyncComputingWarps<Shape>();

    LineFold<Shape> fold(memory.fold);
    ComputePart<Shape>(fold, use, ring, memory, partials, params, part, rows);
    LineResult<Shape> line = fold.Get();
    if (!part.is_whole()) {
      const int32_t line_rows = rows.num_rows - rows.first_row;
      if (part.first == 0) {
        StorePartial<Shape>(partials.At(static_cast<int32_t>(blockIdx.x), 0), line_rows, line);
      }
      if (!IsLastOfLine<Shape>(runs, part, params.plan.arrivals, memory.flag)) {
        continue;
      }
      FoldPartials<Shape>(line, partials, runs, part, line_rows);
    }
    StoreLine<Shape>(line, args, rows);
  }
}

// ---- Kernel -------------------------------------------------------------------------------------

// Launched with any number of CTAs of Shape::kThreads threads, with Shape::kSharedBytes.
template <typename T, typename Cache, int kHeadDim, int kRows>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS((LineShape<T, Cache, kHeadDim, kRows>::kThreads),
                                      (LineShape<T, Cache, kHeadDim, kRows>::kCtasPerSm))
    DecodeLines(const LineParams params) {
  using Shape = LineShape<T, Cache, kHeadDim, kRows>;
  QUIRE_SHARED_MEMORY(shared);
  const LineMemory<Shape> memory(shared);
  const LineRing<Shape> ring(shared, memory.barriers);
  if (threadIdx.x == 0) {
    ring.Init();
  }
  __syncthreads();

  const LineRuns runs = MakeLineRuns(params.plan);
  const auto cta = static_cast<int32_t>(blockIdx.x);
  const bool has_run = cta < runs.num_runs;
  const int32_t next = has_run ? runs.Start(cta) : 0;
  const int32_t run_end = has_run ? runs.Start(cta + 1) : 0;
  if (threadIdx.x >= Shape::kComputeThreads) {
    if (has_run) {
      CopyRun<Shape>(ring, params, next, run_end);
    }
    StartNext();
  } else {
    WaitForEarlierOperation();
    ComputeRun<Shape>(ring, memory, params, runs, next, run_end);
  }
}

// Calls body with the shape for the types and the rows of a line. Returns kUnsupported if there is
// none: at head_dim 256, accumulators of more than 16 rows would not fit the registers.
template <int kHeadDim, typename Body>
int DispatchLineShape(DType dtype, DType cache_dtype, int32_t rows_per_line, Body&& body) {
  return DispatchCacheElement(dtype, cache_dtype, [&]<typename T, typename Cache>() {
    if constexpr (kHeadDim <= 128) {
      if (rows_per_line == 32) {
        return body.template operator()<T, Cache, 32>();
      }
      if (rows_per_line == 64) {
        return body.template operator()<T, Cache, 64>();
      }
    }
    return rows_per_line == 16 ? body.template operator()<T, Cache, 16>() : kUnsupported;
  });
}

template <int kHeadDim>
int CountLineCtas(DType activations, DType cache_dtype, int32_t rows_per_line, int32_t* num_ctas) {
  return DispatchLineShape<kHeadDim>(
      activations, cache_dtype, rows_per_line, [&]<typename T, typename Cache, int kRows>() {
        using Shape = LineShape<T, Cache, kHeadDim, kRows>;
        return CountResidentCtas(
            DecodeLines<T, Cache, kHeadDim, kRows>, Shape::kThreads, Shape::kSharedBytes, num_ctas);
      });
}

template <int kHeadDim>
int RunLines(const LineParams& params, Stream stream) {
  return DispatchLineShape<kHeadDim>(params.activations,
                                     params.attention.cache.layout.dtype,
                                     params.rows_per_line,
                                     [&]<typename T, typename Cache, int kRows>() {
                                       using Shape = LineShape<T, Cache, kHeadDim, kRows>;
                                       const dim3 grid(static_cast<uint32_t>(params.plan.num_ctas));
                                       if (params.plan.starts_early) {
                                         return QUIRE_LAUNCH_EARLY(
                                             (DecodeLines<T, Cache, kHeadDim, kRows>),
                                             grid,
                                             dim3(Shape::kThreads),
                                             Shape::kSharedBytes,
                                             stream,
                                             params);
                                       }
                                       return QUIRE_LAUNCH((DecodeLines<T, Cache, kHeadDim, kRows>),
                                                           grid,
                                                           dim3(Shape::kThreads),
                                                           Shape::kSharedBytes,
                                                           stream,
                                                           params);
                                     });
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DECODE_LINES_CUH_
