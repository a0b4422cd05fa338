// Persistent prefill on warpgroup products (wgmma) and bulk copies, for compute capability 9.0 and
// a cache of the same type as the queries. Rows are numbered as in paged_prefill.cuh. At head_dim
// 64, 128 and 256 the results have the same bits as those of paged_prefill_wgmma.cuh, whose tiles
// have the same sizes.
//
// Work. The grid has a CTA for each SM. A CTA takes pairs of item and KV head from a counter until
// none is left (TakePair). If the caller puts the longest items first, all SMs are busy to the end.
// An item's result depends neither on the CTA nor on the CTA's earlier items.
//
// Warps. A CTA has three warpgroups. In the first, one warp takes items, one copies keys and
// values, and two copy queries. The other two warpgroups compute 64 rows each. A warpgroup whose 64
// rows are all past the sequence's end only waits for each buffer and frees it.
//
// No gap between items. Items are taken up to two items ahead of computation. Keys and values are
// copied up to two tiles ahead, also across the end of an item, and the next item's queries are
// copied to a second buffer. So the first product of an item finds its operands in shared memory.
// Between two items, a computing warpgroup only ends the first item: it adds up the weights and
// stores 64 rows. At head_dim 256 there is room for only one buffer of queries.
//
// Pipeline. Each of K and V has two buffers of one tile. A computing warpgroup has two products in
// flight, and computes the softmax of one tile meanwhile:
//   start S(j) = Q K(j)^T | start O += P(j-1) V(j-1) | await S(j), softmax | await O, pack P(j)
// For head_dim up to 128 the two computing warpgroups take turns in starting products, so that the
// softmax of one overlaps with the products of the other.
//
// Barriers. Keys, values, queries and items (PrefillWork) have a ring of buffers each. Every buffer
// has a Full and a Free barrier. Full barriers of keys and values count the bytes of bulk copies.
// Bulk copies write through the same proxy as products read, so no reader needs a fence. The
// copying warp itself zeroes the rows of V that no row of the item attends to, before it copies the
// other rows. Queries are copied by cp.async, because their rows have another order in shared
// memory than in q. The warps that copy queries wait until their copies have landed, call
// FenceAsyncProxy, and then arrive at Full.
//
// Shared memory. A tile of K or V has the order of a block of kKeys slots (kv_cache_layout.h):
// first piece 0 of all keys, then piece 1 of all keys, and so on. A piece of 64 dims is an operand
// with rows of 128 bytes. A piece of 32 or 16 dims is an operand with rows of 64 or 32 bytes. So a
// product of head_dim 80, 96 or 112 consists of products of two or three pieces. Products read both
// K and V as they lie in the cache.
//
// Calculated for an H200: a tile of head_dim 128 is 8.4 MFLOP, 2048 cycles of an SM's tensor cores;
// the copying warp starts 32 bulk copies for it.
//
// Source: FlashAttention-3, Shah et al. 2024, sections 3.1 and 3.2.
#ifndef QUIRE_KERNELS_CUDA_PREFILL_PERSISTENT_CUH_
#define QUIRE_KERNELS_CUDA_PREFILL_PERSISTENT_CUH_

#include <cstdint>

#include "kernels/api/kv_cache_layout.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/named_barrier.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/device/warpgroup.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/prefill_copies.cuh"
#include "kernels/cuda/prefill_memory.cuh"
#include "kernels/cuda/prefill_rows.cuh"
#include "kernels/cuda/prefill_weights.cuh"

namespace quire::gpu {

// Named barriers of the first computing warpgroup. The second computing warpgroup uses each number
// plus 1.
inline constexpr int kTakeTurnBarrier = 1;
inline constexpr int kEndOfItemBarrier = 3;

// ---- Products -----------------------------------------------------------------------------------

// O: 64 rows of head_dim columns.
template <typename Shape>
using PersistentOut = float[Shape::kHeadDim / 8][4];

// Starts scores = Q K^T as one group of products. queries: all rows of the item. consumer: number
// of the computing warpgroup, which takes 64 of these rows.
template <typename Shape>
QUIRE_DEVICE void StartTileScores(WgmmaScores<Shape>& scores,
                                  const uint8_t* queries,
                                  const uint8_t* keys,
                                  int consumer) {
  FenceAccumulator(scores);
  FenceWarpgroup();
  ForEachPart<Shape::kRowChunks, 8>([&]<int kFirst, int kChunks>() {
    constexpr int kBytes = kChunks * 16;  // size of a row of the piece
    const uint8_t* rows =
        queries + kFirst * Shape::kRows * 16 + consumer * (kWarpgroupRows * kBytes);
    const uint64_t a = MakeDescriptor<kBytes>(rows, 0, 8 * kBytes);
    const uint64_t b = MakeDescriptor<kBytes>(keys + kFirst * Shape::kKeys * 16, 0, 8 * kBytes);
    QUIRE_UNROLL
    for (int k = 0; k < kChunks / 2; ++k) {
      WarpgroupMma<typename Shape::Element, Shape::kKeys>(
          scores, Advance(a, k * 32), Advance(b, k * 32), kFirst + k > 0);
    }
  });
  CommitProducts();
}

// Starts out += P V as one group of products.
template <typename Shape>
QUIRE_DEVICE void StartTileValues(PersistentOut<Shape>& out,
                                  WgmmaWeights<Shape>& weights,
                                  const uint8_t* values) {
  FenceAccumulator(out);
  FenceFragments(weights);
  FenceWarpgroup();
  QUIRE_UNROLL
  for (int n = 0; n < Shape::kKeys / 16; ++n) {
    ForEachPart<Shape::kRowChunks, 16>([&]<int kFirst, int kChunks>() {
      constexpr int kBytes = kChunks < 8 ? kChunks * 16 : kSwizzleRowBytes;
      const uint64_t b = MakeDescriptor<kBytes>(
          values + kFirst * Shape::kKeys * 16, Shape::kKeys * kSwizzleRowBytes, 8 * kBytes);
      auto& columns = *reinterpret_cast<float(*)[kChunks][4]>(&out[kFirst]);
      WarpgroupMmaOfRegisters<typename Shape::Element, kChunks * 8>(
          columns, weights[n], Advance(b, n * 16 * kBytes));
    });
  }
  CommitProducts();
}

// Waits for the products of StartTileValues.
template <typename Shape>
QUIRE_DEVICE void AwaitValues(PersistentOut<Shape>& out, WgmmaWeights<Shape>& weights) {
  WaitProducts<0>();
  FenceAccumulator(out);
  FenceFragments(weights);
}

// Multiplies the lane's rows by their factors. Skips the work if all factors of the warp are 1,
// since factors of 1 change no bit.
template <typename Shape>
QUIRE_DEVICE void RescaleOut(PersistentOut<Shape>& out, const float (&rescale)[2]) {
  const bool is_changed = rescale[0] != 1.0F || rescale[1] != 1.0F;
  if (__any_sync(kWholeWarp, is_changed ? 1 : 0) != 0) {
    RescaleAccumulators(out, rescale);
  }
}

// ---- The end of an item -------------------------------------------------------------------------

// Writes the warp's rows of O to global memory, 16 bytes per store, and does not wait for the
// stores. The rows pass through the shared memory of the warp's queries. row: the warp's first row
// in the item.
template <typename Shape>
QUIRE_DEVICE void StoreRows(const PersistentOut<Shape>& out,
                            const SoftmaxState (&states)[2],
                            uint8_t* queries,
                            const ItemRows& rows,
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
      uint8_t* to =
          queries + lane % 4 * 4 + KvChunkOffset(Shape::kRowChunks, Shape::kRows, lane_row, chunk);
      *reinterpret_cast<uint32_t*>(to) =
          Pack2<T>(out[chunk][2 * half] * factor, out[chunk][2 * half + 1] * factor);
    }
  }
  __syncwarp();

  const int64_t token_stride = int64_t{args.num_heads} * Shape::kHeadDim;
  QUIRE_UNROLL_BY(4)
  for (int i = lane; i < kTileRows * Shape::kRowChunks; i += kWarpSize) {
    const int chunk = i % Shape::kRowChunks;
    const int from_row = row + i / Shape::kRowChunks;
    const int32_t sequence_row = rows.first_row + from_row;
    if (sequence_row < rows.num_rows) {
      uint32_t words[4];
      LoadWords<16>(queries + KvChunkOffset(Shape::kRowChunks, Shape::kRows, from_row, chunk),
                    words);
      T* to = static_cast<T*>(args.out) + rows.PlaceOf(sequence_row, token_stride, Shape::kHeadDim);
      StoreWords<16>(to + chunk * 8, words);
    }
  }
}

// ---- A computing warpgroup ----------------------------------------------------------------------

// Computes the warpgroup's rows of item n. n counts the CTA's items. `use` counts the CTA's tiles:
// item n begins with tile `use`.
template <typename Shape>
QUIRE_DEVICE void ComputeItem(const PersistentMemory<Shape>& memory,
                              const PrefillParams& params,
                              int n,
                              int use,
                              int consumer) {
  using T = typename Shape::Element;
  const PrefillWork& work = memory.Work(n);
  const BufferRing<Shape::kStages> keys = memory.KeyRing();
  const BufferRing<Shape::kStages> values = memory.ValueRing();
  const int warp = static_cast<int>(threadIdx.x % kWarpgroupSize / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int warp_row = consumer * kWarpgroupRows + warp * kTileRows;   // index in the item
  const int32_t lane_row = work.rows.first_row + warp_row + lane / 4;  // index in the sequence
  const bool takes_turns = Shape::kTakesTurns && work.num_consumers == Shape::kConsumers;
  const int first_tile = work.first_tile;
  const int num_tiles = work.num_tiles;
  uint8_t* queries = memory.Queries(n);

  WgmmaScores<Shape> scores;
  WgmmaWeights<Shape> weights;
  PersistentOut<Shape> out = {};
  SoftmaxState states[2];
  float rescale[2];

  // ---- S of the first tile ----
  memory.QueryRing().WaitUntilFull(n);
  keys.WaitUntilFull(use);
  StartTileScores<Shape>(scores, queries, memory.Keys(use), consumer);
  WaitProducts<0>();
  FenceAccumulator(scores);
  ArriveOfWarp(keys.Free(use));
  ComputeWeights<Shape>(
      scores, states, rescale, params, work.rows, lane_row, first_tile * Shape::kKeys);
  PackWeights<T, Shape::kKeys>(weights, scores);

  // ---- S of tile i, out += P V of tile i - 1 ----
  for (int i = 1; i < num_tiles; ++i) {
    ++use;
    keys.WaitUntilFull(use);
    if (takes_turns && (consumer == 1 || i > 1)) {  // consumer 0 starts without waiting
      SyncNamedBarrier(kTakeTurnBarrier + consumer, Shape::kConsumerThreads);
    }
    StartTileScores<Shape>(scores, queries, memory.Keys(use), consumer);
    values.WaitUntilFull(use - 1);
    StartTileValues<Shape>(out, weights, memory.Values(use - 1));
    if (takes_turns && (consumer == 0 || i + 1 < num_tiles)) {
      ArriveNamedBarrier(kTakeTurnBarrier + 1 - consumer, Shape::kConsumerThreads);
    }
    WaitProducts<1>();
    FenceAccumulator(scores);
    ArriveOfWarp(keys.Free(use));
    ComputeWeights<Shape>(
        scores, states, rescale, params, work.rows, lane_row, (first_tile + i) * Shape::kKeys);
    FinishBefore(memory.Unread(), states[0].sum + states[1].sum);
    AwaitValues<Shape>(out, weights);
    ArriveOfWarp(values.Free(use - 1));
    RescaleOut<Shape>(out, rescale);
    PackWeights<T, Shape::kKeys>(weights, scores);
  }

  // ---- out += P V of the last tile ----
  values.WaitUntilFull(use);
  StartTileValues<Shape>(out, weights, memory.Values(use));
  AwaitValues<Shape>(out, weights);
  ArriveOfWarp(values.Free(use));

  // After this barrier no warp of the warpgroup reads queries, so StoreRows may overwrite them.
  SyncNamedBarrier(kEndOfItemBarrier + consumer, kWarpgroupSize);
  StoreRows<Shape>(out, states, queries, work.rows, params.attention, warp_row);
}

// Frees the buffers of item n, for a computing warpgroup without rows in the item. Waits until each
// buffer is full before it frees the buffer, else the warpgroup could arrive twice in one phase.
template <typename Shape>
QUIRE_DEVICE void PassItem(const PersistentMemory<Shape>& memory, int n, int use) {
  memory.QueryRing().WaitUntilFull(n);
  const int past = use + memory.Work(n).num_tiles;
  for (; use < past; ++use) {
    memory.KeyRing().WaitUntilFull(use);
    ArriveOfWarp(memory.KeyRing().Free(use));
    memory.ValueRing().WaitUntilFull(use);
    ArriveOfWarp(memory.ValueRing().Free(use));
  }
}

// Computes all items of the CTA. The first warpgroup may begin an item while the second is still in
// the previous item, but turns of two items do not mix. The first warpgroup arrives for a turn only
// after the item's second tile of keys has landed. This tile's buffer held the previous item's last
// tile. The second warpgroup frees the buffer only after its last turn in the previous item.
template <typename Shape>
QUIRE_DEVICE void ComputeItems(const PersistentMemory<Shape>& memory,
                               const PrefillParams& params,
                               int consumer) {
  static_assert(Shape::kStages == 2 || !Shape::kTakesTurns);
  int use = 0;
  for (int n = 0;; ++n) {
    memory.WorkRing().WaitUntilFull(n);
    const int num_tiles = memory.Work(n).num_tiles;
    if (num_tiles == 0) {
      return;
    }
    if (consumer < memory.Work(n).num_consumers) {
      ComputeItem<Shape>(memory, params, n, use, consumer);
    } else {
      PassItem<Shape>(memory, n, use);
    }
    ArriveOfWarp(memory.QueryRing().Free(n));
    ArriveOfWarp(memory.WorkRing().Free(n));
    use += num_tiles;
  }
}

// ---- Kernel -------------------------------------------------------------------------------------

// Grid: at most num_items * num_kv_heads CTAs. Shared memory: Shape::kSharedBytes.
template <typename Shape>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(Shape::kThreads, 1)
    PersistentPrefillKernel(const PrefillParams params) {
  QUIRE_SHARED_MEMORY(shared);
  shared += -SharedAddress(shared) & (kSwizzleBytes - 1);
  const PersistentMemory<Shape> memory(shared);
  if (threadIdx.x == 0) {
    memory.Init();
  }
  __syncthreads();

  // The shuffle shows the compiler that all lanes have the same value.
  const int warp = __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x / kWarpSize), 0);
  constexpr int kWarpsOfGroup = kWarpgroupSize / kWarpSize;
  static_assert(2 + Shape::kQueryWarps == kWarpsOfGroup);
  if (warp < kWarpsOfGroup) {
    GiveUpRegisters<Shape::kProducerRegisters>();
    if (warp == 0) {
      TakeItems<Shape>(memory, params);
    } else if (warp == 1) {
      CopyItems<Shape>(memory);
    } else {
      CopyQueries<Shape>(memory, params, warp - 2);
    }
  } else {
    TakeRegisters<Shape::kConsumerRegisters>();
    ComputeItems<Shape>(memory, params, warp / kWarpsOfGroup - 1);
  }
}

template <int kHeadDim>
int RunPersistentPrefill(const PrefillParams& params, Stream stream) {
  const PagedAttentionParams& args = params.attention;
  if (args.cache.layout.dtype != params.activations || params.plan.next_item == nullptr) {
    return kUnsupported;
  }
  return DispatchElement(params.activations, [&]<typename T>() {
    using Shape = PersistentShape<T, kHeadDim>;
    const int32_t num_pairs = params.plan.num_items * args.cache.layout.num_kv_heads;
    if (num_pairs == 0) {
      return 0;
    }
    int32_t num_ctas = params.plan.num_ctas;
    if (num_ctas == 0) {
      if (const int error = QuerySms(&num_ctas); error != 0) {
        return error;
      }
    }
    return QUIRE_LAUNCH(PersistentPrefillKernel<Shape>,
                        dim3(static_cast<uint32_t>(num_ctas < num_pairs ? num_ctas : num_pairs)),
                        dim3(Shape::kThreads),
                        Shape::kSharedBytes,
                        stream,
                        params);
  });
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PREFILL_PERSISTENT_CUH_
