// Cost of preempting and resuming a sequence, by swapping its blocks to the host and back or by
// recomputing the sequence.
//
// Thread safety: functions share nothing.
// Source:        Kwon et al. 2023, section 7.3 and Fig 19.
#ifndef QUIRE_SCHEDULER_SIM_SWAP_COST_H_
#define QUIRE_SCHEDULER_SIM_SWAP_COST_H_

#include <cstdint>

#include "scheduler/sim/cost_model.h"

namespace quire {

enum class BlockLayout : uint8_t {
  kLayerMajor,  // the paper: each layer has its K and its V; a block is 2 * layers pieces
  kBlockMajor,  // Quire: all layers of a block in one piece
};

// Cost of copying blocks in one direction. Units: seconds.
struct CopyCost {
  double submit_s = 0;  // until the host has submitted the copies, one by one
  double total_s = 0;   // until the last copy is done; copying overlaps submitting
};

CopyCost CostOfCopy(const Platform& platform,
                    BlockLayout layout,
                    int32_t block_size_tokens,
                    int64_t num_blocks);

// Seconds to swap num_tokens out and in again.
double SwapSeconds(const Platform& platform,
                   BlockLayout layout,
                   int32_t block_size_tokens,
                   int32_t num_tokens);

// Seconds of one prefill of num_tokens, without a step's fixed part, because the prefill joins a
// step that runs anyway.
double RecomputeSeconds(const Platform& platform, int32_t block_size_tokens, int32_t num_tokens);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SWAP_COST_H_
