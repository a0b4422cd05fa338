// The copying side of prefill on warpgroup products: the layout of a CTA's shared memory, the
// barriers that pass buffers between copying and computing warpgroups, and the code of the copying
// warpgroup. paged_prefill_wgmma.cuh says how the two sides work together.
#ifndef QUIRE_KERNELS_CUDA_PREFILL_PIPELINE_CUH_
#define QUIRE_KERNELS_CUDA_PREFILL_PIPELINE_CUH_

#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/shared_barrier.h"
#include "kernels/cuda/device/warpgroup.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/prefill_rows.cuh"

namespace quire::gpu {

template <typename T, int kDim>
struct WgmmaShape {
  using Element = T;
  static constexpr int kHeadDim = kDim;
  static constexpr int kRows = kPrefillRows;
  static constexpr int kConsumers = kRows / kWarpgroupRows;  // computing warpgroups
  static constexpr int kConsumerThreads = kConsumers * kWarpgroupSize;
  static constexpr int kThreads = kWarpgroupSize + kConsumerThreads;
  // Number of keys in a tile. Another value would change the bits of results.
  static constexpr int kKeys = kHeadDim <= 128 ? 128 : 64;
  static constexpr int kStages = 2;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kRowChunks = kHeadDim / 8;  // 16-byte chunks of a row
  // Number of columns of one product with V.
  static constexpr int kOutColumns = kHeadDim <= 128 ? kHeadDim : 128;
  // Number of products with V that together cover all columns.
  static constexpr int kOutParts = kHeadDim / kOutColumns;
  static constexpr bool kTakesTurns = kHeadDim <= 128;

  // Registers per thread of the copying and the computing warpgroups. All threads start with 168.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  // Shared memory, in this order: padding for alignment, queries, keys, values, barriers, the
  // memory that WgmmaCta::unread points to, the WgmmaCta.
  static constexpr int kQueryPanelBytes = kRows * kSwizzleRowBytes;
  static constexpr int kTilePanelBytes = kKeys * kSwizzleRowBytes;
  static constexpr int kQueryBytes = kPanels * kQueryPanelBytes;
  static constexpr int kTileBytes = kPanels * kTilePanelBytes;
  static constexpr int kNumBarriers = 2 * 2 * kStages;
  static constexpr int kWarpsOfGroup = kWarpgroupSize / kWarpSize;
};

// The buffers of K or of V, and the barriers that guard them.
template <typename Shape>
struct TileBuffers {
  uint8_t* tiles = nullptr;
  SharedBarrier* full = nullptr;  // [kStages]
  SharedBarrier* free = nullptr;  // [kStages]

  // i: index among the CTA's tiles.
  QUIRE_DEVICE uint8_t* Tile(int i) const { return tiles + i % Shape::kStages * Shape::kTileBytes; }
  // Waits until products can read the tile.
  QUIRE_DEVICE void WaitUntilFull(int i) const {
    Full(i).Wait(i / Shape::kStages & 1);
    FenceAsyncProxy();
  }
  QUIRE_DEVICE void WaitUntilFree(int i) const {
    if (i >= Shape::kStages) {
      Free(i).Wait((i / Shape::kStages - 1) & 1);
    }
  }
  // Return the Full and the Free barrier of tile i's buffer.
  QUIRE_DEVICE SharedBarrier& Full(int i) const { return full[i % Shape::kStages]; }
  QUIRE_DEVICE SharedBarrier& Free(int i) const { return free[i % Shape::kStages]; }
};

// State that the CTA's threads share.
template <typename Shape>
struct WgmmaCta {
  ItemRows rows;
  PagedKv kv;
  uint8_t* queries = nullptr;  // in shared memory
  TileBuffers<Shape> keys;
  TileBuffers<Shape> values;
  float* unread = nullptr;  // [kConsumerThreads], written by FinishBefore
  int first_tile = 0;
  int num_tiles = 0;
  int num_consumers = 0;  // computing warpgroups that have rows
};

template <typename Shape>
constexpr int WgmmaSharedBytes() {
  return kSwizzleBytes + Shape::kQueryBytes + 2 * Shape::kStages * Shape::kTileBytes +
         Shape::kNumBarriers * static_cast<int>(sizeof(SharedBarrier)) +
         Shape::kConsumerThreads * static_cast<int>(sizeof(float)) +
         static_cast<int>(sizeof(WgmmaCta<Shape>));
}

// Lays out the shared memory and initializes the barriers. Must be called by one thread alone.
template <typename Shape>
QUIRE_DEVICE void PrepareCta(WgmmaCta<Shape>& cta,
                             const PrefillParams& params,
                             PrefillItem item,
                             int32_t kv_head,
                             const ItemRows& rows,
                             uint8_t* shared) {
  const PagedAttentionParams& args = params.attention;
  cta.rows = rows;
  cta.kv = MakePagedKv<typename Shape::Element>(args, item.sequence, kv_head, params.block_shift);
  cta.first_tile = rows.begin / Shape::kKeys;
  cta.num_tiles = (rows.end + Shape::kKeys - 1) / Shape::kKeys - cta.first_tile;
  cta.num_consumers = rows.first_row + kWarpgroupRows < rows.num_rows ? 2 : 1;

  cta.queries = shared;
  cta.keys.tiles = cta.queries + Shape::kQueryBytes;
  cta.values.tiles = cta.keys.tiles + Shape::kStages * Shape::kTileBytes;
  auto* barriers =
      reinterpret_cast<SharedBarrier*>(cta.values.tiles + Shape::kStages * Shape::kTileBytes);
  cta.keys.full = barriers;
  cta.keys.free = cta.keys.full + Shape::kStages;
  cta.values.full = cta.keys.free + Shape::kStages;
  cta.values.free = cta.values.full + Shape::kStages;
  cta.unread = reinterpret_cast<float*>(barriers + Shape::kNumBarriers);
  for (int stage = 0; stage < Shape::kStages; ++stage) {
    cta.keys.full[stage].Init(kWarpgroupSize);
    cta.keys.free[stage].Init(Shape::kWarpsOfGroup * cta.num_consumers);
    cta.values.full[stage].Init(kWarpgroupSize);
    cta.values.free[stage].Init(Shape::kWarpsOfGroup * cta.num_consumers);
  }
}

// ---- The copying warpgroup ----------------------------------------------------------------------

// Tells lane l where row 8 l of tile i begins in the first piece (KvPiece) of its block. Returns
// the byte offset from kv.keys for K, and from kv.values for V. The next seven rows of the tile
// follow in the same block.
template <typename Shape>
QUIRE_DEVICE int64_t FindLanePlace(const WgmmaCta<Shape>& cta, int i) {
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int32_t position = (cta.first_tile + i) * Shape::kKeys + lane * 8;
  const int32_t slot = position & ((1 << cta.kv.block_shift) - 1);
  const bool is_in_tile = lane < Shape::kKeys / 8;
  const BlockId block = FindBlock(cta.kv, position, cta.rows.begin, is_in_tile ? cta.rows.end : 0);
  return block * cta.kv.block_stride + slot * kSwizzleRowBytes;
}

// Starts the copy of tile i of K or V. plane: kv.keys or kv.values. lane_place: the result of
// FindLanePlace. Rows for positions outside [rows.begin, rows.end) become zeros and are not read.
// The cache holds the rows of each piece as products expect them, so chunks keep their order.
// Shuffles pass the offsets from lane to lane. A version that passed block ids instead was slower:
// its products waited for the copies and took 1.3 times as long.
template <typename Shape>
QUIRE_DEVICE void CopyPagedTile(
    uint8_t* buffer, const uint8_t* plane, const WgmmaCta<Shape>& cta, int i, int64_t lane_place) {
  constexpr int kRowsAtOnce = kWarpgroupSize / Shape::kRowChunks;
  const int thread = static_cast<int>(threadIdx.x % kWarpgroupSize);
  const int chunk = thread % Shape::kRowChunks;
  const int first_row = thread / Shape::kRowChunks;
  // If 8 or 16 rows are copied at once, all of a thread's rows have the same row % 8. If 4 rows are
  // copied at once, a thread's row % 8 alternates between two values, one for even and one for odd
  // rounds.
  constexpr int kRounds = kRowsAtOnce < 8 ? 8 / kRowsAtOnce : 1;
  uint8_t* to[kRounds];
  const uint8_t* from[kRounds];
  QUIRE_UNROLL
  for (int round = 0; round < kRounds; ++round) {
    const int row = first_row + round * kRowsAtOnce;
    to[round] =
        buffer + chunk / 8 * Shape::kTilePanelBytes + row * kSwizzleRowBytes + chunk % 8 * 16;
    from[round] = plane + (chunk / 8 * kSwizzleRowBytes << cta.kv.block_shift) +
                  row % 8 * kSwizzleRowBytes + chunk % 8 * 16;
  }
  const int32_t begin = cta.rows.begin - (cta.first_tile + i) * Shape::kKeys - first_row;
  const auto num_rows = static_cast<uint32_t>(cta.rows.end - cta.rows.begin);
  QUIRE_UNROLL
  for (int first = 0; first < Shape::kKeys; first += kRowsAtOnce) {
    const int round = first / kRowsAtOnce % kRounds;
    const int64_t place = __shfl_sync(kWholeWarp, lane_place, (first_row + first) / 8);
    const bool valid = static_cast<uint32_t>(first - begin) < num_rows;
    CopyAsync16(
        to[round] + (first - round * kRowsAtOnce) * kSwizzleRowBytes, from[round] + place, valid);
  }
}

// Copies all tiles of K and V. When a thread's copies have landed, the hardware arrives at the Full
// barrier for the thread. So the thread neither waits for its copies nor calls FenceAsyncProxy
// before it goes on with the next buffer.
template <typename Shape>
QUIRE_DEVICE void CopyTiles(const WgmmaCta<Shape>& cta) {
  const auto copy =
      [&](const TileBuffers<Shape>& buffers, const uint8_t* plane, int i, int64_t lane_place) {
        buffers.WaitUntilFree(i);
        CopyPagedTile(buffers.Tile(i), plane, cta, i, lane_place);
        buffers.Full(i).ArriveAfterCopies();
      };
  const int num_tiles = cta.num_tiles;
  int64_t place = FindLanePlace(cta, 0);
  int64_t earlier_place = place;
  for (int i = 0; i <= num_tiles; ++i) {
    const int64_t next_place = FindLanePlace(cta, i + 1);
    if (i < num_tiles) {
      copy(cta.keys, cta.kv.keys, i, place);
    }
    if (i > 0) {
      copy(cta.values, cta.kv.values, i - 1, earlier_place);
    }
    earlier_place = place;
    place = next_place;
  }
  CommitCopies();
  WaitCopies<0>();  // a thread must wait for its copies before it returns
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PREFILL_PIPELINE_CUH_
