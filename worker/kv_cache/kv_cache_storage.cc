#include "worker/kv_cache/kv_cache_storage.h"

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<KvCacheStorage>> KvCacheStorage::Create(KernelBackend& backend,
                                                                       const KvCacheLayout& layout,
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
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, backend.Allocate(*size_bytes));
  const KvCacheView view{.base = memory->data(), .num_blocks = num_blocks, .layout = layout};
  return std::unique_ptr<KvCacheStorage>(new KvCacheStorage(std::move(memory), view));
}

}  // namespace quire
