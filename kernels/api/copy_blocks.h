// Parameters of copying whole blocks within the pool, for copy-on-write.
//
// Thread safety: a value type; it owns nothing.
// Source:        PagedAttention, Kwon et al. 2023, section 4.4.
#ifndef QUIRE_KERNELS_API_COPY_BLOCKS_H_
#define QUIRE_KERNELS_API_COPY_BLOCKS_H_

#include <span>

#include "common/base/ids.h"
#include "kernels/api/kv_cache_layout.h"

namespace quire {

// Block src[i] is copied to block dst[i]. REQUIRES: no block occurs twice in dst, or in both dst
// and src.
struct CopyBlocksParams {
  KvCacheView cache;
  std::span<const BlockId> src;
  std::span<const BlockId> dst;  // same length as src
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_COPY_BLOCKS_H_
