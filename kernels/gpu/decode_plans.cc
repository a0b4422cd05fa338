#include "kernels/gpu/decode_plans.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/decode_lines.h"
#include "kernels/gpu/gpu_memory.h"

namespace quire {
namespace {

// Upper bound on the (query token, query head) pairs of a KV head in a decode with several query
// tokens (gpu::DecodeKernel).
constexpr int32_t kMaxRows = 64;

}  // namespace

int32_t SplitTokens(int32_t num_queries_per_kv_head, bool by_lines) {
  if (by_lines) {
    constexpr int32_t kMostQueries = 10;
    return num_queries_per_kv_head > kMostQueries ? 512 : 256;
  }
  constexpr int32_t kTokensPerQuery = 50;
  const auto wanted = static_cast<uint32_t>(kTokensPerQuery * num_queries_per_kv_head);
  return static_cast<int32_t>(std::clamp(std::bit_ceil(wanted), 512U, 1024U));
}

LineShape FindLines(const gpu::GpuApi& api,
                    const StepShape& shape,
                    DType activations,
                    std::span<const KvCacheLayout> layouts,
                    int32_t max_query_tokens) {
  LineShape lines;
  lines.max_query_tokens =
      std::clamp(kMaxRows / shape.num_queries_per_kv_head(), 1, max_query_tokens);
  for (const KvCacheLayout& layout : layouts) {
    const PagedAttentionParams params = {.num_heads = shape.num_heads, .cache = {.layout = layout}};
    for (int32_t tokens = 1; tokens <= lines.max_query_tokens; ++tokens) {
      int32_t num_ctas = 0;
      const int error =
          api.decode_lines_grid_size(params, {.max_query_tokens = tokens}, activations, &num_ctas);
      if (error == gpu::kUnsupported || (error == 0 && num_ctas == 0)) {
        return {};
      }
      RequireGpu(api, error, "decode grid size");
      lines.num_ctas = std::max(lines.num_ctas, num_ctas);
    }
    const auto element_bytes = static_cast<int>(SizeOf(layout.dtype));
    lines.half_tile_floats =
        std::max(lines.half_tile_floats,
                 gpu::LinePartialFloats(1, gpu::LineTilesPerWarp(shape.head_dim, element_bytes)));
  }
  return lines;
}

void DecodePlans::SetModel(const StepShape& shape, DType activations) {
  shape_ = shape;
  activations_ = activations;
  num_ctas_.clear();
  planned_windows_.clear();
}

gpu::DecodePlan DecodePlans::PlanOf(const PackedStep& step,
                                    size_t group,
                                    const PagedAttentionParams& params,
                                    bool is_prepared) {
  const bool is_planned = !planned_windows_.insert(params.sliding_window).second;
  if (!is_planned) {
    PlanSplits(step, params);
  }
  gpu::DecodePlan plan = DecodesOf(step, group);
  plan.split_start = SplitStart(step, group, params.sliding_window);
  plan.partial_out = memory_.partials();
  // Before it waits for the previous operation, the kernel reads split_start and the keys and
  // values of earlier steps. So the kernel starts early only if the previous operation writes none
  // of them.
  // - The previous operation must be PrepareAttention. In the step's first layer with this sliding
  //   window, the planning of splits comes between; for a later group, another decode does.
  // - In a step that shares new tokens, the kernel would read, before its wait, keys and values
  //   that PrepareAttention writes.
  // - With first_places the kernel reads through a second mapping of the pool. If the kernel runs
  //   while PrepareAttention writes through the first mapping, the kernel may read old values, even
  //   after its wait (CUDA C++ Programming Guide, Virtual Aliasing Support).
  plan.starts_early = is_prepared && is_planned && group == 0 && !step.inputs.shares_new_tokens &&
                      params.first_places == nullptr;
  shape_.decodes_by_lines() ? AddLines(params, &plan) : AddSplits(params, &plan);
  return plan;
}

void DecodePlans::PlanSplits(const PackedStep& step, const PagedAttentionParams& params) {
  for (size_t group = 0; group < step.groups.size(); ++group) {
    RequireGpu(api_,
               api_.plan_decode(params,
                                DecodesOf(step, group),
                                SplitStart(step, group, params.sliding_window),
                                stream_),
               "plan decode");
  }
}

gpu::DecodePlan DecodePlans::DecodesOf(const PackedStep& step, size_t group) const {
  const DecodeGroup& of = step.groups[group];
  return {
      .seq_index = step.decode_seq_index == nullptr ? nullptr : step.decode_seq_index + of.first,
      .num_decodes = of.count,
      .split_tokens = shape_.split_tokens,
      .kernel = shape_.decodes_by_lines() ? gpu::DecodeKernel::kLines : gpu::DecodeKernel::kSplits,
      .max_query_tokens = of.max_query_tokens};
}

// Skips the split_start of each earlier group. A group's split_start has one element more than the
// group has decodes.
int32_t* DecodePlans::SplitStart(const PackedStep& step,
                                 size_t group,
                                 int32_t sliding_window) const {
  return memory_.split_starts(sliding_window) + step.groups[group].first +
         static_cast<ptrdiff_t>(group);
}

// The memory of partial results holds the outputs of max_splits splits, then the softmax states of
// these splits.
void DecodePlans::AddSplits(const PagedAttentionParams& params, gpu::DecodePlan* plan) {
  const int64_t split_bytes = PartialBytes({.num_splits = 1}, shape_);
  const int64_t max_splits = memory_.partial_bytes() / split_bytes;
  plan->partial_state = plan->partial_out + max_splits * shape_.num_heads * shape_.head_dim;
  const DType cache_dtype = params.cache.layout.dtype;
  int32_t& num_ctas = num_ctas_[{cache_dtype, 1}];
  if (num_ctas == 0) {
    RequireGpu(api_,
               api_.decode_grid_size(activations_, cache_dtype, shape_.head_dim, &num_ctas),
               "decode grid size");
  }
  plan->num_ctas = num_ctas;
}

// Each CTA gets an equal share of the memory of partial results.
void DecodePlans::AddLines(const PagedAttentionParams& params, gpu::DecodePlan* plan) {
  int32_t& num_ctas = num_ctas_[{params.cache.layout.dtype, plan->max_query_tokens}];
  if (num_ctas == 0) {
    RequireGpu(api_,
               api_.decode_lines_grid_size(params, *plan, activations_, &num_ctas),
               "decode grid size");
  }
  plan->num_ctas = std::min(num_ctas, shape_.lines.num_ctas);
  plan->arrivals = memory_.arrivals();
  const int64_t partial_bytes =
      LinePartialFloats(plan->max_query_tokens, shape_) * int64_t{sizeof(float)};
  plan->partials_per_cta =
      static_cast<int32_t>(memory_.partial_bytes() / (partial_bytes * plan->num_ctas));
}

}  // namespace quire
