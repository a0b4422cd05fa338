// DecodePlans gives each group of a step's decodes its gpu::DecodePlan. Splits are planned on the
// device, once a step and size of a sliding window.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        a failing device ends the process, as in GpuBackend.
#ifndef QUIRE_KERNELS_GPU_DECODE_PLANS_H_
#define QUIRE_KERNELS_GPU_DECODE_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "common/model/dtype.h"
#include "kernels/api/attention.h"
#include "kernels/cuda/gpu_api.h"
#include "kernels/gpu/step_memory.h"
#include "kernels/gpu/step_packer.h"

namespace quire {

// Returns the number of tokens in one split of a decode's context (gpu::DecodePlan). With 50 tokens
// for each query that shares a KV head, partial results are small: at most 4 % of the bytes of keys
// and values that the split reads from a 16-bit cache. The minimum of 512 saves merges for short
// contexts: on an H200, 256-token splits are faster only for a single sequence of 512 tokens.
int32_t SplitTokens(int32_t num_queries_per_kv_head);

class DecodePlans {
 public:
  DecodePlans(const gpu::GpuApi& api, gpu::Stream stream, const StepMemory& memory)
      : api_(api), stream_(stream), memory_(memory) {}

  // Called before the first step of a model.
  void SetModel(int32_t split_tokens, int32_t head_dim, DType activations);
  // Forgets what was planned, because the next step begins or a recording was given up.
  void Clear() { planned_windows_.clear(); }
  // Returns the plan of a group of the step's decodes. Enqueues what plans it.
  gpu::DecodePlan PlanOf(const PackedStep& step, size_t group, const PagedAttentionParams& params);

 private:
  void PlanSplits(const PackedStep& step, const PagedAttentionParams& params);
  // Returns the plan without what the kernels read from memory of results.
  gpu::DecodePlan DecodesOf(const PackedStep& step, size_t group) const;
  // Returns where the group's split_start begins.
  int32_t* SplitStart(const PackedStep& step, size_t group, int32_t sliding_window) const;
  int32_t NumCtas(DType cache_dtype);

  const gpu::GpuApi& api_;
  const gpu::Stream stream_;
  const StepMemory& memory_;
  int32_t split_tokens_ = 0;
  int32_t head_dim_ = 0;
  DType activations_ = DType::kBF16;
  std::map<DType, int32_t> num_ctas_;  // results of DecodeGridSize, by cache dtype
  std::set<int32_t> planned_windows_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_DECODE_PLANS_H_
