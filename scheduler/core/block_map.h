// BlockMap is a picture of the pool: which blocks are used, shared and cached, and who has them. It
// is small, however many blocks there are: a cell stands for some that lie side by side.
//
// A block that several requests share counts for the first of them: pinned prefixes come before
// requests, and of requests who is served first. So what the holders have adds up to the active
// blocks.
//
// Thread safety: value types and a free function; the state is not thread-safe.
// Cost:          O(blocks + tables). Tables share beginnings, of which each block is looked at
//                once, however many tables have it.
#ifndef QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_
#define QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace quire {

struct CoreState;

// Blocks that lie side by side. Those that are not counted are free.
struct BlockMapCell {
  int32_t num_cached = 0;
  int32_t num_active = 0;
  int32_t num_leaving = 0;  // pending ones too: free soon
  int32_t num_shared = 0;   // of the active and leaving ones, referenced more than once
  RequestId holder;         // who has the most of the active ones; 0: there are none
};

// A running request, or a pinned prefix.
struct BlockHolder {
  RequestId id;
  bool is_prefix = false;
  int32_t num_blocks = 0;
  // Of sequences that run.
  int32_t num_sequences = 0;
  int32_t num_prompt_tokens = 0;
  int64_t num_output_tokens = 0;  // so far, of all of them
};

struct BlockMap {
  int32_t blocks_per_cell = 0;  // the last one may have fewer
  std::vector<BlockMapCell> cells;
  std::vector<BlockHolder> holders;  // who has the most first
};

struct BlockMapLimits {
  int32_t max_cells = 1;
  int32_t max_holders = 0;  // others are left out of BlockMap::holders, and nowhere else
};

// Without workers there are no blocks, and no cells. REQUIRES: max_cells >= 1.
BlockMap MakeBlockMap(const CoreState& state, const BlockMapLimits& limits);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_BLOCK_MAP_H_
