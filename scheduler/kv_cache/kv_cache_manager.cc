#include "scheduler/kv_cache/kv_cache_manager.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/model/sliding_window.h"

namespace quire {

KvCacheManager::KvCacheManager(BlockPool pool,
                               int32_t block_size_tokens,
                               int32_t num_host_blocks,
                               int32_t sliding_window)
    : pool_(std::move(pool)),
      cache_(pool_.num_blocks()),
      num_pins_(static_cast<size_t>(pool_.num_blocks())),
      swap_space_(num_host_blocks),
      block_size_tokens_(block_size_tokens),
      sliding_window_(sliding_window) {
  QUIRE_CHECK(block_size_tokens >= 1 && sliding_window >= 0);
}

int32_t KvCacheManager::NumPassedBlocks(int32_t num_computed_tokens) const {
  return NumBlocksBeforeWindow(num_computed_tokens, sliding_window_, block_size_tokens_);
}

int64_t KvCacheManager::NumStoredTokens(const BlockTable& table) const {
  return table.num_tokens_ - int64_t{table.num_passed_blocks_} * block_size_tokens_;
}

int32_t KvCacheManager::NumBlocksFor(int64_t num_tokens) const {
  return static_cast<int32_t>(DivCeil(num_tokens, block_size_tokens_));
}

std::optional<std::span<const BlockId>> KvCacheManager::Append(BlockTable& table,
                                                               int32_t num_tokens) {
  QUIRE_CHECK(num_tokens > 0);
  const bool is_last_full = IsLastFull(table);
  QUIRE_CHECK(is_last_full || pool_.ref_count(table.block_ids_.back()) == 1);
  size_t num_blocks_before = table.block_ids_.size();
  const int32_t num_new = NumBlocksToAppend(table, num_tokens);
  const int32_t num_kept = table.empty() ? 0 : num_front_pages();
  if (num_new > 0 && !Allocate(num_kept, num_new, table.block_ids_)) {
    return std::nullopt;
  }
  // A fork may have taken only part of a full block, and the prefix cache may still list that
  // block. Unlist the block, because this sequence will write into it.
  if (!is_last_full) {
    Unlist(table.block_ids_[num_blocks_before - 1]);
  }
  table.num_tokens_ += num_tokens;
  num_stored_tokens_ += num_tokens;
  const std::span<const BlockId> new_blocks = table.block_ids().subspan(num_blocks_before);
  for (BlockId block_id : new_blocks) {
    Unlist(block_id);
  }
  return new_blocks;
}

GroupBlocks KvCacheManager::CountBlocks(std::span<const BlockTable* const> group) const {
  GroupBlocks blocks;
  // Fast path for a group of one sequence. A step may count the blocks of thousands of groups, so
  // this path allocates no vector.
  if (group.size() == 1) {
    const std::span<const BlockId> held = group.front()->held_block_ids();
    blocks.num_blocks = static_cast<int32_t>(held.size());
    blocks.num_exclusive = static_cast<int32_t>(std::ranges::count_if(
        held, [this](BlockId block_id) { return pool_.ref_count(block_id) == 1; }));
    return blocks;
  }
  std::vector<BlockId> entries;
  for (const BlockTable* table : group) {
    entries.insert(entries.end(), table->block_ids_.begin(), table->block_ids_.end());
  }
  std::sort(entries.begin(), entries.end());
  for (size_t i = 0; i < entries.size();) {
    const size_t first = i;
    while (i < entries.size() && entries[i] == entries[first]) {
      ++i;
    }
    if (entries[first] == kNullBlockId) {
      continue;  // entries that the sliding window has passed
    }
    ++blocks.num_blocks;
    const bool is_exclusive = pool_.ref_count(entries[first]) == static_cast<int32_t>(i - first);
    blocks.num_exclusive += is_exclusive ? 1 : 0;
  }
  return blocks;
}

PrefixMatch KvCacheManager::Match(std::span<const BlockHash> hashes) const {
  PrefixMatch match;
  int32_t num_found = 0;  // length of the run of cached blocks that ends with the current block
  for (int32_t num_blocks = 1; num_blocks <= static_cast<int32_t>(hashes.size()); ++num_blocks) {
    const bool is_cached = cache_.Find(hashes[static_cast<size_t>(num_blocks) - 1]).has_value();
    num_found = is_cached ? num_found + 1 : 0;
    if (!is_cached && sliding_window_ == 0) {
      break;
    }
    const int32_t num_passed = NumPassedBlocks(num_blocks * block_size_tokens_);
    if (num_passed + num_found >= num_blocks) {
      match.num_blocks = num_blocks;
      match.num_passed_blocks = num_passed;
    }
  }
  for (int32_t i = match.num_passed_blocks; i < match.num_blocks; ++i) {
    if (!IsHeld(hashes[static_cast<size_t>(i)])) {
      break;
    }
    ++match.num_held_blocks;
  }
  const bool are_all_held = match.num_passed_blocks + match.num_held_blocks == match.num_blocks;
  if (sliding_window_ > 0 && !are_all_held) {
    match.num_held_blocks = 0;
  }
  return match;
}

bool KvCacheManager::IsHeld(const BlockHash& hash) const {
  const std::optional<BlockId> block_id = cache_.Find(hash);
  return block_id.has_value() && pool_.ref_count(*block_id) > 0;
}

void KvCacheManager::ShareCached(std::span<const BlockHash> hashes, BlockTable& table) {
  QUIRE_CHECK(table.empty());
  table.num_tokens_ = static_cast<int32_t>(hashes.size()) * block_size_tokens_;
  table.num_passed_blocks_ = NumPassedBlocks(table.num_tokens_);
  const auto num_passed = static_cast<size_t>(table.num_passed_blocks_);
  table.block_ids_.assign(num_passed, kNullBlockId);
  for (const BlockHash& hash : hashes.subspan(num_passed)) {
    const std::optional<BlockId> block_id = cache_.Find(hash);
    QUIRE_CHECK(block_id.has_value());
    pool_.Touch(*block_id);
    table.block_ids_.push_back(*block_id);
  }
  operations_.num_found += static_cast<int64_t>(hashes.size() - num_passed);
  num_stored_tokens_ += NumStoredTokens(table);
}

CopiedBlock KvCacheManager::CopyTail(const BlockTable& parent,
                                     int32_t num_tokens,
                                     BlockTable& table) {
  QUIRE_CHECK(IsLastFull(table) && table.num_blocks() + 1 == parent.num_blocks());
  QUIRE_CHECK(num_tokens > 0 && num_tokens <= parent.num_tokens_ - table.num_tokens_);
  QUIRE_CHECK(Append(table, num_tokens).has_value());
  return {.src = parent.block_ids_.back(), .dst = table.block_ids_.back()};
}

void KvCacheManager::OnStepPlanned() {
  pool_.RaiseFence();
  published_.clear();
  for (size_t i = replaced_.size(); i > 0; --i) {
    pool_.Free(replaced_[i - 1]);
  }
  replaced_.clear();
}

void KvCacheManager::Publish(const BlockTable& table,
                             int32_t first_block,
                             std::span<const BlockHash> hashes,
                             const SharedContents* contents) {
  QUIRE_CHECK(static_cast<int64_t>(hashes.size()) * block_size_tokens_ <= table.num_tokens());
  const auto block_size = static_cast<size_t>(block_size_tokens_);
  for (auto i = static_cast<size_t>(first_block); i < hashes.size(); ++i) {
    const std::optional<BlockId> listed = cache_.Find(hashes[i]);
    if (listed.has_value() && pool_.ref_count(*listed) == 0) {
      Unlist(*listed);
    }
    const BlockId block_id = table.block_ids_[i];
    if (pool_.blocks_per_page() > 1) {
      published_.push_back(block_id);
    }
    const bool is_new = cache_.Insert(block_id, hashes[i]);
    pool_.MarkCached(block_id, cache_.HashOf(block_id).has_value());
    if (is_new && contents != nullptr && keeps_cache_events()) {
      const size_t begin = (i - static_cast<size_t>(first_block)) * block_size;
      const SharedContents of_block = {.token_ids = contents->token_ids.subspan(begin, block_size),
                                       .cache_salt = contents->cache_salt};
      cache_events_.OnListed(block_id, hashes, i, of_block);
    }
  }
}

void KvCacheManager::KeepCacheEvents() {
  QUIRE_CHECK_EQ(cache_.size(), 0);
  cache_events_.Keep(pool_.num_blocks(), sliding_window_);
}

bool KvCacheManager::Allocate(int32_t num_kept, int32_t num_blocks, std::vector<BlockId>& out) {
  const size_t num_before = out.size();
  if (!pool_.AllocateBehind(num_kept, num_blocks, out)) {
    return false;
  }
  operations_.num_allocated += num_blocks;
  operations_.num_evicted += std::count_if(
      out.begin() + static_cast<std::ptrdiff_t>(num_before), out.end(), [this](BlockId block_id) {
        return pool_.is_cached(block_id);
      });
  return true;
}

void KvCacheManager::Unlist(BlockId block_id) {
  if (pool_.is_cached(block_id) && num_pins_[static_cast<size_t>(block_id)] == 0) {
    cache_events_.OnUnlisted(block_id, *cache_.HashOf(block_id));
    cache_.Erase(block_id);
    pool_.MarkCached(block_id, false);
  }
}

void KvCacheManager::Unpublish(const BlockTable& table,
                               int32_t first_block,
                               std::span<const BlockHash> hashes) {
  for (int32_t i = first_block; i < table.num_blocks(); ++i) {
    std::optional<BlockId> block_id = table[i];
    if (i < table.num_passed_blocks()) {
      const auto index = static_cast<size_t>(i);
      block_id = index < hashes.size() ? cache_.Find(hashes[index]) : std::nullopt;
    }
    if (block_id.has_value()) {
      Unlist(*block_id);
    }
  }
}

void KvCacheManager::Pin(std::span<const BlockHash> hashes, BlockTable& table) {
  ShareCached(hashes, table);
  for (BlockId block_id : table.held_block_ids()) {
    num_pinned_blocks_ += num_pins_[static_cast<size_t>(block_id)]++ == 0 ? 1 : 0;
  }
}

void KvCacheManager::PinTail(const BlockTable& parent, BlockTable& table) {
  QUIRE_CHECK(IsLastFull(table) && table.num_blocks() + 1 == parent.num_blocks());
  const int32_t num_tokens = parent.num_tokens_ - table.num_tokens_;
  const BlockId block_id = parent.block_ids_.back();
  pool_.Touch(block_id);
  table.block_ids_.push_back(block_id);
  table.num_tokens_ += num_tokens;
  num_stored_tokens_ += num_tokens;
  num_pinned_blocks_ += num_pins_[static_cast<size_t>(block_id)]++ == 0 ? 1 : 0;
}

void KvCacheManager::Unpin(BlockTable& table) {
  for (BlockId block_id : table.held_block_ids()) {
    num_pinned_blocks_ -= --num_pins_[static_cast<size_t>(block_id)] == 0 ? 1 : 0;
  }
  Free(table);
}

void KvCacheManager::SlideWindow(BlockTable& table, int32_t num_computed_tokens) {
  if (sliding_window_ == 0) {
    return;  // a fast exit, since every step calls this for every sequence
  }
  QUIRE_CHECK(num_computed_tokens <= table.num_tokens_);
  const int32_t num_passed = NumPassedBlocks(num_computed_tokens);
  QUIRE_CHECK(num_passed >= table.num_passed_blocks_);
  for (; table.num_passed_blocks_ < num_passed; ++table.num_passed_blocks_) {
    pool_.Free(std::exchange(table.block_ids_[static_cast<size_t>(table.num_passed_blocks_)],
                             kNullBlockId));
    num_stored_tokens_ -= block_size_tokens_;
  }
}

void KvCacheManager::Fork(const BlockTable& parent, int32_t num_tokens, BlockTable& child) {
  QUIRE_CHECK(child.empty());
  QUIRE_CHECK(num_tokens <= parent.num_tokens());
  child.num_tokens_ = num_tokens;
  child.num_passed_blocks_ = NumPassedBlocks(num_tokens);
  QUIRE_CHECK(parent.num_passed_blocks_ <= child.num_passed_blocks_);
  const auto num_passed = static_cast<size_t>(child.num_passed_blocks_);
  child.block_ids_.assign(num_passed, kNullBlockId);
  for (size_t i = num_passed; i < static_cast<size_t>(NumBlocksFor(num_tokens)); ++i) {
    pool_.Touch(parent.block_ids_[i]);
    child.block_ids_.push_back(parent.block_ids_[i]);
  }
  operations_.num_forked += static_cast<int64_t>(child.block_ids_.size() - num_passed);
  num_stored_tokens_ += NumStoredTokens(child);
}

bool KvCacheManager::IsTailShared(const BlockTable& table) const {
  const bool is_full = table.num_tokens_ == table.num_blocks() * block_size_tokens_;
  return !table.empty() && !is_full && pool_.ref_count(table.block_ids_.back()) > 1;
}

std::optional<CopiedBlock> KvCacheManager::MakeTailExclusive(BlockTable& table) {
  if (!IsTailShared(table)) {
    return std::nullopt;
  }
  const BlockId shared = table.block_ids_.back();
  table.block_ids_.pop_back();
  QUIRE_CHECK(Allocate(num_front_pages(), 1, table.block_ids_));
  Unlist(table.block_ids_.back());
  pool_.Free(shared);
  return CopiedBlock{.src = shared, .dst = table.block_ids_.back()};
}

void KvCacheManager::Free(BlockTable& table) {
  for (int32_t i = table.num_blocks() - 1; i >= table.num_passed_blocks_; --i) {
    pool_.Free(table.block_ids_[static_cast<size_t>(i)]);
  }
  num_stored_tokens_ -= NumStoredTokens(table);
  table.Abandon();
}

bool KvCacheManager::SwapOut(std::span<const SwapTables> group,
                             uint64_t step_id,
                             std::vector<SwappedBlock>& orders) {
  if (!swap_space_.CopyOut(group, step_id, pool_, orders)) {
    return false;
  }
  for (const SwapTables& tables : group) {
    Free(*tables.table);
  }
  return true;
}

SwapInNeed KvCacheManager::NeedToSwapIn(std::span<const SwapTables> group) const {
  std::map<HostBlockId, int32_t> num_holders;
  std::map<HostBlockId, int32_t> num_tails;  // tables that have the block as partly filled tail
  for (const SwapTables& tables : group) {
    const HostTable& table = *tables.host_table;
    for (HostBlockId host_block : table.host_block_ids()) {
      ++num_holders[host_block];
    }
    if (table.num_tokens() % block_size_tokens_ != 0) {
      ++num_tails[table.host_block_ids().back()];
    }
  }
  SwapInNeed need = {.num_blocks = static_cast<int32_t>(num_holders.size())};
  for (const auto& [host_block, count] : num_tails) {
    // Each sequence that shares the tail block copies the block before writing into it. The last
    // such sequence keeps the original, unless another table has the same block as a full block.
    need.num_tail_copies += count - (num_holders.at(host_block) == count ? 1 : 0);
  }
  return need;
}

bool KvCacheManager::SwapIn(std::span<const SwapTables> group,
                            uint64_t step_id,
                            std::vector<SwappedBlock>& orders) {
  const SwapSpace::HostBlocks to_copy = swap_space_.BlocksToCopyIn(group, step_id);
  std::vector<BlockId> taken;
  if (!AllocateInOrder(group, to_copy, taken)) {
    return false;
  }
  for (BlockId block_id : taken) {
    Unlist(block_id);
  }
  const auto& block_of = swap_space_.CopyIn(to_copy, taken, step_id, orders);
  for (const SwapTables& tables : group) {
    QUIRE_CHECK(tables.table->empty());
    tables.table->num_passed_blocks_ = tables.host_table->num_passed_blocks();
    tables.table->block_ids_.assign(static_cast<size_t>(tables.table->num_passed_blocks_),
                                    kNullBlockId);
    for (HostBlockId host_block : tables.host_table->host_block_ids()) {
      const BlockId block_id = block_of.at(host_block);
      pool_.Touch(block_id);
      tables.table->block_ids_.push_back(block_id);
    }
    tables.table->num_tokens_ = tables.host_table->num_tokens();
    num_stored_tokens_ += NumStoredTokens(*tables.table);
    swap_space_.Free(*tables.host_table);
  }
  for (BlockId block_id : taken) {
    pool_.Free(block_id);  // drops Allocate's reference; each table holds a separate one
  }
  return true;
}

std::vector<BlockState> KvCacheManager::BlockStates() const {
  std::vector<BlockState> states(static_cast<size_t>(pool_.num_blocks()), BlockState::kFree);
  for (BlockId block_id = 1; block_id < pool_.num_blocks(); ++block_id) {
    BlockState& state = states[static_cast<size_t>(block_id)];
    if (pool_.ref_count(block_id) > 0) {
      state = BlockState::kActive;
    } else if (!pool_.is_free(block_id)) {
      state = BlockState::kPending;
    } else if (pool_.is_cached(block_id)) {
      state = BlockState::kCached;
    }
  }
  for (const auto& [block_id, num_copies] : swap_space_.copies_out()) {
    if (pool_.ref_count(block_id) == num_copies) {
      states[static_cast<size_t>(block_id)] = BlockState::kLeaving;
    }
  }
  return states;
}

KvCacheManager::Occupancy KvCacheManager::CountTokens(
    std::span<const BlockTable* const> tables) const {
  Occupancy occupancy{.num_held_blocks = pool_.num_used_blocks()};
  for (const auto& [block_id, num_copies] : swap_space_.copies_out()) {
    occupancy.num_held_blocks -= pool_.ref_count(block_id) == num_copies ? 1 : 0;
  }
  // A held block is full, unless it is the partly filled last block of every table that has it.
  int64_t num_empty = 0;
  // By shared last block: how many tokens each table has in the block.
  std::map<BlockId, std::vector<int32_t>> shared_tails;
  for (const BlockTable* table : tables) {
    occupancy.num_table_blocks += table->num_blocks() - table->num_passed_blocks();
    const int32_t num_filled = table->num_tokens_ % block_size_tokens_;
    if (num_filled == 0) {
      continue;
    }
    const BlockId tail = table->block_ids_.back();
    if (pool_.ref_count(tail) == 1) {
      num_empty += block_size_tokens_ - num_filled;
    } else {
      shared_tails[tail].push_back(num_filled);
    }
  }
  for (const auto& [tail, nums_filled] : shared_tails) {
    const int32_t num_tables = pool_.ref_count(tail) - swap_space_.NumCopiesOut(tail);
    if (static_cast<int32_t>(nums_filled.size()) == num_tables) {
      num_empty += block_size_tokens_ - *std::max_element(nums_filled.begin(), nums_filled.end());
    }
  }
  occupancy.num_stored_tokens = int64_t{occupancy.num_held_blocks} * block_size_tokens_ - num_empty;
  return occupancy;
}

// Counts the occupancy from the tables' entries, and compares the result with CountTokens. Also
// compares the pool's number of free cached blocks with the prefix cache.
void KvCacheManager::CheckOccupancy(std::span<const BlockTable* const> tables) const {
  std::vector<int32_t> num_filled(static_cast<size_t>(pool_.num_blocks()), 0);
  Occupancy counted;
  for (const BlockTable* table : tables) {
    for (int32_t i = 0; i < table->num_blocks(); ++i) {
      counted.num_table_blocks += (*table)[i] == kNullBlockId ? 0 : 1;
      int32_t& filled = num_filled[static_cast<size_t>((*table)[i])];
      filled = std::max(filled, table->NumFilled(i, block_size_tokens_));
    }
  }
  int32_t num_free_cached = 0;
  for (BlockId block_id = 1; block_id < pool_.num_blocks(); ++block_id) {
    const int32_t filled = num_filled[static_cast<size_t>(block_id)];
    counted.num_held_blocks += filled > 0 ? 1 : 0;
    counted.num_stored_tokens += filled;
    num_free_cached += pool_.is_free(block_id) && cache_.HashOf(block_id).has_value() ? 1 : 0;
  }
  QUIRE_CHECK_EQ(num_free_cached, pool_.num_free_cached_blocks());
  const Occupancy occupancy = CountTokens(tables);
  QUIRE_CHECK_EQ(counted.num_held_blocks, occupancy.num_held_blocks);
  QUIRE_CHECK_EQ(counted.num_stored_tokens, occupancy.num_stored_tokens);
  QUIRE_CHECK_EQ(counted.num_table_blocks, occupancy.num_table_blocks);
}

void KvCacheManager::CheckInvariants(std::span<const BlockTable* const> tables,
                                     std::span<const HostTable* const> host_tables) const {
  // Checks of the pools: each usable block is free, used or pending, and lists have no duplicates.
  // (I2 of tests/scheduler/README.md)
  pool_.CheckInvariants();
  cache_.CheckInvariants();
  swap_space_.CheckInvariants(host_tables);

  std::vector<int32_t> num_entries(static_cast<size_t>(pool_.num_blocks()), 0);
  int64_t num_stored_tokens = 0;
  for (const BlockTable* table : tables) {
    // A table has exactly the blocks that its tokens need, so only its last block may be partly
    // filled. Entries before the sliding window name the null block. (I5 of
    // tests/scheduler/README.md)
    QUIRE_CHECK_EQ(table->num_blocks(), NumBlocksFor(table->num_tokens()));
    num_stored_tokens += NumStoredTokens(*table);
    for (int32_t i = 0; i < table->num_passed_blocks(); ++i) {
      QUIRE_CHECK_EQ((*table)[i], kNullBlockId);
    }
    for (BlockId block_id : table->held_block_ids()) {
      // The null block is never held: in a table, only entries before the window name it.
      QUIRE_CHECK(block_id > kNullBlockId && block_id < pool_.num_blocks());
      ++num_entries[static_cast<size_t>(block_id)];
    }
  }
  QUIRE_CHECK_EQ(num_stored_tokens, num_stored_tokens_);

  // A block has one reference for each table entry that names it. It has one more for each copy
  // that reads it, to host memory or to a table's own page. (I1 of tests/scheduler/README.md)
  for (const auto& [block_id, num_copies] : swap_space_.copies_out()) {
    num_entries[static_cast<size_t>(block_id)] += num_copies;
  }
  for (const BlockId block_id : replaced_) {
    ++num_entries[static_cast<size_t>(block_id)];
  }
  for (BlockId block_id = 1; block_id < pool_.num_blocks(); ++block_id) {
    QUIRE_CHECK_EQ(pool_.ref_count(block_id), num_entries[static_cast<size_t>(block_id)]);
  }
  CheckOccupancy(tables);

  for (const HostTable* table : host_tables) {
    QUIRE_CHECK_EQ(table->num_blocks(), NumBlocksFor(table->num_tokens()));
  }

  // A pinned block is in use.
  int32_t num_pinned_blocks = 0;
  for (BlockId block_id = 1; block_id < pool_.num_blocks(); ++block_id) {
    const int32_t num_pins = num_pins_[static_cast<size_t>(block_id)];
    QUIRE_CHECK(num_pins >= 0 && num_pins <= pool_.ref_count(block_id));
    num_pinned_blocks += num_pins > 0 ? 1 : 0;
  }
  QUIRE_CHECK_EQ(num_pinned_blocks, num_pinned_blocks_);

  // Append, not this function, checks that no sequence writes into a shared block: a partly filled
  // last block must have exactly one reference. (I3 of tests/scheduler/README.md)
}

}  // namespace quire
