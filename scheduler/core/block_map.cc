#include "scheduler/core/block_map.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "scheduler/core/core_state.h"

namespace quire {
namespace {

constexpr int32_t kNobody = -1;

// A block table in use, and the index of the table's holder in Holdings::holders.
struct HeldTable {
  int32_t holder = kNobody;
  const BlockTable* table = nullptr;
};

struct Holdings {
  std::vector<BlockHolder> holders;
  std::vector<HeldTable> tables;
};

Holdings FindHoldings(const CoreState& state) {
  Holdings found;
  for (const auto& [id, prefix] : state.prefixes) {
    if (!prefix.table.empty()) {
      found.tables.push_back({static_cast<int32_t>(found.holders.size()), &prefix.table});
      found.holders.push_back({.id = id,
                               .is_prefix = true,
                               .num_prompt_tokens = static_cast<int32_t>(prefix.token_ids.size())});
    }
  }
  for (const SequenceGroup* group : state.running) {
    BlockHolder holder{.id = group->id(),
                       .num_prompt_tokens = group->request().num_prompt_tokens()};
    for (const Sequence& sequence : group->sequences()) {
      if (sequence.is_running()) {
        found.tables.push_back({static_cast<int32_t>(found.holders.size()), &sequence.table});
        ++holder.num_sequences;
        holder.num_output_tokens += sequence.num_output_tokens();
      }
    }
    found.holders.push_back(holder);
  }
  return found;
}

// Assigns each block of the tables to its first holder, and counts the block for that holder. Each
// table is walked from its last block to its first. If a block already has a holder, usually all
// blocks before it have one too, because tables share beginnings. So with `skips_beginnings` the
// walk of the table ends at that block.
void MarkHolders(bool skips_beginnings, Holdings& holdings, std::vector<int32_t>& holder_of) {
  for (const HeldTable& held : holdings.tables) {
    const std::span<const BlockId> block_ids = held.table->block_ids();
    const auto num_passed = static_cast<size_t>(held.table->num_passed_blocks());
    for (size_t i = block_ids.size(); i > num_passed; --i) {
      int32_t& holder = holder_of[static_cast<size_t>(block_ids[i - 1])];
      if (holder == kNobody) {
        holder = held.holder;
        ++holdings.holders[static_cast<size_t>(holder)].num_blocks;
      } else if (skips_beginnings) {
        break;
      }
    }
  }
}

// Returns, for each block id, the index of the block's holder in Holdings::holders, or kNobody. A
// walk that skips beginnings can miss blocks: before a block that two tables share, the tables can
// have different blocks with equal contents. This is rare, so the full walk runs only if some
// active block has no holder yet.
std::vector<int32_t> HolderOfEach(size_t num_blocks, int64_t num_active, Holdings& holdings) {
  std::vector<int32_t> holder_of(num_blocks, kNobody);
  MarkHolders(/*skips_beginnings=*/true, holdings, holder_of);
  int64_t num_marked = 0;
  for (const BlockHolder& holder : holdings.holders) {
    num_marked += holder.num_blocks;
  }
  if (num_marked < num_active) {
    MarkHolders(/*skips_beginnings=*/false, holdings, holder_of);
  }
  return holder_of;
}

// Makes the cells of a map, one after the other.
class CellMaker {
 public:
  CellMaker(const BlockPool& pool,
            std::span<const BlockState> states,
            std::span<const int32_t> holder_of,
            std::span<const BlockHolder> holders)
      : pool_(pool),
        states_(states),
        holder_of_(holder_of),
        holders_(holders),
        num_held_by_holder_(holders.size(), 0) {}

  // Counts the blocks [first, end).
  BlockMapCell Make(BlockId first, BlockId end) {
    BlockMapCell cell;
    int32_t most = 0;
    for (BlockId block_id = first; block_id < end; ++block_id) {
      switch (states_[static_cast<size_t>(block_id)]) {
        case BlockState::kFree:
          continue;
        case BlockState::kCached:
          ++cell.num_cached;
          continue;
        case BlockState::kActive:
          ++cell.num_active;
          CountHolder(holder_of_[static_cast<size_t>(block_id)], &most, &cell);
          break;
        case BlockState::kLeaving:
        case BlockState::kPending:
          ++cell.num_leaving;
          break;
      }
      cell.num_shared += pool_.ref_count(block_id) > 1 ? 1 : 0;
    }
    for (const int32_t holder : in_cell_) {
      num_held_by_holder_[static_cast<size_t>(holder)] = 0;
    }
    in_cell_.clear();
    return cell;
  }

 private:
  void CountHolder(int32_t holder, int32_t* most, BlockMapCell* cell) {
    int32_t& num_held = num_held_by_holder_[static_cast<size_t>(holder)];
    if (++num_held == 1) {
      in_cell_.push_back(holder);
    }
    if (num_held > *most) {
      *most = num_held;
      cell->holder = holders_[static_cast<size_t>(holder)].id;
    }
  }

  const BlockPool& pool_;
  const std::span<const BlockState> states_;
  const std::span<const int32_t> holder_of_;
  const std::span<const BlockHolder> holders_;
  std::vector<int32_t> num_held_by_holder_;  // blocks in the current cell, by holder
  std::vector<int32_t> in_cell_;             // holders with blocks in the current cell
};

}  // namespace

BlockMap MakeBlockMap(const CoreState& state, const BlockMapLimits& limits) {
  QUIRE_CHECK(limits.max_cells >= 1 && limits.max_holders >= 0);
  BlockMap map;
  if (!state.epoch.has_value()) {
    return map;
  }
  const KvCacheManager& kv_cache = state.epoch->kv_cache;
  const int32_t num_blocks = kv_cache.pool().num_blocks();
  const std::vector<BlockState> states = kv_cache.BlockStates();
  Holdings holdings = FindHoldings(state);
  const std::vector<int32_t> holder_of = HolderOfEach(
      states.size(), std::count(states.begin(), states.end(), BlockState::kActive), holdings);
  map.blocks_per_cell = std::max(1, (num_blocks - 1 + limits.max_cells - 1) / limits.max_cells);
  CellMaker cells(kv_cache.pool(), states, holder_of, holdings.holders);
  for (BlockId first = 1; first < num_blocks; first += map.blocks_per_cell) {
    map.cells.push_back(cells.Make(first, std::min(first + map.blocks_per_cell, num_blocks)));
  }
  map.holders = std::move(holdings.holders);
  const auto has_more = [](const BlockHolder& a, const BlockHolder& b) {
    return a.num_blocks != b.num_blocks ? a.num_blocks > b.num_blocks : a.id < b.id;
  };
  std::sort(map.holders.begin(), map.holders.end(), has_more);
  if (map.holders.size() > static_cast<size_t>(limits.max_holders)) {
    map.holders.resize(static_cast<size_t>(limits.max_holders));
  }
  return map;
}

}  // namespace quire
