// DecodePlans gives each group of a step's decodes its gpu::DecodePlan. The device plans the
// splits, once per step and sliding window size.
//
// Decodes run by lines if the device and the layout allow it, else by splits (gpu::DecodeKernel).
// All layers of a model use the same kernel.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        a failing device ends the process, as in GpuBackend.
#ifndef QUIRE_KERNELS_GPU_DECODE_PLANS_H_
#define QUIRE_KERNELS_GPU_DECODE_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "common/model/dtype.h"
#include "kernels/api/attention.h"
#include "kernels/cuda/gpu_api.h"
#include "kernels/gpu/decode_memory.h"
#include "kernels/gpu/step_memory.h"
#include "kernels/gpu/step_packer.h"

namespace quire {

// Returns the number of tokens in one split of a decode's context (gpu::DecodePlan).
//
// With 256 tokens, decode by lines divides even small batches evenly over the CTAs. If more than 10
// query heads share a KV head, each partial result is larger (two groups of 8 rows or more), and
// 512 tokens halve the number of partial results.
//
// For decode by splits, 50 tokens for each query head that shares a KV head keep partial results
// small: at most 4 % of the bytes of keys and values that the split reads from a 16-bit cache. The
// minimum of 512 saves merges for short contexts: on an H200, 256-token splits are faster only for
// a single sequence of 512 tokens.
int32_t SplitTokens(int32_t num_queries_per_kv_head, bool by_lines);

// Returns how decode by lines runs for caches of these layouts, with num_ctas 0 if it cannot run.
// Uses only num_heads, num_kv_heads and head_dim of `shape`. The result's max_query_tokens is at
// most the parameter max_query_tokens.
LineShape FindLines(const gpu::GpuApi& api,
                    const StepShape& shape,
                    DType activations,
                    std::span<const KvCacheLayout> layouts,
                    int32_t max_query_tokens);

class DecodePlans {
 public:
  DecodePlans(const gpu::GpuApi& api, gpu::Stream stream, const StepMemory& memory)
      : api_(api), stream_(stream), memory_(memory) {}

  // Must be called before the first step of a model.
  void SetModel(const StepShape& shape, DType activations);
  // Forgets for which sliding windows splits were planned. Must be called when a step begins, and
  // after a recording that planned splits was abandoned.
  void Clear() { planned_windows_.clear(); }
  // Returns the plan of a group of the step's decodes. Enqueues the planning of splits, unless it
  // was enqueued for an earlier layer of the step with the same sliding window. `is_prepared` tells
  // whether the last operation on the stream is PrepareAttention of the same layer.
  gpu::DecodePlan PlanOf(const PackedStep& step,
                         size_t group,
                         const PagedAttentionParams& params,
                         bool is_prepared);

 private:
  void PlanSplits(const PackedStep& step, const PagedAttentionParams& params);
  // Returns a plan with the decodes of group `group`, but without split_start, memory and grid.
  gpu::DecodePlan DecodesOf(const PackedStep& step, size_t group) const;
  // Returns where the group's split_start begins.
  int32_t* SplitStart(const PackedStep& step, size_t group, int32_t sliding_window) const;
  // AddSplits and AddLines set the plan's memory of partial results and its grid.
  void AddSplits(const PagedAttentionParams& params, gpu::DecodePlan* plan);
  void AddLines(const PagedAttentionParams& params, gpu::DecodePlan* plan);

  const gpu::GpuApi& api_;
  const gpu::Stream stream_;
  const StepMemory& memory_;
  StepShape shape_;
  DType activations_ = DType::kBF16;
  std::map<std::pair<DType, int32_t>, int32_t> num_ctas_;  // by cache dtype and query tokens
  std::set<int32_t> planned_windows_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_DECODE_PLANS_H_
