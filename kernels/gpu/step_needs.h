// StepNeeds are the sizes of the device memory that GpuBackend's operations need in steps within
// StepBounds, beside the model's own buffers. They follow from the bounds and the model's shape
// alone, so that all of it can be allocated before the KV pool is sized.
//
// Contexts may be larger than the pool, because sequences share blocks of a common prefix. So the
// pool does not bound the partial results of decodes, and max_partial_bytes does: a step with more
// splits decodes its sequences in groups, one after the other (StepPacker).
//
// Thread safety: pure functions of value types.
#ifndef QUIRE_KERNELS_GPU_STEP_NEEDS_H_
#define QUIRE_KERNELS_GPU_STEP_NEEDS_H_

#include <cstdint>

#include "kernels/api/step_inputs.h"

namespace quire {

// The part of a rank's share of the model on which the needs depend.
struct StepShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t split_tokens = 0;    // tokens of a split (gpu::DecodePlan)
  int32_t sliding_window = 0;  // of all layers; 0 if a layer has none
  int64_t fp8_width = 0;       // widest input of an fp8 product; 0: there is none
  int64_t received_width = 0;  // floats of a row that this rank receives in NcclGroup::Gather
  int64_t max_partial_bytes = 0;

  int32_t num_queries_per_kv_head() const { return num_heads / num_kv_heads; }
};

struct StepNeeds {
  int64_t input_bytes = 0;          // StepPacker
  int64_t table_bytes = 0;          // block tables of replayed steps
  int64_t max_splits = 0;           // of a group of decodes
  int64_t partial_out_bytes = 0;    // DecodePlan::partial_out
  int64_t partial_state_bytes = 0;  // DecodePlan::partial_state
  int64_t split_start_bytes = 0;    // DecodePlan::split_start of all groups, for one window
  int64_t fp8_rows_bytes = 0;
  int64_t fp8_scales_bytes = 0;
  int64_t gathered_bytes = 0;  // NcclGroup
};

StepNeeds NeedsOf(const StepBounds& bounds, const StepShape& shape);

// Returns the number of splits of a decode with so many tokens of context, in the layers that
// attend to most of them.
int64_t NumSplits(int64_t context_tokens, const StepShape& shape);

// Returns the bounds that cover both.
StepBounds Cover(const StepBounds& a, const StepBounds& b);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_STEP_NEEDS_H_
