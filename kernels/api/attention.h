// Parameters of paged attention and of the pass that prepares it.
//
// One function serves prefill, chunked prefill and decode: a sequence brings query_len new tokens
// that attend to all seq_len tokens of its context, causally. The result for a query depends on its
// own sequence alone, bit for bit: the context is cut into chunks of kAttentionChunkTokens absolute
// positions, each chunk is reduced in a fixed order, and the chunks are merged in order.
//
// Shapes use these names: num_tokens tokens of the whole step, num_seqs sequences, num_heads query
// heads, num_kv_heads divides num_heads; query head h reads KV head h / (num_heads / num_kv_heads).
//
// If the cache's layout has scales, PrepareAttention stores each key and each value of a token with
// a separate scale: the largest magnitude of its numbers divided by the type's largest number (448
// for fp8, 127 for int8). A vector that is not finite reads as NaN, a vector below 2^-100 as zero.
//
// q, k, v and out are activations (KernelBackend::activation_dtype).
//
// BeginStep may add padding: a token of slot -1, whose key and value are not written and whose q is
// unspecified afterwards; a sequence of length 0, whose rows of out are not written.
//
// Thread safety: value types; they own nothing.
// Source: PagedAttention, Kwon et al. 2023, section 4.1, eq. 4; online softmax, Milakov and
//         Gimelshein 2018; chunked merge as in FlashAttention-2, Dao 2023, section 3.1; ALiBi,
//         Press et al. 2022.
#ifndef QUIRE_KERNELS_API_ATTENTION_H_
#define QUIRE_KERNELS_API_ATTENTION_H_

#include <cstdint>

#include "common/base/ids.h"
#include "kernels/api/kv_cache_layout.h"

namespace quire {

// Part of the numerical contract: changing it changes bits.
inline constexpr int32_t kAttentionChunkTokens = 256;

// RMS-normalises q and k per head if weights are given, rotates them (RoPE, the half-split
// layout of Hugging Face: dims d and d + head_dim / 2 are a pair), and writes k and v into the
// cache; q is changed in place.
struct PrepareAttentionParams {
  int32_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t layer = 0;
  void* qkv = nullptr;            // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]
  const float* q_norm = nullptr;  // [head_dim], or null: no norm
  const float* k_norm = nullptr;  // [head_dim], or null: no norm
  float norm_eps = 0.0F;
  const float* rope_cos = nullptr;     // [max_positions, head_dim / 2], or null: no rotation
  const float* rope_sin = nullptr;     // [max_positions, head_dim / 2]
  const int32_t* positions = nullptr;  // [num_tokens]
  // [num_tokens], block_id * block_size_tokens + offset; -1 for padding.
  const int64_t* slot_mapping = nullptr;
  KvCacheView cache;  // num_kv_heads, head_dim and block size come from its layout
  // For an fp8 cache whose layout has no scales (a GPU's): stored number * scale = element.
  float k_scale = 1.0F;
  float v_scale = 1.0F;
};

struct PagedAttentionParams {
  int32_t num_seqs = 0;
  int32_t num_heads = 0;
  int32_t layer = 0;
  const void* q = nullptr;     // [num_tokens, num_heads * head_dim], rows q_row_stride apart
  int64_t q_row_stride = 0;    // elements
  void* out = nullptr;         // [num_tokens, num_heads * head_dim], contiguous
  float scale = 1.0F;          // factor of the scores, before softmax
  int32_t sliding_window = 0;  // > 0: a query reads itself and sliding_window - 1 tokens before
  // [num_heads], or null. ALiBi adds slope * (key position - query position) to each score.
  const float* alibi_slopes = nullptr;
  const int32_t* query_start = nullptr;  // [num_seqs + 1], first token of each sequence
  const int32_t* seq_lens = nullptr;     // [num_seqs], context with this step's tokens
  // [num_seqs, max_blocks_per_seq], padded with kNullBlockId.
  const BlockId* block_tables = nullptr;
  int32_t max_blocks_per_seq = 0;  // blocks of the longest context
  // [num_seqs], or null. If set, it replaces block_tables: cache.windows shows the blocks of each
  // sequence one after another, beginning at the sequence's place given here.
  const int64_t* first_places = nullptr;
  KvCacheView cache;
  float k_scale = 1.0F;  // as in PrepareAttentionParams
  float v_scale = 1.0F;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_ATTENTION_H_
