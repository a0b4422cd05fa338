// The part of KvCacheManager that knows pages of several blocks.
#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "scheduler/kv_cache/kv_cache_manager.h"

namespace quire {

void KvCacheManager::PeekFirstBlocks(int32_t n, std::vector<BlockId>& out) const {
  const int32_t blocks_per_page = pool_.blocks_per_page();
  std::vector<BlockId> pages;
  pool_.PeekBehind(0, DivCeil(n, blocks_per_page), pages);
  for (const BlockId page : pages) {
    for (BlockId id = page; id < page + std::min(n, blocks_per_page); ++id) {
      out.push_back(id);
    }
    n -= blocks_per_page;
  }
}

void KvCacheManager::PeekNextBlocks(std::span<const BlockTable* const> tables,
                                    std::vector<BlockId>& out) const {
  std::vector<BlockId> pages;
  pool_.PeekBehind(num_front_pages(), static_cast<int32_t>(tables.size()), pages);
  const size_t num_before = out.size();
  auto page = pages.begin();
  for (const BlockTable* table : tables) {
    BlockId next = pool_.NextInPage(table->block_ids_);
    if (next != kNullBlockId &&
        std::find(out.begin() + static_cast<std::ptrdiff_t>(num_before), out.end(), next) !=
            out.end()) {
      next = kNullBlockId;  // an earlier table will take the block
    }
    if (next == kNullBlockId && page != pages.end()) {
      next = *page++ + table->num_blocks() % pool_.blocks_per_page();
    }
    out.push_back(next);
  }
}

int32_t KvCacheManager::NumBlocksToMove(const BlockTable& table) const {
  const int32_t num_in_page = table.num_blocks() % pool_.blocks_per_page();
  if (num_in_page == 0 || pool_.num_whole_pages() == 0) {
    return 0;
  }
  const auto in_page = table.block_ids().last(static_cast<size_t>(num_in_page));
  const bool can_grow =
      pool_.NextInPage(table.block_ids_) != kNullBlockId && pool_.ref_count(in_page.back()) == 1;
  // A block before the sliding window has no contents to copy. A block that the planned step
  // computes cannot be copied either, because the worker makes all copies before it computes.
  const bool can_move = std::ranges::none_of(in_page, [this](BlockId block_id) {
    return block_id == kNullBlockId ||
           std::find(published_.begin(), published_.end(), block_id) != published_.end();
  });
  return !can_grow && can_move ? num_in_page : 0;
}

void KvCacheManager::MoveToOwnPage(BlockTable& table, std::vector<CopiedBlock>& copies) {
  const int32_t num_moved = NumBlocksToMove(table);
  QUIRE_CHECK(num_moved > 0);
  const bool is_tail_shared = IsTailShared(table);
  const auto first = table.block_ids_.end() - num_moved;
  replaced_.insert(replaced_.end(), first, table.block_ids_.end());
  table.block_ids_.erase(first, table.block_ids_.end());
  QUIRE_CHECK(Allocate(num_front_pages(), num_moved, table.block_ids_));
  for (int32_t i = num_moved; i > 0; --i) {
    const BlockId taken = *(table.block_ids_.end() - i);
    Unlist(taken);
    copies.push_back({.src = *(replaced_.end() - i), .dst = taken});
  }
  if (is_tail_shared) {
    // Another table holds the tail and writes into it in this step. If the manager kept its
    // reference, that table would have to copy the tail first.
    pool_.Free(replaced_.back());
    replaced_.pop_back();
  }
}

bool KvCacheManager::AllocateInOrder(std::span<const SwapTables> group,
                                     const SwapSpace::HostBlocks& host_blocks,
                                     std::vector<BlockId>& out) {
  const auto num_blocks = static_cast<int32_t>(host_blocks.size());
  if (pool_.blocks_per_page() == 1 || num_blocks > pool_.num_free_blocks()) {
    return Allocate(0, num_blocks, out);
  }
  std::map<HostBlockId, BlockId> block_of;
  for (const SwapTables& tables : group) {
    const HostTable& host_table = *tables.host_table;
    std::vector<BlockId> table(static_cast<size_t>(host_table.num_passed_blocks()), kNullBlockId);
    for (const HostBlockId host_block : host_table.host_block_ids()) {
      const auto known = block_of.find(host_block);
      if (known != block_of.end() || host_blocks.count(host_block) == 0) {
        table.push_back(known != block_of.end() ? known->second : kNullBlockId);
      } else {
        QUIRE_CHECK(Allocate(0, 1, table));
        block_of.emplace(host_block, table.back());
      }
    }
  }
  for (const auto& [host_block, generation] : host_blocks) {
    out.push_back(block_of.at(host_block));
  }
  return true;
}

}  // namespace quire
