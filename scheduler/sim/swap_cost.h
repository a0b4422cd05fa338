// What it costs to preempt a sequence and bring it back: by swapping its blocks to the host and in
// again, or by computing it anew.
//
// Thread safety: functions share nothing.
// Source:        Kwon et al. 2023, section 7.3 and Fig 19.
#ifndef QUIRE_SCHEDULER_SIM_SWAP_COST_H_
#define QUIRE_SCHEDULER_SIM_SWAP_COST_H_

#include <cstdint>

#include "scheduler/sim/cost_model.h"

namespace quire {

// How a block lies in memory.
enum class BlockLayout : uint8_t {
  kLayerMajor,  // the paper: each layer has its K and its V; a block is 2 * layers pieces
  kBlockMajor,  // Quire: all layers of a block in one piece
};

// Blocks on their way in one direction. Units: seconds.
struct CopyCost {
  double submit_s = 0;  // the host hands the copies over, one by one
  double total_s = 0;   // until the last one is done; copying goes on beside handing over
};

CopyCost CostOfCopy(const Platform& platform,
                    BlockLayout layout,
                    int32_t block_size_tokens,
                    int64_t num_blocks);

// Out and in again, in seconds.
double SwapSeconds(const Platform& platform,
                   BlockLayout layout,
                   int32_t block_size_tokens,
                   int32_t num_tokens);

// One prefill of all tokens, in seconds, without the fixed part of a step: it rides in one.
double RecomputeSeconds(const Platform& platform, int32_t block_size_tokens, int32_t num_tokens);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SWAP_COST_H_
