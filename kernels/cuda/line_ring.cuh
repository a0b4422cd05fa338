// The copying side of decode by lines: the layout of a CTA's shared memory, the ring of stages, and
// the code of the copying warp. decode_lines.cuh says how the two sides work together.
#ifndef QUIRE_KERNELS_CUDA_LINE_RING_CUH_
#define QUIRE_KERNELS_CUDA_LINE_RING_CUH_

#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/decode_lines.h"
#include "kernels/cuda/device/bulk_copy.h"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/early_start.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/shared_barrier.h"
#include "kernels/cuda/line_parts.cuh"

namespace quire::gpu {

template <typename Element, typename CacheElement, int kDim, int kMaxRows>
struct LineShape {
  using T = Element;
  using Cache = CacheElement;
  using M = MmaElement<T, Cache>;
  static constexpr int kHeadDim = kDim;
  static constexpr int kRows = kMaxRows;
  static constexpr int kRowTiles = kRows / kTileRows;
  static constexpr int kComputeThreads = kLineWarps * kWarpSize;
  static constexpr int kThreads = kComputeThreads + kWarpSize;

  static constexpr int kRowChunks = kDim * static_cast<int>(sizeof(Cache)) / 16;
  static constexpr int kRowBytes = kRowChunks * 16;
  static constexpr int kStageBytes = 2 * kStageKeys * kRowBytes;
  static constexpr int kChunksPerWarp = (kRowChunks + kLineWarps - 1) / kLineWarps;
  static constexpr int kTilesPerChunk = sizeof(Cache) == 1 ? 2 : 1;
  static constexpr int kTiles = kChunksPerWarp * kTilesPerChunk;
  static constexpr bool kQueryInRegisters = kRows == 16 && kDim <= 128;

  // Number of floats in a thread's LineResult (line_results.cuh).
  static constexpr int kResultFloats = kRowTiles * (4 * kTiles + 4);
  static constexpr bool kFoldsInShared = kResultFloats >= 64;

  // Shared memory, in this order: stages, queries, weights (two buffers of [kRows, kStageKeys]),
  // the fold of a line, maxima (two buffers of [kRows, kLineWarps]), a ScoreRow per row, barriers,
  // a flag.
  static constexpr int kQueryBytes = kRowTiles * QueryTile<kDim>::kBytes;
  static constexpr int kWeightRowBytes = kStageKeys * 2;
  static constexpr int kWeightBytes = kRows * kWeightRowBytes;
  static constexpr int kFoldBytes = kFoldsInShared ? kComputeThreads * kResultFloats * 4 : 0;
  static constexpr int kMaximaFloats = kRows * kLineWarps;
  static constexpr int kMaximaBytes = kMaximaFloats * 4;
  static constexpr int kScoreRowBytes = kRows * static_cast<int>(sizeof(ScoreRow));
  static constexpr int kMaxStages = 8;
  static constexpr int kBarrierBytes = 2 * kMaxStages * static_cast<int>(sizeof(SharedBarrier));
  static constexpr int kFlagBytes = 16;
  static constexpr int kOtherBytes = kQueryBytes + 2 * kWeightBytes + kFoldBytes +
                                     2 * kMaximaBytes + kScoreRowBytes + kBarrierBytes + kFlagBytes;

  // With two CTAs on an SM, one computes while the other ends a line. But two CTAs of five warps
  // leave only 168 registers per thread, too few for more than 16 rows or 128 dims. An SM has 228
  // KB of shared memory. Each CTA takes 1 KB of it more than its launch asks for.
  static constexpr int kCtasPerSm = kRows == 16 && kDim <= 128 ? 2 : 1;
  static constexpr int kBytesToUse = (228 / kCtasPerSm - 1) * 1024;
  static constexpr int kStagesThatFit = (kBytesToUse - kOtherBytes) / kStageBytes;
  static constexpr int kStages = kStagesThatFit < kMaxStages ? kStagesThatFit : kMaxStages;
  static constexpr int kSharedBytes = kStages * kStageBytes + kOtherBytes;
  static_assert(kStages >= 3);
  static_assert(kSharedBytes <= kMostSharedBytes);
};

// The stage buffers of a CTA, and the barriers that pass them between the copying warp and the
// computing warps. A parameter `use` counts the stages that the CTA has loaded, from 0 on: stage
// `use` lies in buffer use % kStages.
template <typename Shape>
struct LineRing {
  uint8_t* stages = nullptr;
  SharedBarrier* full = nullptr;  // [kStages], ends a phase when the stage's bytes have landed
  SharedBarrier* free = nullptr;  // [kStages], ends a phase when all computing warps are done

  QUIRE_DEVICE explicit LineRing(uint8_t* shared, SharedBarrier* barriers)
      : stages(shared), full(barriers), free(barriers + Shape::kStages) {}
  // REQUIRES: one thread alone calls Init; all threads then call __syncthreads.
  QUIRE_DEVICE void Init() const {
    for (int i = 0; i < Shape::kStages; ++i) {
      full[i].Init(1);
      free[i].Init(kLineWarps);
    }
    FenceAsyncProxy();
  }
  QUIRE_DEVICE uint8_t* Stage(int use) const {
    return stages + use % Shape::kStages * Shape::kStageBytes;
  }
  QUIRE_DEVICE SharedBarrier& Full(int use) const { return full[use % Shape::kStages]; }
  QUIRE_DEVICE SharedBarrier& Free(int use) const { return free[use % Shape::kStages]; }
  QUIRE_DEVICE void WaitUntilFull(int use) const { Full(use).Wait(use / Shape::kStages & 1); }
  QUIRE_DEVICE void WaitUntilFree(int use) const {
    if (use >= Shape::kStages) {
      Free(use).Wait((use / Shape::kStages - 1) & 1);
    }
  }
};

// The order of a stage in shared memory. A block of up to kStageKeys positions lies as in the
// cache: K, then V. A larger block is copied in parts, and each part is ordered like a block of
// kStageKeys positions.
template <typename Shape>
struct StageOrder {
  int32_t shift = 0;  // log2 of the positions per block in the stage

  QUIRE_DEVICE explicit StageOrder(int32_t block_shift)
      : shift(block_shift < kStageShift ? block_shift : kStageShift) {}
  QUIRE_DEVICE int32_t BlockBytes() const { return 2 * Shape::kRowBytes << shift; }
  // Returns the offset in bytes from K to V of the same slot.
  QUIRE_DEVICE int32_t ValueOffset() const { return Shape::kRowBytes << shift; }
  // Returns the offset in bytes of a chunk of K in the stage. row: index of the key in the stage.
  // piece: the piece that has the chunk.
  QUIRE_DEVICE int32_t ChunkOffset(KvPiece piece, int32_t row, int32_t chunk) const {
    const int32_t slot = row & ((1 << shift) - 1);
    return (row >> shift) * BlockBytes() + KvChunkOffset(piece, 1 << shift, slot, chunk);
  }

  static constexpr int32_t kStageShift = 6;
  static_assert(1 << kStageShift == kStageKeys);
};

// ---- The copying warp ---------------------------------------------------------------------------

// Finds the blocks of a part's positions. The warp's lanes hold 32 block ids at a time, and load
// the next 32 ahead of their use.
class LineBlocks {
 public:
  LineBlocks() = default;
  QUIRE_DEVICE LineBlocks(const PagedKv& kv, int32_t begin, int32_t end, int32_t first_stage)
      : begin_(begin), end_(end), first_(first_stage * kStageKeys >> kv.block_shift) {
    current_ = Find(kv, first_);
    next_ = Find(kv, first_ + kWarpSize);
  }

  // Returns to lane l the l-th block of the stage that begins at `position`. REQUIRES: the position
  // of each call is that of the previous call, or up to one stage later.
  QUIRE_DEVICE BlockId Of(const PagedKv& kv, int32_t position) {
    const int32_t index = position >> kv.block_shift;
    if (index >= first_ + kWarpSize) {
      first_ += kWarpSize;
      current_ = next_;
      next_ = Find(kv, first_ + kWarpSize);
    }
    const int32_t lane = static_cast<int32_t>(threadIdx.x % kWarpSize);
    return __shfl_sync(kWholeWarp, current_, (index - first_ + lane) % kWarpSize);
  }

 private:
  // Returns to lane l the block at `index` + l in the sequence, or kNullBlockId if that block has
  // no position in [begin_, end_).
  QUIRE_DEVICE BlockId Find(const PagedKv& kv, int32_t index) const {
    const int32_t mine = index + static_cast<int32_t>(threadIdx.x % kWarpSize);
    const int64_t position = int64_t{mine} << kv.block_shift;
    const bool is_needed = position < end_ && position + (1 << kv.block_shift) > begin_;
    return !is_needed ? kNullBlockId : kv.block_table != nullptr ? kv.block_table[mine] : mine;
  }

  int32_t begin_ = 0;
  int32_t end_ = 0;
  int32_t first_ = 0;  // index of lane 0's current block
  BlockId current_ = kNullBlockId;
  BlockId next_ = kNullBlockId;
};

// A part of a line with its addresses and blocks, for the copying warp.
struct CopiedPart {
  LinePart part;
  PagedKv kv;
  LineBlocks blocks;
};

template <typename Shape>
QUIRE_DEVICE CopiedPart FindCopiedPart(const LineParams& params, int32_t next, int32_t run_end) {
  CopiedPart copied;
  copied.part = FindLinePart(params, next, run_end);
  const LinePart& part = copied.part;
  copied.kv = MakePagedKv<typename Shape::Cache>(
      params.attention, part.sequence, part.kv_head, params.block_shift);
  copied.blocks =
      LineBlocks(copied.kv, part.begin, part.end, part.FirstStage(params.plan.split_tokens));
  return copied;
}

// Starts the copies of a stage. REQUIRES: a block has at most kStageKeys positions, so a stage has
// whole blocks. Lane l copies K and V of the l-th block, which are contiguous. A block without a
// position in [part.begin, part.end) is not copied. Its part of the buffer keeps old bytes, which
// the computing warps mask or zero.
template <typename Shape>
QUIRE_DEVICE void CopyBlocksOfStage(uint8_t* stage,
                                    SharedBarrier& full,
                                    CopiedPart& copied,
                                    int32_t position) {
  const PagedKv& kv = copied.kv;
  const StageOrder<Shape> order(kv.block_shift);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpSize);
  const BlockId block = copied.blocks.Of(kv, position);
  const int32_t first = position + (lane << kv.block_shift);
  const bool is_needed = lane < kStageKeys >> kv.block_shift && first < copied.part.end &&
                         first + (1 << kv.block_shift) > copied.part.begin;
  const int num_needed = __popc(__ballot_sync(kWholeWarp, is_needed ? 1 : 0));
  if (lane == 0) {
    full.ArriveAndExpect(num_needed * order.BlockBytes());
  }
  __syncwarp();
  if (is_needed) {
    CopyBulk(stage + lane * order.BlockBytes(),
             kv.keys + block * kv.block_stride,
             order.BlockBytes(),
             full);
  }
}

// Starts the copies of a stage that is part of a larger block. For each piece (KvPiece) of K and V,
// one copy brings the rows of kStageKeys slots, which are contiguous. Lane 0 copies K, lane 1
// copies V.
template <typename Shape>
QUIRE_DEVICE void CopyPartOfBlock(uint8_t* stage,
                                  SharedBarrier& full,
                                  CopiedPart& copied,
                                  int32_t position) {
  const PagedKv& kv = copied.kv;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpSize);
  const BlockId block = copied.blocks.Of(kv, position);
  const BlockId only_block = __shfl_sync(kWholeWarp, block, 0);
  const int32_t block_size = 1 << kv.block_shift;
  const int32_t slot = position & (block_size - 1);
  if (lane == 0) {
    full.ArriveAndExpect(Shape::kStageBytes);
  }
  __syncwarp();
  if (lane > 1) {
    return;
  }
  const uint8_t* from = (lane == 0 ? kv.keys : kv.values) + only_block * kv.block_stride;
  uint8_t* to = stage + lane * (Shape::kStageBytes / 2);
  for (int32_t chunk = 0; chunk < Shape::kRowChunks;) {
    const KvPiece piece = KvPieceOf(Shape::kRowChunks, chunk);
    CopyBulk(to + chunk * kStageKeys * 16,
             from + (chunk * block_size + slot * piece.num_chunks) * 16,
             kStageKeys * piece.num_chunks * 16,
             full);
    chunk += piece.num_chunks;
  }
}

// Copies all stages of the run [next, run_end). Waits only for free buffers, so copies go on across
// the end of a line. Looks up the blocks of the next part while copies of this part are in flight.
// The previous operation on the stream writes K and V of the step's new tokens. So CopyRun waits
// for it before the first stage with a new token.
template <typename Shape>
QUIRE_DEVICE void CopyRun(const LineRing<Shape>& ring,
                          const LineParams& params,
                          int32_t next,
                          int32_t run_end) {
  const int32_t split_tokens = params.plan.split_tokens;
  bool has_waited = false;
  int use = 0;
  CopiedPart copied = FindCopiedPart<Shape>(params, next, run_end);
  while (true) {
    const LinePart part = copied.part;
    next += part.past - part.first;
    CopiedPart following;
    const int32_t first_stage = part.FirstStage(split_tokens);
    const int32_t past_stage = part.PastStage(split_tokens);
    for (int32_t s = first_stage; s < past_stage; ++s) {
      const int32_t position = s * kStageKeys;
      if (!has_waited && position + kStageKeys > part.context) {
        WaitForEarlierOperation();
        has_waited = true;
      }
      ring.WaitUntilFree(use);
      if (copied.kv.block_shift <= StageOrder<Shape>::kStageShift) {
        CopyBlocksOfStage<Shape>(ring.Stage(use), ring.Full(use), copied, position);
      } else {
        CopyPartOfBlock<Shape>(ring.Stage(use), ring.Full(use), copied, position);
      }
      ++use;
      if (s == first_stage && next < run_end) {
        following = FindCopiedPart<Shape>(params, next, run_end);
      }
    }
    if (next >= run_end) {
      return;
    }
    copied = following;
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_LINE_RING_CUH_
