// The operations of KernelBackend on a GPU, as plain functions. Each takes the operation's struct
// of kernels/api (here with device pointers), GPU-only arguments and a stream, and returns an error
// number. A function only enqueues work: it allocates nothing, waits for nothing, and reads no
// device memory on the host. So a call can be recorded in a graph.
//
// One source, two builds: nvcc compiles the kernels for GPUs; g++ compiles them with
// kernels/cuda/emulator. There, device pointers are host pointers, and a launch runs when the host
// waits for the launch's stream.
//
// Activations:   of type T, bf16 or f16, given by the argument `activations` or by the struct.
// Shapes:        rows are contiguous unless a stride is given, and 16-byte aligned; head_dim is one
//                of 64, 80, 96, 112, 128, 256; widths are multiples of 8.
// Padding:       a token with slot -1 is not written to the cache. For a sequence of length 0, no
//                attention is computed. The rows of such tokens and sequences may hold anything and
//                affect no other row.
// Determinism:   a row's result depends on that row and its sequence alone, bit for bit, whatever
//                else is in the batch and however many CTAs run.
// Errors:        0; the cudaError_t of the launch; kUnsupported if no kernel has the type, layout
//                or head_dim. Only kLines supports attention with sinks or a soft cap.
// Thread safety: one caller at a time for one stream.
#ifndef QUIRE_KERNELS_CUDA_GPU_OPS_H_
#define QUIRE_KERNELS_CUDA_GPU_OPS_H_

#include <cstdint>

#include "common/base/ids.h"
#include "common/model/dtype.h"
#include "kernels/api/attention.h"
#include "kernels/api/copy_blocks.h"
#include "kernels/api/dense.h"
#include "kernels/api/sampling.h"

namespace quire::gpu {

// cudaStream_t, or a stream of the emulator. Null: the default stream.
using Stream = void*;

inline constexpr int kUnsupported = -1;

// The embedding tables are f32, bf16 or f16; the output is f32 or of the activations' type.
int Embed(const EmbeddingParams& params, Stream stream);

// Runs one CTA per row whatever num_tokens is, so that a row's sum always has the same order.
int Norm(const NormParams& params, DType activations, Stream stream);

int Activate(const ActivationParams& params, DType activations, Stream stream);

// Returns kUnsupported unless the cache has three properties: its type is the activations' type or
// e4m3; its rows are swizzled; its blocks have 8, 16, 32, ... tokens.
int PrepareAttention(const PrepareAttentionParams& params, DType activations, Stream stream);

// ---- Attention of one layer; its cache types are those of PrepareAttention ----------------------

// Each kernel is deterministic, but results of different kernels agree only to rounding.
enum class DecodeKernel : uint8_t {
  // Runs on every device. Its CTAs compute splits, and a second kernel merges the splits.
  kSplits,
  // Runs on compute capability 9.0 and 10.x, if a head's values follow the head's keys in a block.
  // A sequence must have one query, or at most 64 / (query heads per KV head) queries. All CTAs
  // compute equally many splits, of consecutive lines (decode_lines.cuh).
  kLines,
};

// Decode: one query per sequence or, for kLines, up to max_query_tokens. A sequence's context is
// cut into splits at absolute positions that are multiples of split_tokens, and the splits' results
// are merged in order. A sequence's splits depend on that sequence alone.
struct DecodePlan {
  // [num_decodes]: the sequences to compute, as indices into seq_lens. Null: all sequences, in
  // order.
  const int32_t* seq_index = nullptr;
  int32_t num_decodes = 0;
  int32_t split_tokens = 256;            // a multiple of 64
  const int32_t* split_start = nullptr;  // [num_decodes + 1], written by PlanDecode
  // Memory for the outputs of all splits of the batch, [max_splits, num_heads, head_dim]. A
  // sequence has at most ceil(seq_len / split_tokens) splits; with a sliding window, also at most
  // ceil(sliding_window / split_tokens) + 1. May be null if no sequence can have two splits.
  float* partial_out = nullptr;
  // Memory for the softmax states of the same splits, [max_splits, num_heads, 2]: the maximum of
  // the scores in base 2, and the sum of the weights 2^(score - maximum). May be null if
  // partial_out is null.
  float* partial_state = nullptr;
  int32_t num_ctas = 0;  // CTAs of the persistent grid; any number gives the same bits

  // ---- For kLines ----
  // partial_out points to DecodePartialFloats floats; partial_state is not used.
  DecodeKernel kernel = DecodeKernel::kSplits;
  int32_t max_query_tokens = 1;  // the most queries of a sequence
  // Number of partial results per CTA that fit into partial_out. 0: partial_out has room for
  // sequences of any length that the block tables allow (DecodePartialFloats). REQUIRES: 0, or at
  // least min(ceil(splits of the batch / num_ctas), splits of the longest line) + 1. If each line
  // has a single split, any number is allowed.
  int32_t partials_per_cta = 0;
  int32_t* arrivals = nullptr;  // [num_ctas]; zeros before and after each call
  // Whether the kernel may start before the previous operation on the stream has ended. REQUIRES,
  // if true: among the kernel's inputs, the previous operation writes only q and the K and V of the
  // step's new tokens; all other tokens of each sequence were computed in earlier steps.
  bool starts_early = false;
};

// Writes split_start [num_decodes + 1]: entry i is the total number of splits of the plan's first i
// sequences. Reads seq_lens, sliding_window, and the plan's seq_index, num_decodes and
// split_tokens. If the plan's kernel is kLines, each KV head and each group of rows has splits of
// its own. PlanDecode then also reads query_start, num_heads and the plan's max_query_tokens. All
// layers with the same sliding window can use one result.
int PlanDecode(const PagedAttentionParams& params,
               const DecodePlan& plan,
               int32_t* split_start,
               Stream stream);
int Decode(const PagedAttentionParams& params,
           const DecodePlan& plan,
           DType activations,
           Stream stream);
// Sets *num_ctas to the number of CTAs that the device can run at once, for the kSplits kernel,
// these types and this head_dim.
int DecodeGridSize(DType activations, DType cache_dtype, int32_t head_dim, int32_t* num_ctas);
// Sets *num_ctas to the number of CTAs of the kLines kernel that the device can run at once. Reads
// num_heads, the layout, and the plan's max_query_tokens. Returns kUnsupported if kLines cannot
// run.
int DecodeLinesGridSize(const PagedAttentionParams& params,
                        const DecodePlan& plan,
                        DType activations,
                        int32_t* num_ctas);
// Returns how many floats partial_out must have for kLines: room for partials_per_cta partial
// results per CTA or, if partials_per_cta is 0, for sequences of any length that the block tables
// allow. Reads num_heads, sliding_window, max_blocks_per_seq, the layout, and the plan's
// num_decodes, split_tokens, max_query_tokens, num_ctas and partials_per_cta.
int64_t DecodePartialFloats(const PagedAttentionParams& params, const DecodePlan& plan);

// Prefill: sequences with any number of queries. A group is the query heads that share one KV head.
// A row is a pair (token, head in group) of one sequence. Rows are numbered token by token, from
// the sequence's first query. An item is up to kPrefillRows consecutive rows of a sequence.
inline constexpr int32_t kPrefillRows = 128;
struct PrefillItem {
  int32_t sequence = 0;
  int32_t first_row = 0;
};
// Each kernel is deterministic, but results of different kernels agree only to rounding.
enum class PrefillKernel : uint8_t {
  kFastest,  // the fastest kernel for the types and head_dim on this device
  // Each product is computed by one warp (mma). Runs for every device, type and head_dim.
  kMma,
  // Each product is computed by a warpgroup (wgmma). Runs on sm_90, for a cache of the
  // activations' type and head_dim 64, 128 or 256.
  kWgmma,
  // Computes the products by wgmma as kWgmma does, but in a persistent grid, without pauses between
  // items, and for every head_dim. Has not run on a GPU yet, so kFastest never takes it.
  kPersistent,
};
struct PrefillPlan {
  const PrefillItem* items = nullptr;  // [num_items]; fastest if the longest contexts are first
  int32_t num_items = 0;
  PrefillKernel kernel = PrefillKernel::kFastest;

  // ---- For kPersistent ----
  int32_t* next_item = nullptr;  // a counter, 0 before and after each call; null: kUnsupported
  int32_t num_ctas = 0;          // CTAs of the grid; 0: one per SM. Any number gives the same bits
};
int Prefill(const PagedAttentionParams& params,
            const PrefillPlan& plan,
            DType activations,
            Stream stream);

// REQUIRES: the size of a block is a multiple of 16 bytes; params.src and params.dst, the arrays of
// block ids, are in device memory.
int CopyBlocks(const CopyBlocksParams& params, Stream stream);

// ---- Sampling -----------------------------------------------------------------------------------

// A change to the logit of one token in one row. The bias is added first, then penalties apply.
struct LogitAdjustment {
  TokenId token_id = 0;
  float bias = 0.0F;         // -infinity bans the token
  int32_t output_count = 0;  // occurrences of the token in the output
  int32_t in_context = 0;    // 1 if the token occurs in the prompt or output
};

// A SamplingRow (kernels/api/sampling.h) as the kernel reads it. The row's biases, its bans and the
// tokens of its prompt and output are given as LogitAdjustments.
struct SampleRow {
  float temperature = 0.0F;  // greedy if below 1e-5
  float top_p = 1.0F;
  float min_p = 0.0F;
  int32_t top_k = 0;
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  int32_t token_index = 0;
  int32_t num_logprobs = -1;
  // Index of the row's first entry in SampleRowsView::adjustments. A row's entries have distinct
  // token ids.
  int32_t first_adjustment = 0;
  int32_t num_adjustments = 0;
  uint64_t seed = 0;
};

// Replaces SampleParams::rows, which is in host memory, by arrays in device memory.
struct SampleRowsView {
  const SampleRow* rows = nullptr;         // [num_rows]
  LogitAdjustment* adjustments = nullptr;  // adjustments of all rows, overwritten by Sample
};
// Ignores params.rows, which is in host memory. params.top_logprobs may be null if no row asks for
// top log-probabilities.
int Sample(const SampleParams& params, const SampleRowsView& rows, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GPU_OPS_H_
