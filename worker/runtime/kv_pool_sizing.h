// KvPoolSizing computes how many blocks a worker's KV pool and host pool can hold. Inputs are this
// rank's share of the model, the backend's layout of a block, and the memory that the worker may
// use. KvPoolSizing allocates nothing.
//
// Thread safety: immutable after construction; any thread.
// Units:         memory in bytes of this rank.
#ifndef QUIRE_WORKER_RUNTIME_KV_POOL_SIZING_H_
#define QUIRE_WORKER_RUNTIME_KV_POOL_SIZING_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/dtype.h"
#include "common/model/kv_cache_spec.h"
#include "common/step/kv_memory.h"
#include "common/step/step_limits.h"
#include "kernels/api/kernel_backend.h"
#include "kernels/api/kv_cache_layout.h"
#include "worker/model/model.h"

namespace quire {

// Upper bounds on the sizes of the KV pool and the host pool, and how attention reads the KV pool.
struct KvCacheBudget {
  int64_t bytes = 0;
  int64_t swap_space_bytes = 0;
  // Number of blocks; if > 0, replaces `bytes` and must fit in max_bytes.
  int32_t num_blocks_override = 0;
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  KvBackend backend = KvBackend::kPaged;
};

// Returns the number of blocks that hold max_model_len tokens.
int32_t NumBlocksAtMaxModelLen(const StepLimits& limits);

class KvPoolSizing {
 public:
  // Model and backend must outlive the object.
  KvPoolSizing(const Model& model, const KernelBackend& backend, const KvCacheBudget& budget);

  // Returns the cache geometry of this rank. Errors: kInvalidArgument, reason STEP_LIMITS, if the
  // block size is no power of two in [1, kMaxBlockSizeTokens], or the backend cannot store keys and
  // values as `dtype`, or needs larger blocks.
  absl::StatusOr<KvCacheSpec> SpecFor(int32_t block_size_tokens, DType dtype) const;

  // Returns the type of the model's weights if the backend can store keys and values in that type,
  // else the type of the backend's activations.
  DType DefaultKvCacheDtype() const;

  // Returns how many KV blocks share a page of virtual memory in windows (kv_windows.h), a power of
  // two. Returns 1 without windows, or if pages are too small to share.
  int32_t BlocksPerPage(const KvCacheSpec& spec) const;
  // Returns the backend's layout of a block. If attention reads windows (address ranges into which
  // blocks are mapped, kv_windows.h), each block is padded to whole pages, or to an equal part of a
  // page.
  KvCacheLayout LayoutFor(const KvCacheSpec& spec) const;
  int64_t BlockBytes(const KvCacheSpec& spec) const { return LayoutFor(spec).block_bytes(); }
  // Returns how this worker keeps blocks of this geometry: paged or in windows, and the sizes of
  // pages and padding. Leaves KvMemory::num_places at 0.
  KvMemory MemoryOf(const KvCacheSpec& spec) const;

  // Returns the number of blocks that the budget allows, the null block included, at most
  // kMaxBlocksLimit; 0 if not even one fits. A budget in bytes is rounded down to whole pages.
  int32_t MaxBlocks(const KvCacheSpec& spec) const;
  // Returns the number of blocks that the swap space holds, at most kMaxBlocksLimit.
  int32_t MaxHostBlocks(const KvCacheSpec& spec) const;
  // Checks that num_blocks_override blocks fit in max_bytes. Errors: kResourceExhausted, reason
  // MEMORY.
  absl::Status CheckOverride(const KvCacheSpec& spec) const;
  // Checks that the pools of an epoch have at most MaxBlocks and MaxHostBlocks blocks. Errors:
  // kResourceExhausted, reason MEMORY.
  absl::Status CheckBlocks(const StepLimits& limits, const KvCacheSpec& spec) const;

  // Returns true if attention reads each sequence through a window: a range of virtual addresses
  // into which the sequence's blocks are mapped (kv_windows.h).
  bool has_windows() const { return budget_.backend == KvBackend::kVmm; }
  // Returns the number of places in all windows of an epoch; 0 without windows. Errors:
  // kResourceExhausted, reason MEMORY, if the number exceeds kMaxPlaces.
  absl::StatusOr<int64_t> NumPlaces(const StepLimits& limits, const KvCacheSpec& spec) const;

  // Returns the bytes that an epoch's KV pool and host pool take together, at most the bytes of the
  // budget. Returns 0 if SpecFor refuses the block size or the type.
  int64_t PoolBytes(const StepLimits& limits, DType kv_cache_dtype) const;

 private:
  const Model& model_;
  const KernelBackend& backend_;
  const KvCacheBudget budget_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_KV_POOL_SIZING_H_
