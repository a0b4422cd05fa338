// SwapSpace is the host memory of swapped groups (a group is the sequences of one request). It
// allocates host blocks, and lists the copies that the worker has not yet reported as done.
//
// A copy holds a reference to the block or host block that it reads, so that the block is not
// reused before the copy is done. If several sequences share a block, the block is copied only once
// in a step, even if the sequences belong to different groups.
//
// Thread safety: not thread-safe; owned by KvCacheManager.
// Invariants:    ref_count(h) == number of host table entries that name h + number of copies that
//                read h, for each host block h.
// Cost:          O(n log n) for a call that concerns n blocks.
// Source:        PagedAttention, Kwon et al. 2023, section 4.5.
#ifndef QUIRE_SCHEDULER_KV_CACHE_SWAP_SPACE_H_
#define QUIRE_SCHEDULER_KV_CACHE_SWAP_SPACE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "scheduler/kv_cache/block_pool.h"
#include "scheduler/kv_cache/block_table.h"
#include "scheduler/kv_cache/host_table.h"

namespace quire {

// The tables of one sequence of a swapped group, on the device and in host memory.
struct SwapTables {
  BlockTable* table = nullptr;
  HostTable* host_table = nullptr;
};

class SwapSpace {
 public:
  explicit SwapSpace(int32_t num_host_blocks);

  // Fills the host tables with host blocks for the group's blocks. Appends to `orders` the copies
  // that the worker must make, and takes a reference in device_pool to each block that a copy
  // reads. Returns false, without a change, if too few host blocks are free. REQUIRES: the group's
  // host tables are empty.
  [[nodiscard]] bool CopyOut(std::span<const SwapTables> group,
                             uint64_t step_id,
                             BlockPool& device_pool,
                             std::vector<SwappedBlock>& orders);

  // Host blocks, each with its generation (host_table.h).
  using HostBlocks = std::map<HostBlockId, uint64_t>;
  // Returns the group's host blocks that no copy of step `step_id` brings to the device yet.
  HostBlocks BlocksToCopyIn(std::span<const SwapTables> group, uint64_t step_id);
  // For each i, appends to `orders` an order to copy the i-th host block to block_ids[i]. Returns a
  // map from host block to device block, for all copies of step `step_id`, copies of earlier calls
  // included. The map is valid until the next call. REQUIRES:
  // block_ids.size() == host_blocks.size().
  const std::unordered_map<HostBlockId, BlockId>& CopyIn(const HostBlocks& host_blocks,
                                                         std::span<const BlockId> block_ids,
                                                         uint64_t step_id,
                                                         std::vector<SwappedBlock>& orders);

  // Gives back every host block. The host table is empty afterwards.
  void Free(HostTable& host_table);

  // Called when the worker has made all copies of steps up to step_id. Drops the references that
  // these copies held.
  void OnSwapsDone(uint64_t step_id, BlockPool& device_pool);

  const BlockPool& host_pool() const { return host_pool_; }
  // For each device block: the number of unfinished copies to host memory that read the block.
  // Blocks that no such copy reads have no entry.
  const std::unordered_map<BlockId, int32_t>& copies_out() const { return num_copies_out_; }
  int32_t NumCopiesOut(BlockId block_id) const;
  int32_t num_leaving_blocks() const { return static_cast<int32_t>(leaving_.size()); }
  bool is_any_copy_under_way() const { return !leaving_.empty() || !arriving_.empty(); }

  // Aborts if an invariant is broken, with a message that names it. REQUIRES: host_tables are all
  // the host tables in use, in any order. O(host blocks + host table entries).
  void CheckInvariants(std::span<const HostTable* const> host_tables) const;

 private:
  // A copy that the worker has not yet reported as done. It holds a reference to its source block.
  struct UnderWay {
    uint64_t step_id = 0;
    SwappedBlock copy;
  };

  // Copies that the step being planned has ordered. If another group of the step needs a copy of
  // the same source block, it shares the destination block.
  template <typename Src, typename Dst>
  class StepCopies {
   public:
    // Returns the copies of step `step_id`: destinations by source. Forgets copies of other steps.
    std::unordered_map<Src, Dst>& Of(uint64_t step_id) {
      if (std::exchange(step_id_, step_id) != step_id) {
        copies_.clear();
      }
      return copies_;
    }

   private:
    uint64_t step_id_ = 0;
    std::unordered_map<Src, Dst> copies_;
  };

  // Returns the host block's number in host_pool_. Host blocks are numbered from 0, but a pool's
  // blocks from 1.
  static BlockId InPool(HostBlockId host_block) { return host_block + 1; }

  BlockPool host_pool_;
  std::deque<UnderWay> leaving_;   // copies to host memory, in order of steps
  std::deque<UnderWay> arriving_;  // copies from host memory, in order of steps
  std::unordered_map<BlockId, int32_t> num_copies_out_;  // copies in leaving_, by source block
  StepCopies<BlockId, HostBlockId> leaving_now_;
  StepCopies<HostBlockId, BlockId> arriving_now_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_SWAP_SPACE_H_
