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
// On a GPU both are swizzled rows (KvChunkOffset). Kernels find keys and values by the base
// pointer, the strides and the row order alone. A kernel refuses a row order that it cannot read,
// because it would read wrong numbers.
//
// With 8-bit keys and values, scales follow the values of each (block, layer, kv_head): for each
// slot one fp32 scale for its key and one for its value. Only host backends store such scales; a
// GPU has one scale for the keys and one for the values of a layer
// (PrepareAttentionParams::k_scale).
//
//   K | V | key_scale[block_size_tokens] | value_scale[block_size_tokens]
//
// An element stands for its stored number times the scale of its slot. A scale depends on one
// token's key or value alone, so a token has the same bytes in any block and step. Scales lie in
// the block, so that a copied block is complete. For each token, head and layer, scales cost 8
// bytes on top of 2 * head_dim bytes for key and value: 6 % at head_dim 64.
//
// Units:         strides and offsets in elements of dtype, 64 bits wide (block id * block elements
//                overflows 32 bits).
// Thread safety: a value type.
// Source:        PagedAttention, Kwon et al. 2023, section 5.1 (block layout). The keys of a block
//                in the paper's kernels are [head_dim / x][slot][x]; dim-major keys have x = 1.
#ifndef QUIRE_KERNELS_API_KV_CACHE_LAYOUT_H_
#define QUIRE_KERNELS_API_KV_CACHE_LAYOUT_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/base/ids.h"
#include "common/model/kv_cache_spec.h"

namespace quire {

// The order of one head's keys, and of its values, in a block.
enum class KvRowOrder : uint8_t {
  kStrided,   // element (slot, dim) lies at slot * slot_stride + dim * dim_stride
  kSwizzled,  // KvChunkOffset gives the offsets; the strides of slots and dims are 0 and unused
};

struct KvCacheLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size_tokens = 0;
  DType dtype = DType::kF32;
  KvRowOrder row_order = KvRowOrder::kStrided;

  int64_t block_stride = 0;
  int64_t layer_stride = 0;
  int64_t head_stride = 0;
  int64_t value_offset = 0;  // from the keys of a head to the head's values
  int64_t key_slot_stride = 0;
  int64_t key_dim_stride = 0;
  int64_t value_slot_stride = 0;  // the dims of one value are always contiguous
  // From the keys of a head to the scales of these keys. 0: no scales. Only 8-bit dtypes have
  // scales, so the offset is in bytes.
  int64_t key_scale_offset = 0;
  int64_t value_scale_offset = 0;  // from the keys of a head to the scales of its values

  // Offset of the first key element of (block, layer, kv_head).
  constexpr int64_t KeyOffset(BlockId block, int32_t layer, int32_t kv_head) const {
    return block * block_stride + layer * layer_stride + kv_head * head_stride;
  }
  // Offset of the first value element of (block, layer, kv_head).
  constexpr int64_t ValueOffset(BlockId block, int32_t layer, int32_t kv_head) const {
    return KeyOffset(block, layer, kv_head) + value_offset;
  }
  constexpr bool has_scales() const { return key_scale_offset != 0; }
  constexpr int64_t block_bytes() const { return block_stride * SizeOf(dtype); }

  friend bool operator==(const KvCacheLayout&, const KvCacheLayout&) = default;
};

// ---- Swizzled rows ------------------------------------------------------------------------------
//
// A row is the key or the value of one slot. It is cut into chunks of 16 bytes. Adjacent chunks
// form pieces: as many pieces of 8 chunks as fit, then at most one piece each of 4, 2 and 1 chunks.
// The block holds piece 0 of all slots, slot by slot, then piece 1 of all slots, and so on. So for
// a block and head, one copy can load one piece of all keys (or of all values), or all K and V.
//
// In a piece of n chunks, chunk c of a slot is stored as chunk c ^ (slot % 8 * n / 8). Then chunk c
// of 8 adjacent slots lies in 8 different groups of 4 shared-memory banks. A piece that is copied
// unchanged to shared memory is an operand of wgmma (the 128-, 64- and 32-byte swizzles of PTX).

// Range of the chunks that form one piece of a row.
struct KvPiece {
  int32_t first_chunk = 0;
  int32_t num_chunks = 0;  // 8, 4, 2 or 1
};
constexpr KvPiece KvPieceOf(int32_t row_chunks, int32_t chunk) {
  int32_t first = row_chunks & ~7;
  if (chunk < first) {
    return {chunk & ~7, 8};
  }
  for (int32_t size = 4; size > 1; size /= 2) {
    if ((row_chunks & size) == 0) {
      continue;
    }
    if (chunk < first + size) {
      return {first, size};
    }
    first += size;
  }
  return {first, 1};
}

// Returns the offset of a slot's chunk in bytes, counted from the first key (for a chunk of a key)
// or the first value (for a chunk of a value) of the block and head. REQUIRES: `piece` holds the
// chunk; the block size is a multiple of 8.
constexpr int32_t KvChunkOffset(KvPiece piece,
                                int32_t block_size_tokens,
                                int32_t slot,
                                int32_t chunk) {
  const int32_t stored = (chunk - piece.first_chunk) ^ ((slot & 7) * piece.num_chunks >> 3);
  return (piece.first_chunk * block_size_tokens + slot * piece.num_chunks + stored) * 16;
}
// `row_chunks` is the number of 16-byte chunks in a row.
constexpr int32_t KvChunkOffset(int32_t row_chunks,
                                int32_t block_size_tokens,
                                int32_t slot,
                                int32_t chunk) {
  return KvChunkOffset(KvPieceOf(row_chunks, chunk), block_size_tokens, slot, chunk);
}

inline constexpr int32_t kMinSwizzledBlockTokens = 8;

// Returns whether a GPU's kernels can read and write a cache of this layout.
constexpr bool HasSwizzledRows(const KvCacheLayout& layout) {
  return layout.row_order == KvRowOrder::kSwizzled &&
         layout.block_size_tokens >= kMinSwizzledBlockTokens &&
         std::has_single_bit(static_cast<uint32_t>(layout.block_size_tokens));
}

// ---- Layouts ------------------------------------------------------------------------------------

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

// Keys and values token-major: the order of the reference backend.
inline KvCacheLayout TokenMajorKeys(const KvCacheSpec& spec) {
  KvCacheLayout layout = DimMajorKeys(spec);
  layout.key_slot_stride = spec.head_dim;
  layout.key_dim_stride = 1;
  return layout;
}

// Swizzled rows: the order of the GPU backend. REQUIRES: head_dim elements are a multiple of 16
// bytes, and the block size is a multiple of 8.
inline KvCacheLayout SwizzledRows(const KvCacheSpec& spec) {
  KvCacheLayout layout = DimMajorKeys(spec);
  layout.row_order = KvRowOrder::kSwizzled;
  layout.key_slot_stride = 0;
  layout.key_dim_stride = 0;
  layout.value_slot_stride = 0;
  return layout;
}

constexpr bool IsEightBits(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kInt8; }

// Adds scales at the end of each head's part of a block if the dtype has 8 bits.
inline KvCacheLayout WithScales(KvCacheLayout layout) {
  if (!IsEightBits(layout.dtype)) {
    return layout;
  }
  constexpr int64_t kScaleBytes = sizeof(float);
  const int64_t scales_bytes = kScaleBytes * layout.block_size_tokens;
  // Rounds up, because the values do not end at a multiple of 4 if head_dim and block size are both
  // odd.
  layout.key_scale_offset = (layout.head_stride + kScaleBytes - 1) / kScaleBytes * kScaleBytes;
  layout.value_scale_offset = layout.key_scale_offset + scales_bytes;
  layout.head_stride = layout.value_scale_offset + scales_bytes;
  layout.layer_stride = layout.head_stride * layout.num_kv_heads;
  layout.block_stride = layout.layer_stride * layout.num_layers;
  return layout;
}

inline KvCacheLayout PadBlocks(KvCacheLayout layout, int64_t page_bytes) {
  const int64_t page_elements = std::max<int64_t>(1, page_bytes / SizeOf(layout.dtype));
  layout.block_stride = (layout.block_stride + page_elements - 1) / page_elements * page_elements;
  return layout;
}

// The KV pool as kernels see it. Owns nothing.
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
