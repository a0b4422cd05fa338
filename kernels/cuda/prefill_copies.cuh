// The copying side of persistent prefill: one warp takes items, another copies their keys and
// values, and two copy their queries. prefill_persistent.cuh says how the warps work together.
#ifndef QUIRE_KERNELS_CUDA_PREFILL_COPIES_CUH_
#define QUIRE_KERNELS_CUDA_PREFILL_COPIES_CUH_

#include <cstdint>

#include "kernels/api/kv_cache_layout.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/bulk_copy.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/prefill_memory.cuh"
#include "kernels/cuda/prefill_rows.cuh"
#include "kernels/cuda/prefill_weights.cuh"

namespace quire::gpu {

// ---- Items --------------------------------------------------------------------------------------

// Returns the number of the CTA's next pair (item, KV head), or num_pairs or more if all pairs are
// taken. Pair p has item p / num_kv_heads. A CTA begins with the pair of its own number, and then
// calls TakePair until no pair is left. Each CTA needs no call for its first pair, and makes one
// call that finds no pair. So all CTAs together make num_pairs calls, and the last call sets the
// counter back to 0. REQUIRES: at most num_pairs CTAs.
QUIRE_DEVICE int32_t TakePair(const PrefillPlan& plan, int32_t num_pairs) {
  const int32_t before = atomicAdd(plan.next_item, 1);
  if (before == num_pairs - 1) {
    atomicExch(plan.next_item, 0);
  }
  return static_cast<int32_t>(gridDim.x) + before;
}

// Sets `work` to the CTA's next item that has tiles, or work.num_tiles to 0 if no item is left.
// Must be called by one thread alone.
template <typename Shape>
QUIRE_DEVICE void FindWork(PrefillWork& work, const PrefillParams& params, bool is_first) {
  const PagedAttentionParams& args = params.attention;
  const int32_t num_kv_heads = args.cache.layout.num_kv_heads;
  const int32_t num_pairs = params.plan.num_items * num_kv_heads;
  do {
    const int32_t pair =
        is_first ? static_cast<int32_t>(blockIdx.x) : TakePair(params.plan, num_pairs);
    if (pair >= num_pairs) {
      work.num_tiles = 0;
      return;
    }
    is_first = false;
    const PrefillItem item = params.plan.items[pair / num_kv_heads];
    const int32_t kv_head = pair % num_kv_heads;
    const ItemRows rows =
        MakeItemRows(args, params.num_queries_per_kv_head, item, kv_head, Shape::kRows);
    work.rows = rows;
    work.first_tile = rows.begin / Shape::kKeys;
    work.num_tiles = (rows.end + Shape::kKeys - 1) / Shape::kKeys - work.first_tile;
    work.num_consumers = rows.first_row + kWarpgroupRows < rows.num_rows ? 2 : 1;
    work.kv =
        MakePagedKv<typename Shape::Element>(args, item.sequence, kv_head, params.block_shift);
  } while (work.num_tiles <= 0);  // padding ends at position 0 or below, so it has no tiles
}

// One warp takes all items of the CTA, and shows each to the other warps. It stays at most
// kItemsAhead items ahead of the slowest other warp.
template <typename Shape>
QUIRE_DEVICE void TakeItems(const PersistentMemory<Shape>& memory, const PrefillParams& params) {
  bool is_last = false;
  for (int n = 0; !is_last; ++n) {
    if (n > Shape::kItemsAhead) {
      memory.WorkRing().WaitUntilDone(n - 1 - Shape::kItemsAhead);
    }
    if (threadIdx.x % kWarpSize == 0) {
      FindWork<Shape>(memory.Work(n), params, n == 0);
    }
    ArriveOfWarp(memory.WorkRing().Full(n));
    is_last = memory.Work(n).num_tiles == 0;
  }
}

// ---- Keys and values ----------------------------------------------------------------------------

// The rows [begin, end) of a tile that a lane copies. They lie in one block, and the item attends
// to them. Empty if begin >= end.
template <typename Shape>
struct LaneRows {
  int32_t begin = 0;
  int32_t end = 0;

  // first_key: the tile's first position.
  QUIRE_DEVICE LaneRows(const PrefillWork& work, int32_t first_key) {
    const int32_t block_size = 1 << work.kv.block_shift;
    const int32_t rows_per_lane = block_size < Shape::kKeys ? block_size : Shape::kKeys;
    const int32_t first = static_cast<int32_t>(threadIdx.x % kWarpSize) * rows_per_lane;
    const int32_t tile_begin = work.rows.begin - first_key;
    const int32_t tile_end = work.rows.end - first_key;
    const int32_t past =
        first + rows_per_lane < Shape::kKeys ? first + rows_per_lane : Shape::kKeys;
    begin = first > tile_begin ? first : tile_begin;
    end = past < tile_end ? past : tile_end;
  }
  QUIRE_DEVICE bool is_empty() const { return begin >= end; }
};

// Returns the block from which the lane copies rows of the item's tile i. Lanes without rows get
// the null block and do not read the block table.
template <typename Shape>
QUIRE_DEVICE BlockId FindLaneBlock(const PrefillWork& work, int i) {
  const int32_t first_key = (work.first_tile + i) * Shape::kKeys;
  const LaneRows<Shape> rows(work, first_key);
  return rows.is_empty() ? kNullBlockId : BlockOf(work.kv, first_key + rows.begin);
}

QUIRE_DEVICE void ZeroBytesByWarp(uint8_t* bytes, int32_t count) {
  const uint32_t zeros[4] = {};
  for (auto i = static_cast<int32_t>(threadIdx.x % kWarpSize); i < count / 16; i += kWarpSize) {
    StoreWords<16>(bytes + i * 16, zeros);
  }
}

// Zeroes the rows of a tile of V outside [begin, end). The weight of such a key is 0, but 0 times a
// NaN is a NaN. Ends with a fence, so that bulk copies of the other rows may follow.
template <typename Shape>
QUIRE_DEVICE void ZeroOtherRows(uint8_t* tile, int32_t begin, int32_t end) {
  ForEachPart<Shape::kRowChunks, 8>([&]<int kFirst, int kChunks>() {
    constexpr int kBytes = kChunks * 16;  // size of a row of the piece
    uint8_t* piece = tile + kFirst * Shape::kKeys * 16;
    ZeroBytesByWarp(piece, begin * kBytes);
    ZeroBytesByWarp(piece + end * kBytes, (Shape::kKeys - end) * kBytes);
  });
  FenceAsyncProxy();
}

// Starts the copy of tile i of K or V: one bulk copy for each block and piece. block: the lane's
// block, from FindLaneBlock. Copies only rows for positions in [work.rows.begin, work.rows.end).
// Other rows of K keep their old bytes, because their scores are masked. Other rows of V become
// zeros. REQUIRES: all lanes of the warp call together.
template <typename Shape, bool kIsValue>
QUIRE_DEVICE void StartTileCopy(
    uint8_t* tile, SharedBarrier& full, const PrefillWork& work, int i, BlockId block) {
  const int32_t first_key = (work.first_tile + i) * Shape::kKeys;
  const int32_t rows_begin = work.rows.begin - first_key;
  const int32_t rows_end = work.rows.end - first_key;
  const int32_t begin = rows_begin > 0 ? rows_begin : 0;
  const int32_t end = rows_end < Shape::kKeys ? rows_end : Shape::kKeys;
  if (kIsValue && end - begin < Shape::kKeys) {
    ZeroOtherRows<Shape>(tile, begin, end);
  }
  __syncwarp();
  if (threadIdx.x % kWarpSize == 0) {
    full.ArriveAndExpect((end - begin) * Shape::kRowBytes);
  }
  __syncwarp();
  const LaneRows<Shape> rows(work, first_key);
  if (rows.is_empty()) {
    return;
  }
  const int32_t block_size = 1 << work.kv.block_shift;
  const int32_t slot = (first_key + rows.begin) & (block_size - 1);
  const uint8_t* from = (kIsValue ? work.kv.values : work.kv.keys) + block * work.kv.block_stride;
  ForEachPart<Shape::kRowChunks, 8>([&]<int kFirst, int kChunks>() {
    CopyBulk(tile + (kFirst * Shape::kKeys + rows.begin * kChunks) * 16,
             from + (kFirst * block_size + slot * kChunks) * 16,
             (rows.end - rows.begin) * kChunks * 16,
             full);
  });
}

// Copies the keys and values of all items of the CTA in the order of use: K(0), K(1), V(0), K(2),
// V(1), ... Waits only for free buffers and for the next item, so copies go on across the end of an
// item.
template <typename Shape>
QUIRE_DEVICE void CopyItems(const PersistentMemory<Shape>& memory) {
  const BufferRing<Shape::kStages> keys = memory.KeyRing();
  const BufferRing<Shape::kStages> values = memory.ValueRing();
  int use = 0;  // number of the item's first tile, counted over all items of the CTA
  for (int n = 0;; ++n) {
    memory.WorkRing().WaitUntilFull(n);
    const PrefillWork& work = memory.Work(n);
    const int num_tiles = work.num_tiles;
    if (num_tiles == 0) {
      return;
    }
    BlockId block = FindLaneBlock<Shape>(work, 0);
    BlockId earlier_block = block;
    for (int i = 0; i <= num_tiles; ++i) {
      const BlockId next_block = FindLaneBlock<Shape>(work, i + 1);
      if (i < num_tiles) {
        keys.WaitUntilFree(use + i);
        StartTileCopy<Shape, false>(memory.Keys(use + i), keys.Full(use + i), work, i, block);
      }
      if (i > 0) {
        const int earlier = use + i - 1;
        values.WaitUntilFree(earlier);
        StartTileCopy<Shape, true>(
            memory.Values(earlier), values.Full(earlier), work, i - 1, earlier_block);
      }
      earlier_block = block;
      block = next_block;
    }
    ArriveOfWarp(memory.WorkRing().Free(n));
    use += num_tiles;
  }
}

// ---- Queries ------------------------------------------------------------------------------------

// Copies the queries of all items of the CTA. warp: number of the warp among the kQueryWarps warps
// that copy queries. Rows past the sequence's end become zeros and are not read.
template <typename Shape>
QUIRE_DEVICE void CopyQueries(const PersistentMemory<Shape>& memory,
                              const PrefillParams& params,
                              int warp) {
  using T = typename Shape::Element;
  const PagedAttentionParams& args = params.attention;
  const int thread = warp * kWarpSize + static_cast<int>(threadIdx.x % kWarpSize);
  for (int n = 0;; ++n) {
    memory.WorkRing().WaitUntilFull(n);
    const PrefillWork& work = memory.Work(n);
    if (work.num_tiles == 0) {
      return;
    }
    memory.QueryRing().WaitUntilFree(n);
    uint8_t* queries = memory.Queries(n);
    const int num_chunks = work.num_consumers * kWarpgroupRows * Shape::kRowChunks;
    QUIRE_UNROLL_BY(1)  // more would exhaust the registers
    for (int i = thread; i < num_chunks; i += Shape::kQueryWarps * kWarpSize) {
      const int row = i / Shape::kRowChunks;
      const int chunk = i % Shape::kRowChunks;
      const int32_t sequence_row = work.rows.first_row + row;
      const bool valid = sequence_row < work.rows.num_rows;
      const T* source =
          static_cast<const T*>(args.q) +
          work.rows.PlaceOf(valid ? sequence_row : 0, args.q_row_stride, Shape::kHeadDim);
      CopyAsync16(queries + KvChunkOffset(Shape::kRowChunks, Shape::kRows, row, chunk),
                  source + chunk * 8,
                  valid);
    }
    CommitCopies();
    WaitCopies<0>();
    FenceAsyncProxy();
    ArriveOfWarp(memory.QueryRing().Full(n));
    ArriveOfWarp(memory.WorkRing().Free(n));
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PREFILL_COPIES_CUH_
