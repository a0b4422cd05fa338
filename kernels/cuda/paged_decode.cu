// PlanDecode, Decode and DecodeGridSize. The attention itself is in paged_decode.cuh. This file has
// the prefix sum of split counts, which runs before the attention, and the merge of splits, which
// runs after it.
//
// A sequence has ceil(seq_len / split_tokens) splits, minus the splits that lie entirely before the
// sliding window. So a batch has at most num_decodes * ceil(max seq_len / split_tokens) splits, and
// with a sliding window also at most num_decodes * (ceil(sliding_window / split_tokens) + 1).
// Partial results need memory for the smaller of the two numbers. Only sequences of two or more
// splits write partial results.
#include <bit>
#include <cstdint>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/decode_lines.h"
#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/paged_decode.h"
#include "kernels/cuda/partial_results.cuh"

namespace quire::gpu {
namespace {

constexpr int kPlanThreads = 256;
constexpr int kPlanWarps = kPlanThreads / kWarpSize;

// Parameters from which CountSplits computes a sequence's number of lines (line_parts.cuh). With
// kSplits, a sequence has one line.
struct LineCount {
  int32_t num_kv_heads = 1;
  int32_t num_queries_per_kv_head = 1;
  int32_t rows_per_line = 0;  // 0: one line
};

QUIRE_DEVICE int32_t CountSplits(const PagedAttentionParams& params,
                                 const DecodePlan& plan,
                                 LineCount count,
                                 int32_t i) {
  int32_t sequence = plan.seq_index != nullptr ? plan.seq_index[i] : i;
  int32_t query_len = 1;
  int32_t num_lines = 1;
  if (count.rows_per_line > 0) {
    query_len = params.query_start[sequence + 1] - params.query_start[sequence];
    int32_t num_rows = query_len * count.num_queries_per_kv_head;
    num_lines = count.num_kv_heads * ((num_rows + count.rows_per_line - 1) / count.rows_per_line);
  }
  // A padding sequence has length 0, so it has 0 splits.
  int32_t seq_len = params.seq_lens[sequence];
  int32_t first_split = FirstKey(seq_len - query_len, params.sliding_window) / plan.split_tokens;
  return ((seq_len + plan.split_tokens - 1) / plan.split_tokens - first_split) * num_lines;
}

// Returns the sum of the values of this lane and all lower lanes.
QUIRE_DEVICE int32_t WarpPrefixSum(int32_t value) {
  int lane = static_cast<int>(threadIdx.x % kWarpSize);
  QUIRE_UNROLL
  for (uint32_t distance = 1; distance < kWarpSize; distance *= 2) {
    int32_t before = __shfl_up_sync(kWholeWarp, value, distance);
    value += lane >= static_cast<int>(distance) ? before : 0;
  }
  return value;
}

// Computes split_start. Launched with one CTA of kPlanThreads threads, and kPlanWarps integers of
// shared memory.
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kPlanThreads, 1) PlanSplits(PagedAttentionParams params,
                                                                  DecodePlan plan,
                                                                  LineCount count,
                                                                  int32_t* split_start) {
  QUIRE_SHARED_MEMORY(shared);
  auto* warp_sums = reinterpret_cast<int32_t*>(shared);
  int warp = static_cast<int>(threadIdx.x / kWarpSize);
  int32_t splits_before = 0;
  for (int32_t first = 0; first < plan.num_decodes; first += kPlanThreads) {
    int32_t i = first + static_cast<int32_t>(threadIdx.x);
    int32_t splits = i < plan.num_decodes ? CountSplits(params, plan, count, i) : 0;
    int32_t prefix_sum = WarpPrefixSum(splits);
    if (threadIdx.x % kWarpSize == kWarpSize - 1) {
      warp_sums[warp] = prefix_sum;
    }
    __syncthreads();

    int32_t all_warps = 0;
    int32_t warps_before = 0;
    for (int w = 0; w < kPlanWarps; ++w) {
      warps_before += w < warp ? warp_sums[w] : 0;
      all_warps += warp_sums[w];
    }
    if (i < plan.num_decodes) {
      split_start[i] = splits_before + warps_before + prefix_sum - splits;
    }
    splits_before += all_warps;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    split_start[plan.num_decodes] = splits_before;
  }
}

constexpr int kMergeWarps = 4;
constexpr int kMergeThreads = kMergeWarps * kWarpSize;

// Merges the partial results of all splits of one sequence and head. Each warp merges every fourth
// split, then the warps' results are merged. The number of splits alone decides the order. Grid
// (num_heads, num_decodes), kMergeThreads threads; shared: kMergeWarps x (head_dim + 2) floats.
template <typename T>
QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kMergeThreads, 1) MergeSplits(DecodeParams params) {
  QUIRE_SHARED_MEMORY(shared);
  const PagedAttentionParams& args = params.attention;
  const DecodePlan& decode = params.plan;
  int32_t head_dim = args.cache.layout.head_dim;
  int32_t first_split = decode.split_start[blockIdx.y];
  int32_t num_splits = decode.split_start[blockIdx.y + 1] - first_split;
  if (num_splits < 2) {
    return;
  }

  auto* warp_out = reinterpret_cast<float*>(shared);  // [kMergeWarps, head_dim]
  float* warp_states = warp_out + kMergeWarps * head_dim;
  int warp = static_cast<int>(threadIdx.x / kWarpSize);
  int lane = static_cast<int>(threadIdx.x % kWarpSize);
  int64_t first_row =
      int64_t{first_split + warp} * args.num_heads + static_cast<int32_t>(blockIdx.x);
  PartialResults splits = {.out = decode.partial_out + first_row * head_dim,
                           .out_stride = int64_t{kMergeWarps} * args.num_heads * head_dim,
                           .state = decode.partial_state + first_row * 2,
                           .state_stride = int64_t{kMergeWarps} * args.num_heads * 2};
  int count = (num_splits - warp + kMergeWarps - 1) / kMergeWarps;
  for (int32_t dim = 4 * lane; dim < head_dim; dim += 4 * kWarpSize) {
    PartialResults vectors = splits;
    vectors.out += dim;
    float out[4] = {};
    SoftmaxState state = MergeResults(out, vectors, count);
    StoreVector<float, 4>(warp_out + warp * head_dim + dim, out);
    if (dim == 0) {
      warp_states[2 * warp] = state.max;
      warp_states[2 * warp + 1] = state.sum;
    }
  }
  __syncthreads();

  int32_t sequence =
      decode.seq_index != nullptr ? decode.seq_index[blockIdx.y] : static_cast<int32_t>(blockIdx.y);
  int64_t out_row =
      int64_t{args.query_start[sequence]} * args.num_heads + static_cast<int32_t>(blockIdx.x);
  for (int32_t dim = 4 * static_cast<int32_t>(threadIdx.x); dim < head_dim;
       dim += 4 * kMergeThreads) {
    const PartialResults warps = {
        .out = warp_out + dim, .out_stride = head_dim, .state = warp_states, .state_stride = 2};
    float out[4] = {};
    SoftmaxState state = MergeResults(out, warps, kMergeWarps);
    StoreOutput(static_cast<T*>(args.out) + out_row * head_dim + dim, out, state.sum, args.v_scale);
  }
}

int RunMerge(const DecodeParams& params, Stream stream) {
  const PagedAttentionParams& args = params.attention;
  return DispatchElement(params.activations, [&]<typename T>() {
    auto shared_bytes = static_cast<size_t>(kMergeWarps * (args.cache.layout.head_dim + 2)) * 4;
    dim3 grid(static_cast<uint32_t>(args.num_heads),
              static_cast<uint32_t>(params.plan.num_decodes));
    return QUIRE_LAUNCH(MergeSplits<T>, grid, dim3(kMergeThreads), shared_bytes, stream, params);
  });
}

}  // namespace

int PlanDecode(const PagedAttentionParams& params,
               const DecodePlan& plan,
               int32_t* split_start,
               Stream stream) {
  LineCount count;
  if (plan.kernel == DecodeKernel::kLines) {
    count = {.num_kv_heads = params.cache.layout.num_kv_heads,
             .num_queries_per_kv_head = params.num_heads / params.cache.layout.num_kv_heads,
             .rows_per_line = RowsPerLine(params, plan)};
  }
  return QUIRE_LAUNCH(PlanSplits,
                      dim3(1),
                      dim3(kPlanThreads),
                      kPlanWarps * sizeof(int32_t),
                      stream,
                      params,
                      plan,
                      count,
                      split_start);
}

int Decode(const PagedAttentionParams& params,
           const DecodePlan& plan,
           DType activations,
           Stream stream) {
  if (plan.kernel == DecodeKernel::kLines) {
    return DecodeByLines(params, plan, activations, stream);
  }
  const KvCacheLayout& layout = params.cache.layout;
  if (!HasSwizzledRows(layout) || !HasPlainSoftmax(params)) {
    return kUnsupported;
  }
  if (plan.num_decodes == 0) {
    return 0;
  }
  DecodeParams decode = {.attention = params, .plan = plan, .activations = activations};
  decode.block_shift = std::countr_zero(static_cast<uint32_t>(layout.block_size_tokens));
  decode.num_queries_per_kv_head = params.num_heads / layout.num_kv_heads;
  decode.num_row_groups = (decode.num_queries_per_kv_head + kTileRows - 1) / kTileRows;
  int error = DispatchHeadDim(layout.head_dim,
                              [&]<int kHeadDim>() { return RunDecode<kHeadDim>(decode, stream); });

  // If one split can hold all positions of a block table, no sequence has two splits to merge.
  int64_t max_seq_len = int64_t{params.max_blocks_per_seq} * layout.block_size_tokens;
  if (error != 0 || max_seq_len <= plan.split_tokens) {
    return error;
  }
  return RunMerge(decode, stream);
}

int DecodeGridSize(DType activations, DType cache_dtype, int32_t head_dim, int32_t* num_ctas) {
  return DispatchHeadDim(head_dim, [&]<int kHeadDim>() {
    return CountDecodeCtas<kHeadDim>(activations, cache_dtype, num_ctas);
  });
}

}  // namespace quire::gpu
