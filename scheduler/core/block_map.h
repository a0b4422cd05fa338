// BlockMap is a picture of the pool: which blocks are used, shared and cached, and which requests
// hold them. It is small for any pool: a cell stands for a run of adjacent blocks.
//
// A shared block counts for its first holder only: pinned prefixes come before requests, and
// requests in their order of service. So the counts of the holders add up to the active blocks.
//
// Thread safety: value types and a free function; the state is not thread-safe.
// Cost:          O(blocks + tables). A block of a beginning that tables share is looked at once,
//                however many tables have it.
#ifndef QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_
#define QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace quire {

struct CoreState;

// A run of adjacent blocks. Blocks that no field counts are free.
struct BlockMapCell {
  int32_t num_cached = 0;
  int32_t num_active = 0;
  int32_t num_leaving = 0;  // leaving or pending: free soon
  int32_t num_shared = 0;   // active and leaving blocks that are referenced more than once
  RequestId holder;         // has more active blocks here than any other; 0: there are none
};

// A running request, or a pinned prefix.
struct BlockHolder {
  RequestId id;
  bool is_prefix = false;
  int32_t num_blocks = 0;
  int32_t num_sequences = 0;  // running ones; 0 for a prefix
  int32_t num_prompt_tokens = 0;
  int64_t num_output_tokens = 0;  // so far, of all its running sequences
};

struct BlockMap {
  int32_t blocks_per_cell = 0;  // the last cell may have fewer
  std::vector<BlockMapCell> cells;
  std::vector<BlockHolder> holders;  // in descending order of num_blocks
};

struct BlockMapLimits {
  int32_t max_cells = 1;
  int32_t max_holders = 0;  // holders beyond it are left out of BlockMap::holders only
};

// Without workers the map is empty. REQUIRES: max_cells >= 1.
BlockMap MakeBlockMap(const CoreState& state, const BlockMapLimits& limits);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_
