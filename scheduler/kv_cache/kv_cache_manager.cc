#include "scheduler/kv_cache/kv_cache_manager.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/math.h"

namespace quire {

KvCacheManager::KvCacheManager(BlockPool pool, int32_t block_size_tokens)
    : pool_(std::move(pool)), block_size_tokens_(block_size_tokens) {
  QUIRE_CHECK(block_size_tokens >= 1);
}

int32_t KvCacheManager::NumBlocksFor(int64_t num_tokens) const {
  return static_cast<int32_t>(DivCeil(num_tokens, block_size_tokens_));
}

int32_t KvCacheManager::NumBlocksToAppend(const BlockTable& table, int32_t num_tokens) const {
  return NumBlocksFor(int64_t{table.num_tokens()} + num_tokens) - table.num_blocks();
}

std::optional<std::span<const BlockId>> KvCacheManager::Append(BlockTable& table,
                                                               int32_t num_tokens) {
  QUIRE_CHECK(num_tokens > 0);
  bool is_last_full = table.num_tokens_ == table.num_blocks() * block_size_tokens_;
  QUIRE_CHECK(is_last_full || pool_.ref_count(table.block_ids_.back()) == 1);
  size_t num_blocks_before = table.block_ids_.size();
  if (!pool_.Allocate(NumBlocksToAppend(table, num_tokens), table.block_ids_)) {
    return std::nullopt;
  }
  table.num_tokens_ += num_tokens;
  num_stored_tokens_ += num_tokens;
  return table.block_ids().subspan(num_blocks_before);
}

void KvCacheManager::Fork(const BlockTable& parent, BlockTable& child) {
  QUIRE_CHECK(child.empty());
  for (BlockId block_id : parent.block_ids_) {
    pool_.Touch(block_id);
  }
  child.block_ids_ = parent.block_ids_;
  child.num_tokens_ = parent.num_tokens_;
  num_stored_tokens_ += parent.num_tokens_;
}

void KvCacheManager::Free(BlockTable& table) {
  for (auto it = table.block_ids_.rbegin(); it != table.block_ids_.rend(); ++it) {
    pool_.Free(*it);
  }
  num_stored_tokens_ -= table.num_tokens_;
  table.Abandon();
}

void KvCacheManager::CheckInvariants(std::span<const BlockTable* const> tables) const {
  // The pool's own: free + used + pending = total, lists without duplicates. (I2)
  pool_.CheckInvariants();

  std::vector<int32_t> num_entries(static_cast<size_t>(pool_.num_blocks()), 0);
  int64_t num_stored_tokens = 0;
  for (const BlockTable* table : tables) {
    // A table has exactly the blocks that its tokens need: the last is partly filled at most. (I5)
    QUIRE_CHECK_EQ(table->num_blocks(), NumBlocksFor(table->num_tokens()));
    num_stored_tokens += table->num_tokens();
    for (BlockId block_id : table->block_ids()) {
      // The null block is padding and belongs to nobody.
      QUIRE_CHECK(block_id > kNullBlockId && block_id < pool_.num_blocks());
      ++num_entries[static_cast<size_t>(block_id)];
    }
  }
  QUIRE_CHECK_EQ(num_stored_tokens, num_stored_tokens_);

  // A block is referenced once for each table entry that names it. (I1)
  for (BlockId block_id = 1; block_id < pool_.num_blocks(); ++block_id) {
    QUIRE_CHECK_EQ(pool_.ref_count(block_id), num_entries[static_cast<size_t>(block_id)]);
  }

  // Only full blocks are shared, or blocks that nobody writes to any more: a partly filled block
  // with two holders may not grow. Append refuses it. (I3)
}

}  // namespace quire
