// Parameters of paged attention and of the pass that prepares it.
//
// One function serves prefill, chunked prefill and decode. The last tokens of a sequence's context
// are its new tokens in this step. Each new token attends to itself and to all tokens before it.
// The result for a token depends on its own sequence alone, bit for bit: every context is cut at
// the multiples of kAttentionChunkTokens, each chunk is reduced in a fixed order, and the chunks'
// results are merged in order.
//
// Names in shapes: num_tokens, the new tokens of all sequences of the step; num_seqs, the
// sequences; num_heads, the query heads; num_kv_heads, a divisor of num_heads. Query head h reads
// KV head h / (num_heads / num_kv_heads).
//
// If the cache's layout has scales, PrepareAttention stores a separate scale for each key and each
// value of a token. The scale is the largest magnitude in that key or value, divided by the largest
// number of the cache's dtype (448 for fp8, 127 for int8). A key or value with a NaN or an infinity
// reads back as NaNs. A key or value whose largest magnitude is below 2^-100 reads back as zeros.
//
// q, k, v and out are activations (KernelBackend::activation_dtype).
//
// KernelBackend::BeginStep may add padding. A padding token has slot -1: its key and value are not
// written, and its q is unspecified afterwards. A padding sequence has length 0: its rows of out
// are not written.
//
// Thread safety: value types; they own nothing.
// Source: PagedAttention, Kwon et al. 2023, section 4.1, eq. 4; online softmax, Milakov and
//         Gimelshein 2018; chunked merge as in FlashAttention-2, Dao 2023, section 3.1; ALiBi,
//         Press et al. 2022; sinks, Xiao et al. 2023, as in gpt-oss; soft cap, Gemma 2, 2024.
#ifndef QUIRE_KERNELS_API_ATTENTION_H_
#define QUIRE_KERNELS_API_ATTENTION_H_

#include <cstdint>

#include "common/base/ids.h"
#include "kernels/api/kv_cache_layout.h"

namespace quire {

// Attention reduces a context in chunks of this many positions. Another value would change bits of
// the results.
inline constexpr int32_t kAttentionChunkTokens = 256;

// PrepareAttention RMS-normalizes q and k per head if norm weights are given. It rotates q and k
// (RoPE in Hugging Face's half-split layout: dims d and d + head_dim / 2 are a pair), and writes k
// and v into the cache. The result for q stays in qkv.
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
  KvCacheView cache;  // cache.layout has num_kv_heads, head_dim and block_size_tokens
  // k_scale and v_scale are used for an fp8 cache whose layout has no scales, as on a GPU:
  // k = stored k * k_scale, v = stored v * v_scale.
  float k_scale = 1.0F;
  float v_scale = 1.0F;
};

struct PagedAttentionParams {
  int32_t num_seqs = 0;
  int32_t num_heads = 0;
  int32_t layer = 0;
  const void* q = nullptr;   // [num_tokens, num_heads * head_dim], rows q_row_stride apart
  int64_t q_row_stride = 0;  // elements from row to row
  void* out = nullptr;       // [num_tokens, num_heads * head_dim], contiguous
  float scale = 1.0F;        // factor of the scores, before softmax
  // > 0: a token attends to itself and to the sliding_window - 1 tokens before it. 0: no limit.
  int32_t sliding_window = 0;
  // > 0: a score s becomes soft_cap * tanh(s / soft_cap), before ALiBi's bias and the mask. 0: no
  // cap.
  float soft_cap = 0.0F;
  // [num_heads], or null. ALiBi adds slope * (key position - query position) to each score.
  const float* alibi_slopes = nullptr;
  // [num_heads], or null. An attention sink is a score without a key: exp(sinks[head]) is added to
  // the sum of the softmax's weights. The scale, the cap and the mask do not apply to it.
  const float* sinks = nullptr;
  // [num_seqs + 1]: index of each sequence's first new token in the step; last element: num_tokens.
  const int32_t* query_start = nullptr;
  const int32_t* seq_lens = nullptr;  // [num_seqs], tokens of the context, new ones included
  // [num_seqs, max_blocks_per_seq], padded with kNullBlockId.
  const BlockId* block_tables = nullptr;
  int32_t max_blocks_per_seq = 0;  // blocks of the longest context
  // [num_seqs], or null. If set, block_tables is not read. REQUIRES: block i of sequence s is
  // mapped into place first_places[s] + i of cache.windows, unless it is the null block. A place is
  // an address range as long as a block (window_memory.h).
  const int64_t* first_places = nullptr;
  KvCacheView cache;
  float k_scale = 1.0F;  // factor of stored keys (PrepareAttentionParams)
  float v_scale = 1.0F;  // factor of stored values
};

// Returns whether the scores have no soft cap and the softmax has no sinks. A kernel without caps
// and sinks must refuse parameters for which this is false.
inline bool HasPlainSoftmax(const PagedAttentionParams& params) {
  return params.soft_cap == 0.0F && params.sinks == nullptr;
}

}  // namespace quire

#endif  // QUIRE_KERNELS_API_ATTENTION_H_
