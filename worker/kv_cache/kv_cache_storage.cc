#include "worker/kv_cache/kv_cache_storage.h"

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/string_view.h"

#include <sys/mman.h>

namespace quire {

absl::StatusOr<std::unique_ptr<KvCacheStorage>> KvCacheStorage::Create(const KvCacheLayout& layout,
                                                                       int32_t num_blocks) {
  auto size_bytes = CheckedMultiply(layout.block_bytes(), num_blocks);
  if (!size_bytes.has_value() || *size_bytes <= 0) {
    return InvalidArgument("MEMORY",
                           absl::StrCat("num_blocks: no such pool (got ",
                                        num_blocks,
                                        " blocks of ",
                                        layout.block_bytes(),
                                        " bytes)"));
  }
  // MAP_NORESERVE: the pool may be larger than what is free now; it is limited by the operator's
  // number, not by the kernel's guess.
  void* base = mmap(nullptr,
                    static_cast<size_t>(*size_bytes),
                    PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1,
                    0);
  if (base == MAP_FAILED) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 absl::StrCat("num_blocks: cannot map the pool (got ", *size_bytes, " bytes)"));
  }
  // Fewer page faults while the pool fills; refusal costs speed only. The pool also stays out of
  // core dumps: it holds what users wrote.
  madvise(base, static_cast<size_t>(*size_bytes), MADV_HUGEPAGE);
  madvise(base, static_cast<size_t>(*size_bytes), MADV_DONTDUMP);
  KvCacheView view{.base = base, .num_blocks = num_blocks, .layout = layout};
  return std::unique_ptr<KvCacheStorage>(new KvCacheStorage(view, *size_bytes));
}

KvCacheStorage::~KvCacheStorage() { munmap(view_.base, static_cast<size_t>(size_bytes_)); }

absl::Status KvCacheStorage::Clear() {
  if (madvise(view_.base, static_cast<size_t>(size_bytes_), MADV_DONTNEED) != 0) {
    return Error(absl::StatusCode::kInternal, "MEMORY", "num_blocks: cannot clear the pool");
  }
  return absl::OkStatus();
}

}  // namespace quire
