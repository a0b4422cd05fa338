// Prefill on warpgroup products (wgmma), for compute capability 9.0 and a cache of the same type as
// the queries. Rows are numbered as in paged_prefill.cuh. Results agree with those of PrefillKernel
// in paged_prefill.cuh up to rounding.
//
// Work. A CTA computes one PrefillItem of kPrefillRows rows of one KV head. It has three
// warpgroups: one copies keys and values, and two compute 64 rows each. A warpgroup whose 64 rows
// are all past the sequence's end returns at once.
//
// Pipeline. K has two buffers of one tile each, and so has V. The copying warpgroup fills them in
// the order of use: K(0), K(1), V(0), K(2), V(1), ..., and waits only for free buffers. It copies
// by cp.async, because blocks of 8 tokens can lie anywhere in the pool. A computing warpgroup has
// two products in flight, and computes the softmax of one tile meanwhile:
//   start S(j) = Q K(j)^T | start O += P(j-1) V(j-1) | await S(j), softmax | await O, pack P(j)
// For head_dim up to 128 the two computing warpgroups take turns in starting products, so that the
// softmax of one overlaps with the products of the other.
//
// Barriers. Each buffer has a Full and a Free barrier. A phase of Full ends when the buffer's
// copies have landed: for each copying thread, the hardware arrives at Full once, when the thread's
// copies have landed (ArriveAfterCopies). Computing threads then make the copies visible to
// products by FenceAsyncProxy, once for K and once for V of a tile (in machine code MEMBAR.ALL.CTA
// and FENCE.VIEW.ASYNC). A phase of Free ends when the products that read the buffer are done: each
// computing warp arrives once. Full and Free are SharedBarriers, at which a thread can arrive
// without waiting, so the two computing warpgroups need not wait for each other. Turns and queries
// use named barriers, since only computing warpgroups wait there.
//
// Shared memory. Rows of K, V and Q are cut into pieces of 64 dims, 128 bytes. A panel has the
// same piece of all rows, swizzled (device/warpgroup.h). K and V are the second factors (B) of the
// two products. Product S sums over the dims, which are contiguous in K. Product O has the dims as
// columns, which are contiguous in V. wgmma reads both layouts, so neither K nor V is transposed.
// P stays in registers, because the accumulator of S has the layout of a first factor (A).
//
// Order of sums. As in paged_prefill.cuh, but with tiles of kKeys keys, so the two kernels' bits
// differ.
//
// Calculated for an H200: a tile of head_dim 128 is 8.4 MFLOP, 2048 cycles of an SM's tensor cores.
// In these cycles products read 160 KB of shared memory and copies write 64 KB. These are 112 bytes
// per cycle; the limit is 128. Meanwhile the softmax computes 16384 powers of two (1024 cycles).
//
// Source: FlashAttention-3, Shah et al. 2024, sections 3.1 and 3.2.
#ifndef QUIRE_KERNELS_CUDA_PAGED_PREFILL_WGMMA_CUH_
#define QUIRE_KERNELS_CUDA_PAGED_PREFILL_WGMMA_CUH_

#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/named_barrier.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warpgroup.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/prefill_pipeline.cuh"
#include "kernels/cuda/prefill_rows.cuh"
#include "kernels/cuda/prefill_weights.cuh"

namespace quire::gpu {

// Named barriers of the first computing warpgroup. The second computing warpgroup uses each number
// plus 1.
inline constexpr int kTurnBarrier = 1;
inline constexpr int kQueryBarrier = 3;

// ---- A computing warpgroup ----------------------------------------------------------------------

template <typename Shape>
using WgmmaOut = float[Shape::kOutParts][Shape::kOutColumns / 8][4];

// Copies the warpgroup's 64 rows of Q, and waits for the copy. Rows past the sequence's end become
// zeros.
template <typename Shape>
QUIRE_DEVICE void CopyQueryRows(const WgmmaCta<Shape>& cta,
                                const PagedAttentionParams& args,
                                int consumer) {
  using T = typename Shape::Element;
  const auto* q = static_cast<const T*>(args.q);
  const int first = consumer * kWarpgroupRows;
  QUIRE_UNROLL_BY(4)
  for (int i = static_cast<int>(threadIdx.x % kWarpgroupSize);
       i < kWarpgroupRows * Shape::kRowChunks;
       i += kWarpgroupSize) {
    const int row = first + i / Shape::kRowChunks;
    const int chunk = i % Shape::kRowChunks;
    const int32_t sequence_row = cta.rows.first_row + row;
    const bool valid = sequence_row < cta.rows.num_rows;
    const T* source =
        q + cta.rows.PlaceOf(valid ? sequence_row : 0, args.q_row_stride, Shape::kHeadDim);
    CopyAsync16(cta.queries + chunk / 8 * Shape::kQueryPanelBytes + SwizzledOffset(row, chunk % 8),
                source + chunk * 8,
                valid);
  }
  CommitCopies();
  WaitCopies<0>();
  FenceAsyncProxy();
  SyncNamedBarrier(kQueryBarrier + consumer, kWarpgroupSize);
}

// Starts scores = Q K^T as one group of products. queries: descriptor of the warpgroup's rows of Q.
template <typename Shape>
QUIRE_DEVICE void StartScores(WgmmaScores<Shape>& scores, uint64_t queries, const uint8_t* keys) {
  FenceAccumulator(scores);
  FenceWarpgroup();
  const uint64_t tile = MakeDescriptor(keys, 0, kSwizzleBytes);
  QUIRE_UNROLL
  for (int k = 0; k < Shape::kHeadDim / 16; ++k) {
    WarpgroupMma<typename Shape::Element, Shape::kKeys>(
        scores,
        Advance(queries, k / 4 * Shape::kQueryPanelBytes + k % 4 * 32),
        Advance(tile, k / 4 * Shape::kTilePanelBytes + k % 4 * 32),
        k > 0);
  }
  CommitProducts();
}

template <typename Shape>
QUIRE_DEVICE void FenceOut(WgmmaOut<Shape>& out) {
  QUIRE_UNROLL
  for (int part = 0; part < Shape::kOutParts; ++part) {
    FenceAccumulator(out[part]);
  }
}

// Starts out += P V as one group of products.
template <typename Shape>
QUIRE_DEVICE void StartValues(WgmmaOut<Shape>& out,
                              WgmmaWeights<Shape>& weights,
                              const uint8_t* values) {
  FenceOut<Shape>(out);
  FenceFragments(weights);
  FenceWarpgroup();
  const uint64_t tile = MakeDescriptor(values, Shape::kTilePanelBytes, kSwizzleBytes);
  QUIRE_UNROLL
  for (int n = 0; n < Shape::kKeys / 16; ++n) {
    QUIRE_UNROLL
    for (int part = 0; part < Shape::kOutParts; ++part) {
      WarpgroupMmaOfRegisters<typename Shape::Element, Shape::kOutColumns>(
          out[part],
          weights[n],
          Advance(tile,
                  part * (Shape::kOutColumns / 64) * Shape::kTilePanelBytes +
                      n * 16 * kSwizzleRowBytes));
    }
  }
  CommitProducts();
}

// Multiplies the lane's rows by their factors. Skips the work if all factors of the warp are 1,
// since factors of 1 change no bit.
template <typename Shape>
QUIRE_DEVICE void Rescale(WgmmaOut<Shape>& out, const float (&rescale)[2]) {
  const bool is_changed = rescale[0] != 1.0F || rescale[1] != 1.0F;
  if (__any_sync(kWholeWarp, is_changed ? 1 : 0) != 0) {
    QUIRE_UNROLL
    for (int part = 0; part < Shape::kOutParts; ++part) {
      RescaleAccumulators(out[part], rescale);
    }
  }
}

// Writes the warp's rows of O to global memory, 16 bytes per store. The rows pass through the
// shared memory of the warp's queries. row: the warp's first row in the CTA.
template <typename Shape>
QUIRE_DEVICE void StoreWarpRows(const WgmmaOut<Shape>& out,
                                const SoftmaxState (&states)[2],
                                const WgmmaCta<Shape>& cta,
                                const PagedAttentionParams& args,
                                int row) {
  using T = typename Shape::Element;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  QUIRE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = RowSum(states[half].sum);
    const float factor = sum > 0.0F ? args.v_scale / sum : sum;
    const int lane_row = row + half * 8 + lane / 4;
    QUIRE_UNROLL
    for (int chunk = 0; chunk < Shape::kRowChunks; ++chunk) {
      constexpr int kTiles = Shape::kOutColumns / 8;
      const float(&tile)[4] = out[chunk / kTiles][chunk % kTiles];
      uint8_t* to = cta.queries + chunk / 8 * Shape::kQueryPanelBytes +
                    SwizzledOffset(lane_row, chunk % 8) + lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(to) =
          Pack2<T>(tile[2 * half] * factor, tile[2 * half + 1] * factor);
    }
  }
  __syncwarp();

  const int64_t token_stride = int64_t{args.num_heads} * Shape::kHeadDim;
  QUIRE_UNROLL_BY(4)
  for (int i = lane; i < kTileRows * Shape::kRowChunks; i += kWarpSize) {
    const int chunk = i % Shape::kRowChunks;
    const int from_row = row + i / Shape::kRowChunks;
    const int32_t sequence_row = cta.rows.first_row + from_row;
    if (sequence_row < cta.rows.num_rows) {
      uint32_t words[4];
      LoadWords<16>(
          cta.queries + chunk / 8 * Shape::kQueryPanelBytes + SwizzledOffset(from_row, chunk % 8),
          words);
      T* to =
          static_cast<T*>(args.out) + cta.rows.PlaceOf(sequence_row, token_stride, Shape::kHeadDim);
      StoreWords<16>(to + chunk * 8, words);
    }
  }
}

template <typename Shape>
QUIRE_DEVICE void ComputeRows(const PrefillParams& params,
                              const WgmmaCta<Shape>& cta,
                              int consumer) {
  using T = typename Shape::Element;
  const PagedAttentionParams& args = params.attention;
  const int warp = static_cast<int>(threadIdx.x % kWarpgroupSize / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int warp_row = consumer * kWarpgroupRows + warp * kTileRows;  // index in the CTA
  const int32_t lane_row = cta.rows.first_row + warp_row + lane / 4;  // index in the sequence

  CopyQueryRows<Shape>(cta, args, consumer);
  const uint64_t queries =
      MakeDescriptor(cta.queries + consumer * kWarpgroupRows * kSwizzleRowBytes, 0, kSwizzleBytes);
  const bool takes_turns = Shape::kTakesTurns && cta.num_consumers == 2;
  const int num_tiles = cta.num_tiles;

  WgmmaScores<Shape> scores;
  WgmmaWeights<Shape> weights;
  WgmmaOut<Shape> out = {};
  SoftmaxState states[2];
  float rescale[2];
  const auto compute_weights = [&](int i) {
    ComputeWeights<Shape>(
        scores, states, rescale, params, cta.rows, lane_row, (cta.first_tile + i) * Shape::kKeys);
  };

  // ---- S of the first tile ----
  cta.keys.WaitUntilFull(0);
  StartScores<Shape>(scores, queries, cta.keys.Tile(0));
  WaitProducts<0>();
  FenceAccumulator(scores);
  ArriveOfWarp(cta.keys.Free(0));
  compute_weights(0);
  PackWeights<T, Shape::kKeys>(weights, scores);

  // ---- S of tile i, out += P V of tile i - 1 ----
  for (int i = 1; i < num_tiles; ++i) {
    cta.keys.WaitUntilFull(i);
    if (takes_turns && (consumer == 1 || i > 1)) {  // consumer 0 starts without waiting
      SyncNamedBarrier(kTurnBarrier + consumer, Shape::kConsumers * kWarpgroupSize);
    }
    StartScores<Shape>(scores, queries, cta.keys.Tile(i));
    cta.values.WaitUntilFull(i - 1);
    StartValues<Shape>(out, weights, cta.values.Tile(i - 1));
    if (takes_turns && (consumer == 0 || i + 1 < num_tiles)) {
      ArriveNamedBarrier(kTurnBarrier + 1 - consumer, Shape::kConsumers * kWarpgroupSize);
    }
    WaitProducts<1>();
    FenceAccumulator(scores);
    ArriveOfWarp(cta.keys.Free(i));
    compute_weights(i);
    FinishBefore(cta.unread, states[0].sum + states[1].sum);
    WaitProducts<0>();
    FenceOut<Shape>(out);
    FenceFragments(weights);
    ArriveOfWarp(cta.values.Free(i - 1));
    Rescale<Shape>(out, rescale);
    PackWeights<T, Shape::kKeys>(weights, scores);
  }

  // ---- out += P V of the last tile ----
  cta.values.WaitUntilFull(num_tiles - 1);
  StartValues<Shape>(out, weights, cta.values.Tile(num_tiles - 1));
  WaitProducts<0>();
  FenceOut<Shape>(out);
  FenceFragments(weights);

  SyncNamedBarrier(kQueryBarrier + consumer, kWarpgroupSize);  // now no warp reads the queries
  StoreWarpRows<Shape>(out, states, cta, args, warp_row);
}

// ---- Kernel -------------------------------------------------------------------------------------

// Grid: num_items * num_kv_heads. Shared memory: WgmmaSharedBytes.
template <typename T, int kHeadDim>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS((WgmmaShape<T, kHeadDim>::kThreads), 1)
    WgmmaPrefillKernel(const PrefillParams params) {
  using Shape = WgmmaShape<T, kHeadDim>;
  const auto num_kv_heads = static_cast<uint32_t>(params.attention.cache.layout.num_kv_heads);
  const auto kv_head = static_cast<int32_t>(blockIdx.x % num_kv_heads);
  const PrefillItem item = params.plan.items[blockIdx.x / num_kv_heads];
  const ItemRows rows =
      MakeItemRows(params.attention, params.num_queries_per_kv_head, item, kv_head, Shape::kRows);
  if (rows.end <= rows.begin) {
    return;
  }

  QUIRE_SHARED_MEMORY(shared);
  shared += -SharedAddress(shared) & (kSwizzleBytes - 1);
  auto& cta = *reinterpret_cast<WgmmaCta<Shape>*>(shared + WgmmaSharedBytes<Shape>() -
                                                  kSwizzleBytes - sizeof(WgmmaCta<Shape>));
  if (threadIdx.x == 0) {
    PrepareCta(cta, params, item, kv_head, rows, shared);
  }
  __syncthreads();

  // The shuffle shows the compiler that all lanes have the same value.
  const int warpgroup = __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x / kWarpgroupSize), 0);
  if (warpgroup == 0) {
    GiveUpRegisters<Shape::kProducerRegisters>();
    CopyTiles(cta);
  } else {
    TakeRegisters<Shape::kConsumerRegisters>();
    if (warpgroup <= cta.num_consumers) {
      ComputeRows<Shape>(params, cta, warpgroup - 1);
    }
  }
}

template <int kHeadDim>
int RunWgmmaPrefill(const PrefillParams& params, Stream stream) {
  const PagedAttentionParams& args = params.attention;
  if (args.cache.layout.dtype != params.activations) {
    return kUnsupported;
  }
  return DispatchElement(params.activations, [&]<typename T>() {
    using Shape = WgmmaShape<T, kHeadDim>;
    const int32_t num_ctas = params.plan.num_items * args.cache.layout.num_kv_heads;
    if (num_ctas == 0) {
      return 0;
    }
    return QUIRE_LAUNCH((WgmmaPrefillKernel<T, kHeadDim>),
                        dim3(static_cast<uint32_t>(num_ctas)),
                        dim3(Shape::kThreads),
                        WgmmaSharedBytes<Shape>(),
                        stream,
                        params);
  });
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PAGED_PREFILL_WGMMA_CUH_
