// Scheduler and workers agree on StepLimits when a worker group's epoch begins. The scheduler never
// exceeds the limits. A worker refuses a step over a limit, before the step touches memory.
//
// Thread safety: a value type.
#ifndef QUIRE_COMMON_STEP_STEP_LIMITS_H_
#define QUIRE_COMMON_STEP_STEP_LIMITS_H_

#include <algorithm>
#include <cstdint>

#include "common/base/math.h"

namespace quire {

// Upper bound on the blocks that workers map for the next new sequence before its request arrives:
// 256 tokens at 16 tokens a block. Mapping a block takes 40 us on a GPU (kernels/cuda/README.md).
inline constexpr int32_t kMaxSpareBlocks = 16;

// Upper bound on StepLimits::blocks_per_page: pages of 2 MiB with blocks of 32 bytes.
inline constexpr int32_t kMaxBlocksPerPage = 1 << 16;

struct StepLimits {
  int32_t num_blocks = 0;       // ids 1 .. num_blocks - 1 are usable; 0 is the null block
  int32_t num_host_blocks = 0;  // host ids 0 .. num_host_blocks - 1; 0: no swapping
  int32_t block_size_tokens = 16;
  // Sequence handles are below this number. A step computes at most this many sequences.
  int32_t max_sequences = 256;
  int32_t max_tokens_per_step = 2048;
  int32_t max_model_len = 0;  // tokens of one sequence, prompt and output
  int32_t vocab_size = 0;
  // In every layer a token attends only to itself and the sliding_window - 1 tokens before it. So a
  // block can be freed when it lies before the windows of all tokens still to be computed. 0: no
  // window, so every block is kept.
  int32_t sliding_window = 0;
  // True: slices have SequenceSlice::next_block_id, and plans have StepPlan::spare. With these
  // hints a worker can map blocks or build the next step's inputs ahead of time.
  bool wants_next_blocks = false;
  // A power of two. Block ids [k * blocks_per_page, (k + 1) * blocks_per_page) lie in one page of
  // virtual memory, which the workers map as a whole. So a block table should list whole pages, the
  // blocks of each page in order. A step with any other block table is computed through block
  // tables, without the mapped memory.
  int32_t blocks_per_page = 1;

  friend bool operator==(const StepLimits&, const StepLimits&) = default;
};

// Returns an upper bound on SpareWindow::block_ids. REQUIRES: block_size_tokens > 0.
inline int32_t MaxSpareBlocks(const StepLimits& limits) {
  return std::min(kMaxSpareBlocks, DivCeil(limits.max_model_len, limits.block_size_tokens));
}

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_STEP_LIMITS_H_
