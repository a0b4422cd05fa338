#include "kernels/cpu/copy_blocks.h"

#include <cstring>

namespace quire {

void CopyBlocks(const CopyBlocksParams& params, ThreadTeam& team) {
  auto* base = static_cast<unsigned char*>(params.cache.base);
  const int64_t block_bytes = params.cache.layout.block_bytes();
  team.ParallelFor(static_cast<int64_t>(params.src.size()), [&](int64_t task, int /*thread*/) {
    const auto pair = static_cast<size_t>(task);
    std::memcpy(base + params.dst[pair] * block_bytes,
                base + params.src[pair] * block_bytes,
                static_cast<size_t>(block_bytes));
  });
}

}  // namespace quire
