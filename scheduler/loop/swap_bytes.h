// SwapBytes sums the bytes of swapped blocks over all worker groups. The core counts only blocks,
// and the size of a block may differ between worker groups.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_LOOP_SWAP_BYTES_H_
#define QUIRE_SCHEDULER_LOOP_SWAP_BYTES_H_

#include <cstdint>

#include "scheduler/core/core_stats.h"

namespace quire {

struct SwapBytes {
  int64_t out = 0;  // bytes that each worker moved to host memory since the start
  int64_t in = 0;   // bytes that each worker moved from host memory since the start

  // Adds the bytes of the blocks that were swapped between the snapshots `before` and `after`.
  // REQUIRES: each of these blocks has block_bytes bytes.
  void Add(const CoreStats& before, const CoreStats& after, int64_t block_bytes) {
    out += block_bytes * (after.num_blocks_swapped_out - before.num_blocks_swapped_out);
    in += block_bytes * (after.num_blocks_swapped_in - before.num_blocks_swapped_in);
  }
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_SWAP_BYTES_H_
