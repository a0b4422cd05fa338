// BlockTable maps the logical blocks of one sequence to physical ones: token i of the sequence has
// its K and V in block (*this)[i / block_size_tokens] at offset i % block_size_tokens.
//
// A table is append-only once a worker knows it: an entry never changes, so the worker's copy stays
// right. There is one exception: entries before the sliding window become the null block, from the
// front on. The worker never reads these entries again. Only KvCacheManager changes a table.
// Explicit calls, not destructors, give back references, so that the code shows in which order
// blocks are given back.
//
// Thread safety: a value type, not thread-safe. Move-only: ref_count would not count a copy.
// Units:         positions and lengths in tokens.
// Invariants:    num_blocks() == ceil(num_tokens() / block_size_tokens), so only the last block
//                may be partly filled. Exactly the first num_passed_blocks() entries are the null
//                block.
// Source:        PagedAttention, Kwon et al. 2023, section 4.3 (there an entry also has the number
//                of filled positions).
#ifndef QUIRE_SCHEDULER_KV_CACHE_BLOCK_TABLE_H_
#define QUIRE_SCHEDULER_KV_CACHE_BLOCK_TABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace quire {

class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) = default;
  BlockTable& operator=(BlockTable&&) = default;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // Tokens for which the table has entries, including the tokens of an unanswered step.
  int32_t num_tokens() const { return num_tokens_; }
  int32_t num_blocks() const { return static_cast<int32_t>(block_ids_.size()); }
  bool empty() const { return block_ids_.empty(); }
  int32_t num_passed_blocks() const { return num_passed_blocks_; }
  std::span<const BlockId> block_ids() const { return block_ids_; }
  // The entries of blocks that the sequence holds: all entries except the first
  // num_passed_blocks(), whose tokens lie before the sliding window.
  std::span<const BlockId> held_block_ids() const {
    return block_ids().subspan(static_cast<size_t>(num_passed_blocks_));
  }

  // REQUIRES: logical_block_index < num_blocks().
  BlockId operator[](int32_t logical_block_index) const;

  // Returns the number of filled positions of a logical block. REQUIRES: as for operator[].
  int32_t NumFilled(int32_t logical_block_index, int32_t block_size_tokens) const;

  // Empties the table without giving back references. REQUIRES: the references were given back
  // before, or the whole pool is dropped.
  void Abandon();

 private:
  friend class KvCacheManager;

  std::vector<BlockId> block_ids_;
  int32_t num_tokens_ = 0;
  int32_t num_passed_blocks_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_BLOCK_TABLE_H_
