// KvCacheLayout alone defines where a key or a value lies in the KV pool.
//
// The pool is block-major: [block][layer][kv_head][K or V][block_size_tokens x head_dim]. One block
// holds K and V of block_size_tokens tokens, for all layers and this rank's heads. A block is
// contiguous, so that copying or swapping it is one copy. The order inside the last bracket is a
// backend's choice.
// On a CPU (slot: index of a token in its block):
//   values are token-major,    V[slot][dim]: a weighted sum of rows runs over contiguous dims;
//   keys   are dim-major,      K[dim][slot]: for each dim, one vector operation multiplies a number
//                              of the query by the numbers of 16 keys.
// Kernels use only the base pointer and the strides.
//
// With 8-bit keys and values, scales follow the values of each (block, layer, kv_head): for each
// slot one fp32 scale for its key and one for its value. This holds for host backends; a GPU has
// one scale for the keys and one for the values of a layer (PrepareAttentionParams::k_scale).
//
//   K | V | key_scale[block_size_tokens] | value_scale[block_size_tokens]
//
// An element stands for its stored number times the scale of its slot. A scale depends on its own
// token's key or value alone, so that a token's bytes do not depend on its block or its step.
// Scales lie in the block, so that a copied block is complete. For each token, head and layer,
// scales cost 8 bytes on top of 2 * head_dim bytes for key and value: 6 % at head_dim 64.
//
// Units:         strides and offsets in elements of dtype, 64 bits wide (block id * block elements
//                overflows 32 bits).
// Thread safety: a value type.
// Source:        PagedAttention, Kwon et al. 2023, section 5.1 (block layout). The keys of a block
//                in the paper's kernels are [head_dim / x][slot][x]; dim-major keys have x = 1.
#ifndef QUIRE_KERNELS_API_KV_CACHE_LAYOUT_H_
#define QUIRE_KERNELS_API_KV_CACHE_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "common/base/ids.h"
#include "common/model/kv_cache_spec.h"

namespace quire {

struct KvCacheLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size_tokens = 0;
  DType dtype = DType::kF32;

  int64_t block_stride = 0;
  int64_t layer_stride = 0;
  int64_t head_stride = 0;
  int64_t value_offset = 0;  // from the keys of a head to the head's values
  int64_t key_slot_stride = 0;
  int64_t key_dim_stride = 0;
  int64_t value_slot_stride = 0;  // the dims of one value are always contiguous
  // Distance from the keys of a head to the scales of these keys, in bytes. An element has one byte
  // here, because only 8-bit dtypes have scales. 0: no scales.
  int64_t key_scale_offset = 0;
  int64_t value_scale_offset = 0;  // from the keys of a head to the scales of its values

  // First key element of (block, layer, kv_head).
  constexpr int64_t KeyOffset(BlockId block, int32_t layer, int32_t kv_head) const {
    return block * block_stride + layer * layer_stride + kv_head * head_stride;
  }
  // First value element of (block, layer, kv_head).
  constexpr int64_t ValueOffset(BlockId block, int32_t layer, int32_t kv_head) const {
    return KeyOffset(block, layer, kv_head) + value_offset;
  }
  constexpr bool has_scales() const { return key_scale_offset != 0; }
  constexpr int64_t block_bytes() const { return block_stride * SizeOf(dtype); }
};

// Keys dim-major, values token-major: the order of the CPU backend.
inline KvCacheLayout DimMajorKeys(const KvCacheSpec& spec) {
  KvCacheLayout layout;
  layout.num_layers = spec.num_layers;
  layout.num_kv_heads = spec.num_kv_heads;
  layout.head_dim = spec.head_dim;
  layout.block_size_tokens = spec.block_size_tokens;
  layout.dtype = spec.dtype;
  layout.value_offset = int64_t{spec.head_dim} * spec.block_size_tokens;
  layout.head_stride = 2 * layout.value_offset;
  layout.layer_stride = layout.head_stride * spec.num_kv_heads;
  layout.block_stride = layout.layer_stride * spec.num_layers;
  layout.key_slot_stride = 1;
  layout.key_dim_stride = spec.block_size_tokens;
  layout.value_slot_stride = spec.head_dim;
  return layout;
}

// Keys and values token-major: the order of the GPU backend and of the reference backend.
inline KvCacheLayout TokenMajorKeys(const KvCacheSpec& spec) {
  KvCacheLayout layout = DimMajorKeys(spec);
  layout.key_slot_stride = spec.head_dim;
  layout.key_dim_stride = 1;
  return layout;
}

constexpr bool IsEightBits(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kInt8; }

// Adds scales at the end of each head's part of a block if the dtype has 8 bits. All host backends
// use such a layout.
inline KvCacheLayout WithScales(KvCacheLayout layout) {
  if (!IsEightBits(layout.dtype)) {
    return layout;
  }
  constexpr int64_t kScaleBytes = sizeof(float);
  const int64_t scales_bytes = kScaleBytes * layout.block_size_tokens;
  // Rounds up to a multiple of 4. If head_dim and block size are both odd, the values end at an
  // offset that is not a multiple of 4.
  layout.key_scale_offset = (layout.head_stride + kScaleBytes - 1) / kScaleBytes * kScaleBytes;
  layout.value_scale_offset = layout.key_scale_offset + scales_bytes;
  layout.head_stride = layout.value_scale_offset + scales_bytes;
  layout.layer_stride = layout.head_stride * layout.num_kv_heads;
  layout.block_stride = layout.layer_stride * layout.num_layers;
  return layout;
}

// Pads each block to a multiple of page_bytes.
inline KvCacheLayout PadBlocks(KvCacheLayout layout, int64_t page_bytes) {
  const int64_t page_elements = std::max<int64_t>(1, page_bytes / SizeOf(layout.dtype));
  layout.block_stride = (layout.block_stride + page_elements - 1) / page_elements * page_elements;
  return layout;
}

// The pool as kernels see it. Owns nothing.
struct KvCacheView {
  void* base = nullptr;  // [num_blocks] blocks of layout.block_bytes(), 64-byte aligned
  int64_t num_blocks = 0;
  KvCacheLayout layout;
  // Start of the addresses into which blocks are mapped for attention (window_memory.h); null:
  // attention reads blocks at `base`.
  const void* windows = nullptr;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_KV_CACHE_LAYOUT_H_
