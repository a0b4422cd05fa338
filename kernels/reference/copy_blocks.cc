#include <cstring>

#include "kernels/reference/reference_ops.h"

namespace quire::reference {

void CopyBlocks(const CopyBlocksParams& p) {
  auto* base = static_cast<unsigned char*>(p.cache.base);
  int64_t block_bytes = p.cache.layout.block_bytes();
  for (size_t i = 0; i < p.src.size(); ++i) {
    std::memcpy(base + p.dst[i] * block_bytes,
                base + p.src[i] * block_bytes,
                static_cast<size_t>(block_bytes));
  }
}

}  // namespace quire::reference
