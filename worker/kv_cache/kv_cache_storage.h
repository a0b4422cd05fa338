// KvCacheStorage owns the memory of the KV pool of this rank: num_blocks blocks, one after another.
// It knows nothing of sequences; which block belongs to whom is the scheduler's knowledge.
//
// The pool is mapped and becomes real memory page by page, when a block is first written. A page
// that was never written reads as zero, so the null block, which nobody writes, is zero.
//
// Thread safety: one caller at a time (the executor thread).
// Invariants:    view().base is 64-byte aligned (it is page aligned).
// Source:        PagedAttention, Kwon et al. 2023, section 4.2.
#ifndef QUIRE_WORKER_KV_CACHE_KV_CACHE_STORAGE_H_
#define QUIRE_WORKER_KV_CACHE_KV_CACHE_STORAGE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/api/kv_cache_layout.h"

namespace quire {

class KvCacheStorage {
 public:
  // Errors: kInvalidArgument for a pool without blocks or of a size that overflows;
  // kResourceExhausted, reason MEMORY, when the address space is refused.
  static absl::StatusOr<std::unique_ptr<KvCacheStorage>> Create(const KvCacheLayout& layout,
                                                                int32_t num_blocks);

  ~KvCacheStorage();
  KvCacheStorage(const KvCacheStorage&) = delete;
  KvCacheStorage& operator=(const KvCacheStorage&) = delete;

  const KvCacheView& view() const { return view_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Gives all memory back; every byte reads as zero again. Nothing of one scheduler's sequences is
  // left for the next.
  absl::Status Clear();

 private:
  KvCacheStorage(const KvCacheView& view, int64_t size_bytes)
      : view_(view), size_bytes_(size_bytes) {}

  KvCacheView view_;
  int64_t size_bytes_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_KV_CACHE_KV_CACHE_STORAGE_H_
