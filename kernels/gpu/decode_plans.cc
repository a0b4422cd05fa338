#include "kernels/gpu/decode_plans.h"

#include <algorithm>
#include <bit>

#include "kernels/gpu/gpu_memory.h"

namespace quire {

int32_t SplitTokens(int32_t num_queries_per_kv_head) {
  constexpr int32_t kTokensPerQuery = 50;
  const auto wanted = static_cast<uint32_t>(kTokensPerQuery * num_queries_per_kv_head);
  return static_cast<int32_t>(std::clamp(std::bit_ceil(wanted), 512U, 1024U));
}

void DecodePlans::SetModel(int32_t split_tokens, int32_t head_dim, DType activations) {
  split_tokens_ = split_tokens;
  head_dim_ = head_dim;
  activations_ = activations;
  num_ctas_.clear();
  planned_windows_.clear();
}

gpu::DecodePlan DecodePlans::PlanOf(const PackedStep& step,
                                    size_t group,
                                    const PagedAttentionParams& params) {
  if (planned_windows_.insert(params.sliding_window).second) {
    PlanSplits(step, params);
  }
  gpu::DecodePlan plan = DecodesOf(step, group);
  plan.split_start = SplitStart(step, group, params.sliding_window);
  plan.partial_out = memory_.partial_out();
  plan.partial_state = memory_.partial_state();
  plan.num_ctas = NumCtas(params.cache.layout.dtype);
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
      .split_tokens = split_tokens_};
}

// Each group before has one element more than decodes.
int32_t* DecodePlans::SplitStart(const PackedStep& step,
                                 size_t group,
                                 int32_t sliding_window) const {
  return memory_.split_starts(sliding_window) + step.groups[group].first +
         static_cast<ptrdiff_t>(group);
}

int32_t DecodePlans::NumCtas(DType cache_dtype) {
  int32_t& num_ctas = num_ctas_[cache_dtype];
  if (num_ctas == 0) {
    RequireGpu(api_,
               api_.decode_grid_size(activations_, cache_dtype, head_dim_, &num_ctas),
               "decode grid size");
  }
  return num_ctas;
}

}  // namespace quire
