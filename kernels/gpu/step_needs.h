// StepNeeds are the sizes of device memory that GpuBackend's operations need, beside the model's
// own buffers. They suffice for all steps within given StepBounds. The sizes follow from the bounds
// and the model's shape alone, so this memory can be allocated before the KV pool is sized.
//
// A step's contexts together may be larger than the pool, because sequences share blocks of a
// common prefix. So the size of the pool does not bound the partial results of decodes;
// max_partial_bytes does. If the decodes of a step need more memory, they run in groups, one after
// the other (StepPacker).
//
// Thread safety: pure functions of value types.
#ifndef QUIRE_KERNELS_GPU_STEP_NEEDS_H_
#define QUIRE_KERNELS_GPU_STEP_NEEDS_H_

#include <cstdint>

#include "kernels/api/step_inputs.h"
#include "kernels/gpu/decode_memory.h"

namespace quire {

struct StepNeeds {
  int64_t input_bytes = 0;        // StepPacker
  int64_t table_bytes = 0;        // block tables of replayed steps
  int64_t partial_bytes = 0;      // partial results of a group of decodes
  int64_t counter_bytes = 0;      // PrefillPlan::next_item and DecodePlan::arrivals
  int64_t split_start_bytes = 0;  // DecodePlan::split_start of all groups, for one window
  int64_t fp8_rows_bytes = 0;
  int64_t fp8_scales_bytes = 0;
  int64_t gathered_bytes = 0;  // NcclGroup
};

StepNeeds NeedsOf(const StepBounds& bounds, const StepShape& shape);

// Returns the greater of a and b, field by field.
StepBounds Cover(const StepBounds& a, const StepBounds& b);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_STEP_NEEDS_H_
