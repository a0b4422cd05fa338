#include <algorithm>

#include "kernels/cuda/device/async_copy.h"
#include "kernels/cuda/device/bulk_copy.h"
#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/shared_barrier.h"
#include "tests/gpu/load_kernels.h"

namespace quire::gpu {
namespace {

constexpr int kLoadWarps = 4;
constexpr int kLoadThreads = kLoadWarps * kWarpSize;
constexpr int kMaxStages = 128;
constexpr int kBarrierBytes = kMaxStages * static_cast<int>(sizeof(SharedBarrier));
constexpr int kChunkBytes = 16;

// The places of the pages first, first + step, and so on. A warp holds 32 entries of the table, and
// reads the next 32 while it uses these.
class PageWalk {
 public:
  QUIRE_DEVICE PageWalk(const LoadArgs& args, int32_t first, int32_t step)
      : args_(args), first_(first), step_(step), following_(Entry(0)) {}

  // Returns the first byte of page i. All lanes call with i = 0, 1, 2, ...
  QUIRE_DEVICE const uint8_t* Page(int32_t i) {
    if (i % kWarpSize == 0) {
      current_ = following_;
      following_ = Entry(i + kWarpSize);
    }
    const int32_t place = __shfl_sync(kWholeWarp, current_, i % kWarpSize);
    return static_cast<const uint8_t*>(args_.data) + int64_t{place} * args_.page_bytes;
  }

 private:
  QUIRE_DEVICE int32_t Entry(int32_t from) const {
    const int64_t page =
        first_ + int64_t{step_} * (from + static_cast<int32_t>(threadIdx.x % kWarpSize));
    return page < args_.num_pages ? args_.table[page] : 0;
  }

  const LoadArgs& args_;
  int32_t first_;
  int32_t step_;
  int32_t current_ = 0;
  int32_t following_;
};

QUIRE_DEVICE int32_t PagesOf(int32_t num_pages, int32_t first, int32_t step) {
  return first < num_pages ? (num_pages - first + step - 1) / step : 0;
}

// Stages that one group of threads fills and empties, and the stages' barriers.
struct Stages {
  uint8_t* bytes;
  SharedBarrier* full;
  int32_t count;
  int32_t piece_bytes;

  QUIRE_DEVICE uint8_t* Of(int32_t use) const { return bytes + use % count * piece_bytes; }
  // Waits until use `use` has landed. Returns its first word to the thread that copied it, and 0 to
  // other threads.
  QUIRE_DEVICE uint32_t Take(int32_t use, bool is_copier = true) const {
    full[use % count].Wait(use / count & 1);
    return is_copier ? *reinterpret_cast<const uint32_t*>(Of(use)) : 0;
  }
};

// A warp copies its pages into its stages. Its first lane starts the copy of a piece as soon as the
// stage's previous piece has landed.
QUIRE_DEVICE uint32_t LoadByBulk(const LoadArgs& args, const Stages& stages, int32_t num_warps) {
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpSize;
  const bool is_first_lane = threadIdx.x % kWarpSize == 0;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * num_warps + warp;
  const int32_t step = static_cast<int32_t>(gridDim.x) * num_warps;
  const int32_t num_pages = PagesOf(args.num_pages, first, step);
  PageWalk walk(args, first, step);
  uint32_t sum = 0;
  int32_t use = 0;
  for (int32_t i = 0; i < num_pages; ++i) {
    const uint8_t* page = walk.Page(i);
    for (int32_t at = 0; at < args.page_bytes; at += args.piece_bytes, ++use) {
      if (is_first_lane) {
        sum += use >= stages.count ? stages.Take(use - stages.count) : 0;
        SharedBarrier& full = stages.full[use % stages.count];
        full.ArriveAndExpect(args.piece_bytes);
        CopyBulk(stages.Of(use), page + at, args.piece_bytes, full);
      }
      __syncwarp();
    }
  }
  for (int32_t last = use < stages.count ? 0 : use - stages.count; last < use && is_first_lane;
       ++last) {
    sum += stages.Take(last);
  }
  return is_first_lane ? sum : 0;
}

QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kLoadThreads, 1) LoadByBulkKernel(const LoadArgs args) {
  QUIRE_SHARED_MEMORY(shared);
  auto* barriers = reinterpret_cast<SharedBarrier*>(shared);
  if (threadIdx.x == 0) {
    for (int32_t stage = 0; stage < args.num_stages; ++stage) {
      barriers[stage].Init(1);
    }
    FenceAsyncProxy();
  }
  __syncthreads();
  const int32_t num_warps = args.num_stages < kLoadWarps ? args.num_stages : kLoadWarps;
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpSize;
  if (warp < num_warps) {
    const int32_t count = args.num_stages / num_warps;
    const Stages stages = {shared + kBarrierBytes + warp * count * args.piece_bytes,
                           barriers + warp * count,
                           count,
                           args.piece_bytes};
    const uint32_t sum = LoadByBulk(args, stages, num_warps);
    if (threadIdx.x % kWarpSize == 0) {
      atomicAdd(args.sum, sum);
    }
  }
}

// All threads copy the CTA's pages together.
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kLoadThreads, 1) LoadByAsync16Kernel(const LoadArgs args) {
  QUIRE_SHARED_MEMORY(shared);
  const Stages stages = {shared + kBarrierBytes,
                         reinterpret_cast<SharedBarrier*>(shared),
                         args.num_stages,
                         args.piece_bytes};
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == 0) {
    for (int32_t stage = 0; stage < args.num_stages; ++stage) {
      stages.full[stage].Init(kLoadThreads);
    }
  }
  __syncthreads();
  const auto first = static_cast<int32_t>(blockIdx.x);
  const auto step = static_cast<int32_t>(gridDim.x);
  const int32_t num_pages = PagesOf(args.num_pages, first, step);
  PageWalk walk(args, first, step);
  uint32_t sum = 0;
  int32_t use = 0;
  for (int32_t i = 0; i < num_pages; ++i) {
    const uint8_t* page = walk.Page(i);
    for (int32_t at = 0; at < args.page_bytes; at += args.piece_bytes, ++use) {
      sum += use >= stages.count ? stages.Take(use - stages.count, thread == 0) : 0;
      for (int32_t byte = thread * kChunkBytes; byte < args.piece_bytes;
           byte += kLoadThreads * kChunkBytes) {
        CopyAsync16(stages.Of(use) + byte, page + at + byte, true);
      }
      stages.full[use % stages.count].ArriveAfterCopies();
    }
  }
  for (int32_t last = use < stages.count ? 0 : use - stages.count; last < use; ++last) {
    sum += stages.Take(last, thread == 0);
  }
  WaitCopies<0>();
  if (thread == 0) {
    atomicAdd(args.sum, sum);
  }
}

QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kLoadThreads, 1) SumFirstWordsKernel(const LoadArgs args) {
  const int64_t pieces_a_page = args.page_bytes / args.piece_bytes;
  const int64_t num_pieces = args.num_pages * pieces_a_page;
  uint32_t sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kLoadThreads + threadIdx.x; i < num_pieces;
       i += int64_t{gridDim.x} * kLoadThreads) {
    const int64_t byte = int64_t{args.table[i / pieces_a_page]} * args.page_bytes +
                         i % pieces_a_page * args.piece_bytes;
    sum += *reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(args.data) + byte);
  }
  atomicAdd(args.sum, sum);
}

}  // namespace

int64_t LoadSharedBytes(const LoadArgs& args) {
  return kBarrierBytes + int64_t{args.num_stages} * args.piece_bytes;
}

int LoadPages(const LoadArgs& args, LoadKind kind, Stream stream) {
  constexpr int32_t kFirstWithBulk = 90;
  int32_t capability = 0;
  if (const int error = QueryComputeCapability(&capability); error != 0) {
    return error;
  }
  if (args.num_stages > kMaxStages || capability < kFirstWithBulk) {
    return kUnsupported;
  }
  return QUIRE_LAUNCH(kind == LoadKind::kBulk ? LoadByBulkKernel : LoadByAsync16Kernel,
                      dim3(static_cast<uint32_t>(args.num_ctas)),
                      dim3(kLoadThreads),
                      static_cast<size_t>(LoadSharedBytes(args)),
                      stream,
                      args);
}

int SumFirstWords(const LoadArgs& args, Stream stream) {
  return QUIRE_LAUNCH(SumFirstWordsKernel,
                      dim3(static_cast<uint32_t>(args.num_ctas)),
                      dim3(kLoadThreads),
                      0,
                      stream,
                      args);
}

}  // namespace quire::gpu
