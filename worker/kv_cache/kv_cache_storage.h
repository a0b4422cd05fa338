// KvCacheStorage owns the memory of this rank's KV pool: num_blocks consecutive blocks. On request
// the storage also owns windows: address ranges in which the same blocks are mapped a second time
// (kv_windows.h). A window consists of places, address ranges as long as a block. The storage knows
// no sequences: the scheduler decides which block belongs to which sequence. The null block is
// never written and stays zero.
//
// Thread safety: one caller at a time (the executor thread).
// Invariants:    view().base is 64-byte aligned.
// Source:        PagedAttention, Kwon et al. 2023, section 4.2.
#ifndef QUIRE_WORKER_KV_CACHE_KV_CACHE_STORAGE_H_
#define QUIRE_WORKER_KV_CACHE_KV_CACHE_STORAGE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"

namespace quire {

class KvCacheStorage {
 public:
  // num_places: places of all windows, each as long as blocks_per_page blocks; 0: no windows.
  // With windows, the pool is rounded up to whole pages. REQUIRES: if num_places > 0, the size of
  // blocks_per_page blocks is a multiple of KernelBackend::window_page_bytes. Errors:
  // kInvalidArgument if the pool has no blocks or its size overflows; kResourceExhausted, reason
  // MEMORY, if the backend lacks the memory.
  static absl::StatusOr<std::unique_ptr<KvCacheStorage>> Create(KernelBackend& backend,
                                                                const KvCacheLayout& layout,
                                                                int32_t num_blocks,
                                                                int64_t num_places = 0,
                                                                int32_t blocks_per_page = 1);

  const KvCacheView& view() const { return view_; }
  int64_t size_bytes() const { return view_.num_blocks * view_.layout.block_bytes(); }
  // Returns null if the storage was created with num_places 0.
  WindowMemory* windows() { return windows_.get(); }
  int64_t num_places() const { return windows_ == nullptr ? 0 : windows_->shape().num_places; }

  // Zeroes every byte, so that no data of one scheduler's sequences is left for the next scheduler.
  absl::Status Clear() { return windows_ == nullptr ? memory_->Clear() : windows_->Clear(); }

 private:
  KvCacheStorage(std::unique_ptr<DeviceMemory> memory,
                 std::unique_ptr<WindowMemory> windows,
                 const KvCacheView& view)
      : memory_(std::move(memory)), windows_(std::move(windows)), view_(view) {}

  std::unique_ptr<DeviceMemory> memory_;   // the pool; null if windows_ has it
  std::unique_ptr<WindowMemory> windows_;  // pool and windows, or null
  KvCacheView view_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_KV_CACHE_STORAGE_H_
