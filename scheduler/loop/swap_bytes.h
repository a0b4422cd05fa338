// SwapBytes turns the core's counts of swapped blocks into bytes. Blocks of one worker group need
// not be as large as those of the next.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_LOOP_SWAP_BYTES_H_
#define QUIRE_SCHEDULER_LOOP_SWAP_BYTES_H_

#include <cstdint>

#include "scheduler/core/core_stats.h"

namespace quire {

struct SwapBytes {
  int64_t out = 0;  // to host memory, by each worker, since the start
  int64_t in = 0;   // and back

  // The core's counts went from before to after with blocks of this size.
  void Add(const CoreStats& before, const CoreStats& after, int64_t block_bytes) {
    out += block_bytes * (after.num_blocks_swapped_out - before.num_blocks_swapped_out);
    in += block_bytes * (after.num_blocks_swapped_in - before.num_blocks_swapped_in);
  }
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_SWAP_BYTES_H_
