#include "scheduler/kv_cache/swap_space.h"

#include <set>

#include "common/base/check.h"

namespace quire {

SwapSpace::SwapSpace(int32_t num_host_blocks) : host_pool_(num_host_blocks + 1) {}

bool SwapSpace::CopyOut(std::span<const SwapTables> group,
                        uint64_t step_id,
                        BlockPool& device_pool,
                        std::vector<SwappedBlock>& orders) {
  std::unordered_map<BlockId, HostBlockId>& host_of = leaving_now_.Of(step_id);
  std::set<BlockId> to_copy;
  for (const SwapTables& tables : group) {
    QUIRE_CHECK(tables.host_table->empty());
    for (BlockId block_id : tables.table->held_block_ids()) {
      if (host_of.count(block_id) == 0) {
        to_copy.insert(block_id);
      }
    }
  }
  std::vector<BlockId> taken;  // host blocks, by their numbers in host_pool_
  if (!host_pool_.Allocate(static_cast<int32_t>(to_copy.size()), taken)) {
    return false;
  }
  auto next = taken.begin();
  for (BlockId block_id : to_copy) {
    const SwappedBlock copy = {.block = block_id, .host_block = *next++ - 1, .generation = step_id};
    host_of.emplace(block_id, copy.host_block);
    orders.push_back(copy);
    device_pool.Touch(block_id);  // the copy reads it
    leaving_.push_back({.step_id = step_id, .copy = copy});
    ++num_copies_out_[block_id];
  }
  for (const SwapTables& tables : group) {
    for (BlockId block_id : tables.table->held_block_ids()) {
      const HostBlockId host_block = host_of.at(block_id);
      host_pool_.Touch(InPool(host_block));
      tables.host_table->host_block_ids_.push_back(host_block);
    }
    tables.host_table->generation_ = step_id;
    tables.host_table->num_tokens_ = tables.table->num_tokens();
    tables.host_table->num_passed_blocks_ = tables.table->num_passed_blocks();
  }
  for (BlockId host_block : taken) {
    host_pool_.Free(host_block);  // drops Allocate's reference; each table holds a separate one
  }
  return true;
}

SwapSpace::HostBlocks SwapSpace::BlocksToCopyIn(std::span<const SwapTables> group,
                                                uint64_t step_id) {
  const std::unordered_map<HostBlockId, BlockId>& block_of = arriving_now_.Of(step_id);
  HostBlocks to_copy;
  for (const SwapTables& tables : group) {
    for (HostBlockId host_block : tables.host_table->host_block_ids()) {
      if (block_of.count(host_block) == 0) {
        to_copy.emplace(host_block, tables.host_table->generation());
      }
    }
  }
  return to_copy;
}

const std::unordered_map<HostBlockId, BlockId>& SwapSpace::CopyIn(
    const HostBlocks& host_blocks,
    std::span<const BlockId> block_ids,
    uint64_t step_id,
    std::vector<SwappedBlock>& orders) {
  QUIRE_CHECK(block_ids.size() == host_blocks.size());
  std::unordered_map<HostBlockId, BlockId>& block_of = arriving_now_.Of(step_id);
  auto next = block_ids.begin();
  for (const auto& [host_block, generation] : host_blocks) {
    const SwappedBlock copy = {
        .block = *next++, .host_block = host_block, .generation = generation};
    block_of.emplace(host_block, copy.block);
    orders.push_back(copy);
    host_pool_.Touch(InPool(host_block));  // the copy reads it
    arriving_.push_back({.step_id = step_id, .copy = copy});
  }
  return block_of;
}

void SwapSpace::Free(HostTable& host_table) {
  for (auto it = host_table.host_block_ids_.rbegin(); it != host_table.host_block_ids_.rend();
       ++it) {
    host_pool_.Free(InPool(*it));
  }
  host_table.Abandon();
}

void SwapSpace::OnSwapsDone(uint64_t step_id, BlockPool& device_pool) {
  for (; !leaving_.empty() && leaving_.front().step_id <= step_id; leaving_.pop_front()) {
    const BlockId block_id = leaving_.front().copy.block;
    const auto copies = num_copies_out_.find(block_id);
    if (--copies->second == 0) {
      num_copies_out_.erase(copies);
    }
    device_pool.Free(block_id);
  }
  for (; !arriving_.empty() && arriving_.front().step_id <= step_id; arriving_.pop_front()) {
    host_pool_.Free(InPool(arriving_.front().copy.host_block));
  }
}

int32_t SwapSpace::NumCopiesOut(BlockId block_id) const {
  const auto copies = num_copies_out_.find(block_id);
  return copies == num_copies_out_.end() ? 0 : copies->second;
}

void SwapSpace::CheckInvariants(std::span<const HostTable* const> host_tables) const {
  host_pool_.CheckInvariants();

  std::unordered_map<BlockId, int32_t> num_copies_out;
  for (const UnderWay& leaving : leaving_) {
    ++num_copies_out[leaving.copy.block];
  }
  QUIRE_CHECK(num_copies_out == num_copies_out_);

  // A host block has one reference for each host table entry that names it, and one for each copy
  // to the device that reads it.
  std::vector<int32_t> num_entries(static_cast<size_t>(host_pool_.num_blocks()), 0);
  std::map<HostBlockId, uint64_t> generations;
  for (const HostTable* table : host_tables) {
    for (HostBlockId host_block : table->host_block_ids()) {
      ++num_entries[static_cast<size_t>(InPool(host_block))];

      // Tables that share a host block got it in the same step.
      const auto known = generations.emplace(host_block, table->generation()).first;
      QUIRE_CHECK_EQ(known->second, table->generation());
    }
  }
  for (const UnderWay& arriving : arriving_) {
    ++num_entries[static_cast<size_t>(InPool(arriving.copy.host_block))];
  }
  for (BlockId host_block = 1; host_block < host_pool_.num_blocks(); ++host_block) {
    QUIRE_CHECK_EQ(host_pool_.ref_count(host_block), num_entries[static_cast<size_t>(host_block)]);
  }
}

}  // namespace quire
