// Cost of preempting and resuming a sequence, by swapping its blocks to the host and back or by
// recomputing the sequence.
//
// Thread safety: free functions, safe from any thread.
// Source:        Kwon et al. 2023, section 7.3 and Fig 19.
#ifndef QUIRE_SCHEDULER_SIM_SWAP_COST_H_
#define QUIRE_SCHEDULER_SIM_SWAP_COST_H_

#include <cstdint>

#include "scheduler/sim/cost_model.h"

namespace quire {

enum class BlockLayout : uint8_t {
  // The PagedAttention paper's layout: K and V of each layer are separate, so a block consists of
  // 2 * layers pieces.
  kLayerMajor,
  // Quire's layout: all layers of a block are in one piece.
  kBlockMajor,
};

// Cost of copying blocks in one direction. Units: seconds.
struct CopyCost {
  double submit_s = 0;  // time until the host has submitted the copies, one by one
  double total_s = 0;   // time until the last copy is done; copying overlaps submitting
};

CopyCost CostOfCopy(const Platform& platform,
                    BlockLayout layout,
                    int32_t block_size_tokens,
                    int64_t num_blocks);

// Returns the seconds to swap the blocks of num_tokens tokens out and in again.
double SwapSeconds(const Platform& platform,
                   BlockLayout layout,
                   int32_t block_size_tokens,
                   int32_t num_tokens);

// Returns the seconds of one prefill of num_tokens tokens. Leaves out a step's fixed overhead,
// because the prefill joins a step that runs anyway.
double RecomputeSeconds(const Platform& platform, int32_t block_size_tokens, int32_t num_tokens);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SWAP_COST_H_
