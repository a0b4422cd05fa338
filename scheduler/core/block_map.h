// BlockMap is a summary of the pool: which blocks are used, shared and cached, and which requests
// hold them. The map is small for any pool, because a cell stands for a run of adjacent blocks.
//
// A holder is a pinned prefix or a running request. A shared block counts only for the first of its
// holders: pinned prefixes come first, then requests in their order of service. So the counts of
// all holders add up to the number of active blocks (blocks in a block table).
//
// Thread safety: value types; MakeBlockMap must be called on the thread that owns the state.
// Cost:          O(blocks + tables). If many tables begin with the same blocks, each of these
//                blocks is looked at once, not once per table.
#ifndef QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_
#define QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace quire {

struct CoreState;

// A run of adjacent blocks. An active block is in a block table; a cached block is only in the
// prefix cache. Blocks that no field counts are free.
struct BlockMapCell {
  int32_t num_cached = 0;
  int32_t num_active = 0;
  int32_t num_leaving = 0;  // free soon: being copied to host memory, or awaiting a step's answer
  int32_t num_shared = 0;   // active and leaving blocks that are referenced more than once
  RequestId holder;         // holder of the most active blocks in this cell; 0: no active block
};

// A running request, or a pinned prefix.
struct BlockHolder {
  RequestId id;
  bool is_prefix = false;
  int32_t num_blocks = 0;
  int32_t num_sequences = 0;  // running sequences; 0 for a prefix
  int32_t num_prompt_tokens = 0;
  int64_t num_output_tokens = 0;  // sum over the running sequences, so far
};

struct BlockMap {
  int32_t blocks_per_cell = 0;  // the last cell may have fewer
  std::vector<BlockMapCell> cells;
  std::vector<BlockHolder> holders;  // in descending order of num_blocks
};

struct BlockMapLimits {
  int32_t max_cells = 1;
  int32_t max_holders = 0;  // bounds BlockMap::holders; cells may name further holders
};

// Returns the map of the present pool, or an empty map if there are no workers. REQUIRES:
// max_cells >= 1, max_holders >= 0.
BlockMap MakeBlockMap(const CoreState& state, const BlockMapLimits& limits);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_
