#include "worker/kv_cache/kv_cache_storage.h"

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<KvCacheStorage>> KvCacheStorage::Create(KernelBackend& backend,
                                                                       const KvCacheLayout& layout,
                                                                       int32_t num_blocks,
                                                                       int64_t num_places,
                                                                       int32_t blocks_per_page) {
  auto size_bytes = CheckedMultiply(layout.block_bytes(), num_blocks);
  if (!size_bytes.has_value() || *size_bytes <= 0) {
    return InvalidArgument(
        "MEMORY",
        absl::StrCat("num_blocks: the size of the pool in bytes is 0 or overflows (got ",
                     num_blocks,
                     " blocks of ",
                     layout.block_bytes(),
                     " bytes)"));
  }
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<WindowMemory> windows;
  KvCacheView view{.num_blocks = num_blocks, .layout = layout};
  if (num_places == 0) {
    QUIRE_ASSIGN_OR_RETURN(memory, backend.Allocate(*size_bytes));
    view.base = memory->data();
  } else {
    QUIRE_ASSIGN_OR_RETURN(
        windows,
        backend.AllocateWindows({.block_bytes = layout.block_bytes() * blocks_per_page,
                                 .num_blocks = DivCeil(num_blocks, blocks_per_page),
                                 .num_places = num_places}));
    view.base = windows->pool();
    view.windows = windows->windows();
  }
  return std::unique_ptr<KvCacheStorage>(
      new KvCacheStorage(std::move(memory), std::move(windows), view));
}

}  // namespace quire
