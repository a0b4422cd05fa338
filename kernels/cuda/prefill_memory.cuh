// The shape of persistent prefill: sizes, the layout of a CTA's shared memory, and the rings of
// barriers that pass buffers between warps. prefill_persistent.cuh says how the warps work
// together.
#ifndef QUIRE_KERNELS_CUDA_PREFILL_MEMORY_CUH_
#define QUIRE_KERNELS_CUDA_PREFILL_MEMORY_CUH_

#include <cstdint>

#include "kernels/api/kv_cache_layout.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/device/async_proxy.h"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/shared_barrier.h"
#include "kernels/cuda/device/warpgroup.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/prefill_rows.cuh"

namespace quire::gpu {

// One item and KV head, as the warps of a CTA see them.
struct PrefillWork {
  ItemRows rows;
  PagedKv kv;
  int32_t first_tile = 0;
  int32_t num_tiles = 0;      // 0: the CTA has no more items
  int32_t num_consumers = 0;  // computing warpgroups that have rows
};

template <typename T, int kDim>
struct PersistentShape {
  using Element = T;
  static constexpr int kHeadDim = kDim;
  static constexpr int kRows = kPrefillRows;
  static constexpr int kConsumers = kRows / kWarpgroupRows;  // computing warpgroups
  static constexpr int kConsumerThreads = kConsumers * kWarpgroupSize;
  static constexpr int kConsumerWarps = kConsumerThreads / kWarpSize;
  static constexpr int kThreads = kWarpgroupSize + kConsumerThreads;
  static constexpr int kQueryWarps = 2;  // warps of the copying warpgroup that copy queries
  // Number of keys in a tile. Another value would change the bits of results.
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;
  static constexpr int kStages = 2;
  static constexpr int kQueryBuffers = kDim <= 128 ? 2 : 1;
  static constexpr int kWorkSlots = 4;
  // Number of items that a CTA takes ahead of the item that it computes. With two, the CTA finds
  // the next item's rows and blocks and copies its first keys in time, even if items have one tile.
  // With more, the CTA would hold items that other CTAs could compute.
  static constexpr int kItemsAhead = 2;
  static_assert(kItemsAhead < kWorkSlots);
  static constexpr bool kTakesTurns = kDim <= 128;

  // Registers per thread of the copying and the computing warpgroups. All threads start with 168.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  static constexpr int kRowChunks = kDim / 8;  // 16-byte chunks of a row
  static constexpr int kRowBytes = kRowChunks * 16;
  static constexpr int kQueryBytes = kRows * kRowBytes;
  static constexpr int kTileBytes = kKeys * kRowBytes;
  static constexpr int kNumBarriers = 2 * (2 * kStages + kQueryBuffers + kWorkSlots);
  static constexpr int kUnreadBytes = kConsumerThreads * static_cast<int>(sizeof(float));
  static constexpr int kSharedBytes =
      kSwizzleBytes + kQueryBuffers * kQueryBytes + 2 * kStages * kTileBytes +
      kNumBarriers * static_cast<int>(sizeof(SharedBarrier)) + kUnreadBytes +
      kWorkSlots * static_cast<int>(sizeof(PrefillWork));
  static_assert(kQueryBytes % kSwizzleBytes == 0 && kTileBytes % kSwizzleBytes == 0);
  static_assert(kSharedBytes <= kMostSharedBytes);
};

// Calls body<first chunk, number of chunks> for each part of a row, in order. A part has up to
// kLargest chunks. If kLargest is 8, the parts are the pieces of kv_cache_layout.h. If it is 16,
// two pieces of 8 chunks are one part.
template <int kRowChunks, int kLargest, int kChunk = 0, typename Body>
QUIRE_DEVICE void ForEachPart(Body&& body) {
  if constexpr (kChunk < kRowChunks) {
    constexpr int kPiece = KvPieceOf(kRowChunks, kChunk).num_chunks;
    constexpr int kChunks = kRowChunks - kChunk >= kLargest ? kLargest : kPiece;
    body.template operator()<kChunk, kChunks>();
    ForEachPart<kRowChunks, kLargest, kChunk + kChunks>(body);
  }
}

// The barriers of a ring of buffers. Use i of the ring takes buffer i % kBuffers. A phase of Full
// ends when a use's bytes have landed, a phase of Free when all readers of a use are done.
template <int kBuffers>
class BufferRing {
 public:
  QUIRE_DEVICE explicit BufferRing(SharedBarrier* barriers) : barriers_(barriers) {}
  // Must be called by one thread alone.
  QUIRE_DEVICE void Init(int num_fillers, int num_readers) const {
    for (int i = 0; i < kBuffers; ++i) {
      barriers_[i].Init(num_fillers);
      barriers_[kBuffers + i].Init(num_readers);
    }
  }
  QUIRE_DEVICE SharedBarrier& Full(int use) const { return barriers_[use % kBuffers]; }
  QUIRE_DEVICE SharedBarrier& Free(int use) const { return barriers_[kBuffers + use % kBuffers]; }
  QUIRE_DEVICE void WaitUntilFull(int use) const { Full(use).Wait(use / kBuffers & 1); }
  // Waits until all readers are done with the buffer's use number `use`. REQUIRES: they are not yet
  // done with number use + kBuffers, because a barrier knows adjacent phases only by their parity.
  QUIRE_DEVICE void WaitUntilDone(int use) const { Free(use).Wait(use / kBuffers & 1); }
  QUIRE_DEVICE void WaitUntilFree(int use) const {
    if (use >= kBuffers) {
      WaitUntilDone(use - kBuffers);
    }
  }

 private:
  SharedBarrier* barriers_;  // [kBuffers] of Full, [kBuffers] of Free
};

// Shared memory of a CTA, in this order: padding for alignment, queries, keys, values, barriers,
// memory that FinishBefore writes, PrefillWorks. Rows of a buffer of R rows are stored like R slots
// of a block (KvChunkOffset). A parameter n counts the CTA's items, and `use` counts its tiles.
template <typename Shape>
class PersistentMemory {
 public:
  // shared: aligned to kSwizzleBytes.
  QUIRE_DEVICE explicit PersistentMemory(uint8_t* shared) : shared_(shared) {}

  // Initializes the barriers. Must be called by one thread alone, and before a __syncthreads.
  QUIRE_DEVICE void Init() const {
    KeyRing().Init(1, Shape::kConsumerWarps);
    ValueRing().Init(1, Shape::kConsumerWarps);
    QueryRing().Init(Shape::kQueryWarps, Shape::kConsumerWarps);
    WorkRing().Init(1, Shape::kConsumerWarps + Shape::kQueryWarps + 1);
    FenceAsyncProxy();
  }

  QUIRE_DEVICE uint8_t* Queries(int n) const {
    return shared_ + n % Shape::kQueryBuffers * Shape::kQueryBytes;
  }
  QUIRE_DEVICE uint8_t* Keys(int use) const {
    return shared_ + kKeysAt + use % Shape::kStages * Shape::kTileBytes;
  }
  QUIRE_DEVICE uint8_t* Values(int use) const {
    return shared_ + kValuesAt + use % Shape::kStages * Shape::kTileBytes;
  }
  QUIRE_DEVICE PrefillWork& Work(int n) const {
    return reinterpret_cast<PrefillWork*>(shared_ + kWorksAt)[n % Shape::kWorkSlots];
  }
  QUIRE_DEVICE float* Unread() const { return reinterpret_cast<float*>(shared_ + kUnreadAt); }

  QUIRE_DEVICE BufferRing<Shape::kStages> KeyRing() const {
    return BufferRing<Shape::kStages>(Barriers());
  }
  QUIRE_DEVICE BufferRing<Shape::kStages> ValueRing() const {
    return BufferRing<Shape::kStages>(Barriers() + 2 * Shape::kStages);
  }
  QUIRE_DEVICE BufferRing<Shape::kQueryBuffers> QueryRing() const {
    return BufferRing<Shape::kQueryBuffers>(Barriers() + 4 * Shape::kStages);
  }
  QUIRE_DEVICE BufferRing<Shape::kWorkSlots> WorkRing() const {
    return BufferRing<Shape::kWorkSlots>(Barriers() + 4 * Shape::kStages +
                                         2 * Shape::kQueryBuffers);
  }

 private:
  static constexpr int kKeysAt = Shape::kQueryBuffers * Shape::kQueryBytes;
  static constexpr int kValuesAt = kKeysAt + Shape::kStages * Shape::kTileBytes;
  static constexpr int kBarriersAt = kValuesAt + Shape::kStages * Shape::kTileBytes;
  static constexpr int kUnreadAt =
      kBarriersAt + Shape::kNumBarriers * static_cast<int>(sizeof(SharedBarrier));
  static constexpr int kWorksAt = kUnreadAt + Shape::kUnreadBytes;

  QUIRE_DEVICE SharedBarrier* Barriers() const {
    return reinterpret_cast<SharedBarrier*>(shared_ + kBarriersAt);
  }

  uint8_t* shared_;
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PREFILL_MEMORY_CUH_
