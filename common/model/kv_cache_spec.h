// KvCacheSpec is the geometry of one rank's KV cache: the shape and type of a block.
//
// Thread safety: a value type.
#ifndef QUIRE_COMMON_MODEL_KV_CACHE_SPEC_H_
#define QUIRE_COMMON_MODEL_KV_CACHE_SPEC_H_

#include <cstdint>

#include "common/model/dtype.h"

namespace quire {

struct KvCacheSpec {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;  // KV heads of this rank
  int32_t head_dim = 0;
  int32_t block_size_tokens = 16;
  DType dtype = DType::kF32;

  // Bytes of one block's elements: K and V of block_size_tokens tokens, in all layers, for this
  // rank's heads. A backend's layout can add scale factors and padding (KvCacheLayout).
  int64_t block_bytes() const {
    return int64_t{2} * num_layers * num_kv_heads * head_dim * block_size_tokens * SizeOf(dtype);
  }

  friend bool operator==(const KvCacheSpec&, const KvCacheSpec&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_KV_CACHE_SPEC_H_
