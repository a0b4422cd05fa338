// Paged attention on tensor cores, at the speed of memory, for sequences with 1 to 16 queries:
// decode, and steps of a few tokens per sequence. Runs on compute capability 9.0 and 10.x, because
// it uses bulk copies and much shared memory.
//
// Work. line_parts.cuh defines lines, segments, runs and parts. The segments of the batch are
// divided into equal runs, one for each CTA of a persistent grid. The device computes this division
// from split_start, so a captured graph can be replayed after the sequences have grown.
//
// A CTA has a copying warp and four computing warps. The copying warp fills a ring of stages of 64
// positions. One bulk copy for each block brings K and V (kv_cache_layout.h). The copying warp does
// not stop at the end of a line, so the ring never drains. While the computing warps load the
// queries of the next line, or end a line, the ring fills. It holds several times as many bytes as
// memory delivers in such a pause.
//
// The computing warps divide S by keys and O by dims. For each stage:
//   S [rows, 16] = Q K^T   each warp for its 16 keys; the rows' maxima go to shared memory
//   barrier                the maxima of this stage and the weights of the previous one are visible
//   P = 2^(S - maximum)    to shared memory, in two buffers
//   O += P V               of the previous stage: each warp for its dims and all 64 keys
// So one barrier per stage suffices, a line needs no merge of the warps' results, and a warp has a
// quarter of the accumulators of O. A product of P with ones gives the sums of weights, equal in
// all warps.
//
// Order of sums. A segment's result adds the segment's stages in order. A row's result merges the
// segments' results in order, from left to right (line_results.cuh). So a row's bits depend on its
// sequence alone: not on the number of CTAs, the cuts between runs, the other sequences, or
// rows_per_line. A stage that a row does not attend to leaves the row's result unchanged.
//
// A line that several CTAs share. The CTA with the line's first segments merges their results, and
// writes one partial result. Each other CTA writes the result of each of its segments. Each CTA
// then adds 1 to the line's counter. The last CTA to arrive merges the partial results in order,
// and sets the counter back to 0. No CTA waits for another CTA.
//
// A bulk copy brings whole blocks, which can have keys outside [begin, end) of the sequence. The
// scores of such keys are set to -infinity. Their rows of V are zeroed in shared memory, because
// even with weight 0 a NaN in V would give a NaN.
//
// ALiBi, soft caps and sinks are branches, which all threads take alike. Separate versions of the
// kernel would double the compile time. A sink is added once, when a line is stored, and never to a
// segment.
//
// Bound. Reading memory takes longest: 134 MB for 8 sequences of 8192 tokens and 4 KV heads of 128
// dims, 29.8 us at 4.5 TB/s. At this speed, and with two CTAs on an SM, a CTA has 3400 cycles for a
// stage of 64 keys (32 KiB of bf16). A warp's work for a stage, 36 mma, 20 ldmatrix and one
// barrier, needs a fraction of these cycles (calculated, not measured).
//
// Size of the ring on an H200, for lines of 16 rows and bf16. The computing warps keep one stage
// while they wait for the next one, so all stages except one are in flight.
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

// Addresses of the shared memory that the computing warps use, except the ring of stages.
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
  // `use` counts the CTA's stages from 0 on. Consecutive stages alternate between the two buffers.
  QUIRE_DEVICE uint8_t* Weights(int use) const { return weights + use % 2 * Shape::kWeightBytes; }
  QUIRE_DEVICE float* Maxima(int use) const { return maxima + use % 2 * Shape::kMaximaFloats; }
};

// ---- Queries ------------------------------------------------------------------------------------

// Stores the line's rows of Q, and a ScoreRow for each. Each warp takes every fourth row. A row
// past the sequence's last row becomes zeros, and gets the ScoreRow of the last row.
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

// ---- A part of a line ---------------------------------------------------------------------------

// Computes a part of a line. If the part has the line's first segment, sets `line` to the fold of
// the part's segments. Otherwise stores each segment's result as a partial result, and leaves
// `line` empty. use: the number of stages that the CTA has used so far; ComputePart adds the part's
// stages.
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
  int32_t num_stored = 0;  // number of partial results stored so far
  // Adds P V of stage s to `segment`. After the last stage of the segment or part, ends the
  // segment. s counts stages from position 0, and of_use counts them from the CTA's first stage.
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

// Grid: params.plan.num_ctas CTAs. Any number gives the same bits. A CTA has Shape::kThreads
// threads and Shape::kSharedBytes of shared memory.
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

// Calls body with the template arguments T, Cache and rows_per_line. Returns kUnsupported if no
// kernel has them. At head_dim 256 only 16 rows are possible, because the accumulators of more rows
// would not fit the registers.
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
