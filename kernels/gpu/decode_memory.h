// DecodeWork describes decodes that run together. PartialBytes computes from it the memory of their
// partial results. Both kernels of decode (gpu::DecodeKernel) cut contexts into splits.
//
// Decode by splits stores a partial result for each split of a sequence and each head. Decode by
// lines stores partial results only for lines that several CTAs share, and a grid can cut only a
// bounded number of lines. So batches of any size fit, unless contexts are long (PartialBytes).
//
// Thread safety: pure functions of value types.
#ifndef QUIRE_KERNELS_GPU_DECODE_MEMORY_H_
#define QUIRE_KERNELS_GPU_DECODE_MEMORY_H_

#include <cstdint>

#include "kernels/api/step_inputs.h"

namespace quire {

// The part of StepShape that only decode by lines uses.
struct LineShape {
  int32_t num_ctas = 0;          // CTAs of the largest grid; 0: decodes run by splits
  int64_t half_tile_floats = 0;  // floats of a partial result for each 8 rows of a line
  int32_t max_query_tokens = 1;  // query tokens of one decode (StepPacker)
};

// The part of a rank's share of the model on which the memory of steps depends.
struct StepShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t split_tokens = 0;    // tokens of a split (gpu::DecodePlan)
  int32_t sliding_window = 0;  // if all layers have one; else 0
  int64_t fp8_width = 0;       // widest input of an fp8 product; 0: no fp8 products
  int64_t received_width = 0;  // floats of a row that this rank receives in NcclGroup::Gather
  int64_t max_partial_bytes = 0;
  LineShape lines;
  // Whether a sequence with a single prompt token in the step is prefilled, and not decoded. The
  // token's K, V and logits then have the same bits as in a step with more tokens of the prompt.
  bool prefills_single_tokens = false;

  int32_t num_queries_per_kv_head() const { return num_heads / num_kv_heads; }
  bool decodes_by_lines() const { return lines.num_ctas > 0; }
};

struct DecodeWork {
  int64_t num_splits = 0;    // of all sequences; for decode by lines, of all lines
  int64_t longest = 0;       // splits of the longest sequence or, for decode by lines, longest line
  int32_t query_tokens = 1;  // the most query tokens of a sequence

  friend bool operator==(const DecodeWork&, const DecodeWork&) = default;
};

// Returns the work of one sequence in one layer. If only some layers have a sliding window, the
// result is for a layer without a window. context_tokens includes the query tokens.
DecodeWork WorkOf(int64_t context_tokens, int32_t query_tokens, const StepShape& shape);

// Returns the work of a and b together.
DecodeWork Join(const DecodeWork& a, const DecodeWork& b);

// Returns the bytes of partial results that the work needs, whatever the size of the grid.
int64_t PartialBytes(const DecodeWork& work, const StepShape& shape);

// Returns the floats of one partial result of a line. REQUIRES: decodes_by_lines.
int64_t LinePartialFloats(int32_t query_tokens, const StepShape& shape);

// Returns the bytes to reserve for the partial results of steps within the bounds: enough for all
// decodes of a step, but at most max_partial_bytes. If a single sequence needs more than
// max_partial_bytes, returns the bytes of that sequence, because its work cannot be divided.
int64_t MaxPartialBytes(const StepBounds& bounds, const StepShape& shape);

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_DECODE_MEMORY_H_
