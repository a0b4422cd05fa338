// The operations of the GPU backend as plain functions: a struct of device pointers and a stream
// in, an error number out. They enqueue and return; nothing is allocated, nothing waits, nothing on
// the device is read by the host, so that all of them can be captured in a graph.
//
// One source, two builds. nvcc compiles it for GPUs; g++ compiles it with kernels/cuda/emulator,
// where device pointers are host pointers and a launch runs before the call returns.
//
// Names:         T is the activations' type, bf16 or f16. Activations that are added up over layers
//                (the residual), norm weights, biases, RoPE tables and logits are fp32.
// Shapes:        rows are contiguous unless a stride is given, and 16-byte aligned; head_dim is one
// of
//                64, 80, 96, 112, 128, 256; widths are multiples of 8.
// Padding:       a token with slot -1 is not written to the cache; a sequence of length 0 is not
//                attended to. Such rows may hold anything and spoil no other row.
// Determinism:   a row's result depends on that row and its sequence alone, bit for bit, whatever
// else
//                is in the batch, however many CTAs run.
// Errors:        0, or the cudaError_t of the launch. kUnsupported for a type or head_dim that has
// no
//                kernel.
// Thread safety: one caller at a time for one stream.
#ifndef QUIRE_KERNELS_CUDA_GPU_OPS_H_
#define QUIRE_KERNELS_CUDA_GPU_OPS_H_

#include <cstdint>

#include "common/base/ids.h"
#include "common/model/dtype.h"
#include "kernels/api/kv_cache_layout.h"

namespace quire::gpu {

// cudaStream_t; null in the emulator, which has no streams.
using Stream = void*;

inline constexpr int kUnsupported = -1;

// out[t] = table[token_ids[t]] + position_table[positions[t] + position_offset], summed in fp32.
struct EmbedArgs {
  int32_t num_tokens = 0;
  int32_t width = 0;
  const TokenId* token_ids = nullptr;    // [num_tokens], each < the table's rows
  const void* table = nullptr;           // [rows, width]
  DType table_dtype = DType::kBF16;      // f32, bf16 or f16
  const void* position_table = nullptr;  // [rows, width], or null
  DType position_dtype = DType::kBF16;   // f32, bf16 or f16
  const int32_t* positions = nullptr;    // [num_tokens]; read when position_table is given
  int32_t position_offset = 0;
  void* out = nullptr;            // [num_tokens, width]
  DType out_dtype = DType::kF32;  // f32 or T
};
int Embed(const EmbedArgs& args, Stream stream);

enum class NormFunction : uint8_t { kRmsNorm, kLayerNorm };

// residual += delta (where given); out = norm(residual) * weight + bias. One CTA a row, whatever
// num_tokens is: the sum over a row is always taken in the same order.
struct NormArgs {
  NormFunction function = NormFunction::kRmsNorm;
  int32_t num_tokens = 0;
  int32_t width = 0;
  float* residual = nullptr;      // [num_tokens, width], updated when delta is given
  const void* delta = nullptr;    // [num_tokens, width] of T, or null
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width], kLayerNorm only; null: none
  float eps = 1e-5F;
  DType dtype = DType::kBF16;  // T
  void* out = nullptr;         // [num_tokens, width] of T
  float* out_f32 = nullptr;  // [num_tokens, width], the same before rounding to T; null: not wanted
};
int Norm(const NormArgs& args, Stream stream);

enum class ActivationFunction : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

// gated: out[i] = act(in[i]) * in[i + width], rows of 2 * width. Else out[i] = act(in[i]), rows of
// width.
struct ActivateArgs {
  ActivationFunction function = ActivationFunction::kSilu;
  bool gated = true;
  int32_t num_tokens = 0;
  int32_t width = 0;
  DType dtype = DType::kBF16;
  const void* in = nullptr;
  void* out = nullptr;  // [num_tokens, width]
};
int Activate(const ActivateArgs& args, Stream stream);

// RMS-normalises q and k per head where weights are given, rotates them (dims d and d + head_dim /
// 2 are a pair), writes q back in place and k and v into the cache, in the cache's type.
struct PrepareAttentionArgs {
  int32_t num_tokens = 0;
  int32_t num_heads = 0;
  int32_t layer = 0;
  DType dtype = DType::kBF16;
  void* qkv = nullptr;            // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] of T
  const float* q_norm = nullptr;  // [head_dim], or null
  const float* k_norm = nullptr;  // [head_dim], or null
  float norm_eps = 0.0F;
  const float* rope_cos = nullptr;  // [max_positions, head_dim / 2], or null: no rotation
  const float* rope_sin = nullptr;
  const int32_t* positions = nullptr;     // [num_tokens]
  const int64_t* slot_mapping = nullptr;  // [num_tokens], -1: padding
  KvCacheView cache;                      // T or e4m3
  float k_scale = 1.0F;                   // e4m3 only: what is stored times the scale is the value
  float v_scale = 1.0F;
};
int PrepareAttention(const PrepareAttentionArgs& args, Stream stream);

// Attention of one layer. Query head h reads KV head h / (num_heads / num_kv_heads).
struct AttentionArgs {
  int32_t num_seqs = 0;
  int32_t num_heads = 0;
  int32_t layer = 0;
  DType dtype = DType::kBF16;
  const void* q = nullptr;     // [num_tokens, num_heads * head_dim] of T, rows q_row_stride apart
  int64_t q_row_stride = 0;    // elements
  void* out = nullptr;         // [num_tokens, num_heads * head_dim] of T
  float scale = 1.0F;          // of the scores, before softmax
  float soft_cap = 0.0F;       // > 0: scores become soft_cap * tanh(score / soft_cap)
  int32_t sliding_window = 0;  // > 0: a query attends to itself and sliding_window - 1 before it
  const float* alibi_slopes = nullptr;  // [num_heads], or null; adds slope * (key - query position)
  const int32_t* query_start = nullptr;   // [num_seqs + 1], first token row of each sequence
  const int32_t* seq_lens = nullptr;      // [num_seqs], context with this step's tokens
  const BlockId* block_tables = nullptr;  // [num_seqs, max_blocks_per_seq], kNullBlockId padding
  int32_t max_blocks_per_seq = 0;
  KvCacheView cache;  // T or e4m3, token-major keys
  float k_scale = 1.0F;
  float v_scale = 1.0F;
};

// Decode: one query a sequence. The context is cut into splits of split_tokens absolute positions;
// a split's result is merged with its neighbours' in order. Which splits there are depends on the
// sequence alone.
struct DecodeArgs {
  AttentionArgs attention;
  // The sequences to compute, [num_decodes], as rows of seq_lens; null: all, in order.
  const int32_t* seq_index = nullptr;
  int32_t num_decodes = 0;
  int32_t split_tokens = 256;            // a multiple of 64
  const int32_t* split_start = nullptr;  // [num_decodes + 1] of PlanDecode
  // Room for every split of the batch: [max_splits, num_heads, head_dim] and
  // [max_splits, num_heads, 2] (maximum of the scores in base 2, sum). A sequence has at most
  // ceil(seq_len / split_tokens) splits, and with a window at most
  // ceil(sliding_window / split_tokens) + 1. Null where no sequence can have two.
  float* partial_out = nullptr;
  float* partial_state = nullptr;
  int32_t num_ctas = 0;  // of the persistent grid; any number gives the same bits
};

// split_start[i] = splits of the sequences before i. One plan serves all layers of equal window.
struct PlanDecodeArgs {
  int32_t num_decodes = 0;
  const int32_t* seq_index = nullptr;  // as DecodeArgs
  const int32_t* seq_lens = nullptr;
  int32_t split_tokens = 256;
  int32_t sliding_window = 0;
  int32_t* split_start = nullptr;  // [num_decodes + 1] out
};
int PlanDecode(const PlanDecodeArgs& args, Stream stream);
int Decode(const DecodeArgs& args, Stream stream);
// CTAs that fill the device with the decode kernel of this type and head_dim.
int DecodeGridSize(DType dtype, DType cache_dtype, int32_t head_dim, int32_t* num_ctas);

// Prefill: sequences with any number of queries. An item is kPrefillRows rows of (token, head in
// group) of one sequence, rows counted token by token from the sequence's first query.
inline constexpr int32_t kPrefillRows = 128;
struct PrefillItem {
  int32_t sequence = 0;
  int32_t first_row = 0;
};
// Of the same results to rounding; each by itself deterministic.
enum class PrefillKernel : uint8_t {
  kFastest,  // that there is for the types and head_dim on this device
  kMma,      // products of a warp: every device, type and head_dim
  kWgmma,    // of a warpgroup: compute capability 9.0, a cache of type T, head_dim 64, 128 or 256
};
struct PrefillArgs {
  AttentionArgs attention;
  const PrefillItem* items = nullptr;  // [num_items], longest first is fastest
  int32_t num_items = 0;
  PrefillKernel kernel = PrefillKernel::kFastest;
};
int Prefill(const PrefillArgs& args, Stream stream);

// Copies whole blocks of all layers; no dst is also a src or another dst.
struct CopyBlocksArgs {
  void* pool = nullptr;
  int64_t block_bytes = 0;         // a multiple of 16
  const BlockId* pairs = nullptr;  // [num_pairs, 2]: src, dst
  int32_t num_pairs = 0;
};
int CopyBlocks(const CopyBlocksArgs& args, Stream stream);

// Changes the logit of one token of one row. Bias and bans, then the penalties.
struct LogitAdjustment {
  TokenId token_id = 0;
  float bias = 0.0F;         // -infinity: banned
  int32_t output_count = 0;  // times in the output
  int32_t in_context = 0;    // 1: in prompt or output
};

// How a row of logits becomes a token; the meaning is that of kernels/api/sampling.h.
struct SampleRow {
  float temperature = 0.0F;  // below 1e-5: greedy
  float top_p = 1.0F;
  float min_p = 0.0F;
  int32_t top_k = 0;
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  int32_t token_index = 0;
  int32_t num_logprobs = -1;
  int32_t first_adjustment = 0;  // into adjustments; distinct token ids
  int32_t num_adjustments = 0;
  uint64_t seed = 0;
};

struct SampleArgs {
  int32_t num_rows = 0;
  int32_t vocab_size = 0;
  int64_t row_stride = 0;                  // elements between rows of logits
  float* logits = nullptr;                 // [num_rows, vocab_size]; overwritten
  const SampleRow* rows = nullptr;         // [num_rows]
  LogitAdjustment* adjustments = nullptr;  // of all rows; overwritten
  TokenId* token_ids = nullptr;            // [num_rows] out
  float* logprobs = nullptr;               // [num_rows] out, where num_logprobs >= 0
  int32_t* finite = nullptr;               // [num_rows] out; 0: NaN or infinity, token is 0
  // Out, best first: min(num_logprobs, vocab_size) entries at i * top_stride. Null: no row wants
  // any.
  TokenId* top_token_ids = nullptr;
  float* top_logprobs = nullptr;
  int32_t top_stride = 0;
};
int Sample(const SampleArgs& args, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GPU_OPS_H_
