// KvCacheManager gives sequences places for the K and V of their tokens: it grows, shares and
// frees block tables out of one BlockPool. Fork, Append and Free carry every decoding algorithm.
// Match, ShareCached and Publish let a sequence begin with blocks that another one has computed.
//
// It knows tables, not requests: whoever owns a sequence owns its table and brings it along.
// SlideWindow gives back what a model with a sliding window will not read again.
// Tables move to host memory and back as a whole, with everything that they share. Blocks and host
// blocks that a worker is copying are not free before it says that it is done.
//
// One manager lives for one epoch of a worker group. When the group is lost, the manager is dropped
// as a whole and the tables are abandoned, so that nothing can be given back twice across a crash.
//
// Thread safety: not thread-safe; owned by the scheduler loop.
// Invariants:    ref_count(b) == entries that name b, over all tables, and one if b is leaving;
//                the same for host blocks and host tables.
//                Every table has exactly the blocks that its tokens need, but for those that the
//                sliding window has passed.
// Units:         lengths in tokens, room in blocks.
// Cost:          O(blocks that change hands).
// Source:        PagedAttention, Kwon et al. 2023, sections 4.3, 4.4 and 5.2; finding blocks by a
//                hash of their contents is vLLM's automatic prefix caching; the window is
//                Mistral's, Jiang et al. 2023, section 2.
#ifndef QUIRE_SCHEDULER_KV_CACHE_KV_CACHE_MANAGER_H_
#define QUIRE_SCHEDULER_KV_CACHE_KV_CACHE_MANAGER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "scheduler/kv_cache/block_hash.h"
#include "scheduler/kv_cache/block_pool.h"
#include "scheduler/kv_cache/block_table.h"
#include "scheduler/kv_cache/host_table.h"
#include "scheduler/kv_cache/prefix_cache.h"

namespace quire {

// One sequence of a group that is swapped: its table here and there.
struct SwapTables {
  BlockTable* table = nullptr;
  HostTable* host_table = nullptr;
};

// Blocks that a group in host memory needs to come back.
struct SwapInNeed {
  int32_t num_blocks = 0;       // SwapIn takes them: each shared block once
  int32_t num_tail_copies = 0;  // MakeTailExclusive takes them, before the tails are written again
};

// The contents of src are wanted in dst.
struct CopiedBlock {
  BlockId src = kNullBlockId;
  BlockId dst = kNullBlockId;
};

// Where a block of the device is.
enum class BlockState : uint8_t {
  kFree,     // nobody's, and what it holds cannot be found
  kCached,   // nobody's, found by what it holds
  kActive,   // in a table
  kLeaving,  // in no table any more, and read by copies to host memory
  kPending,  // given back while a step that may touch it is unanswered
};

// What the tables of one group hold, a shared block once.
struct GroupBlocks {
  int32_t num_blocks = 0;
  int32_t num_exclusive = 0;  // of them, held by nobody else: free when the group gives them back
};

// The beginning of a sequence as far as the cache has it.
struct PrefixMatch {
  int32_t num_blocks = 0;
  int32_t num_passed_blocks = 0;  // of them, not read any more: before the sliding window
  // Of the others, those before the first free one. Tables hold them, so they are there whatever is
  // handed out meanwhile; behind a free block that is handed out, nothing is found. Behind a
  // sliding window all or none: what stands before the free block is of no use without the rest.
  int32_t num_held_blocks = 0;
};

class KvCacheManager {
 public:
  // A sliding_window of 0 tokens: there is none. REQUIRES: block_size_tokens >= 1.
  KvCacheManager(BlockPool pool,
                 int32_t block_size_tokens,
                 int32_t num_host_blocks = 0,
                 int32_t sliding_window = 0);

  // Blocks that a sequence of this many tokens fills.
  int32_t NumBlocksFor(int64_t num_tokens) const;

  // Blocks that Append would take. REQUIRES: num_tokens >= 0.
  int32_t NumBlocksToAppend(const BlockTable& table, int32_t num_tokens) const {
    const int64_t room = int64_t{table.num_blocks()} * block_size_tokens_ - table.num_tokens();
    return num_tokens <= room ? 0 : NumBlocksFor(num_tokens - room);
  }

  // Makes room for num_tokens more tokens at the end of the table: first the rest of the last
  // block, then new ones. Returns the new blocks (none when the last one had room), valid until the
  // table changes; nothing when too few are free, and then nothing has changed.
  // REQUIRES: num_tokens > 0; the last block is full or not shared (its positions are written by
  // this sequence alone).
  [[nodiscard]] std::optional<std::span<const BlockId>> Append(BlockTable& table,
                                                               int32_t num_tokens);

  // The next token to compute is the one at position num_computed_tokens: gives back the blocks
  // that lie before its window. REQUIRES: num_computed_tokens <= table.num_tokens(), and never less
  // than before.
  void SlideWindow(BlockTable& table, int32_t num_computed_tokens);

  // Makes child begin with the first num_tokens tokens of parent, which are computed: their blocks
  // are shared, but for those before the window of the next one.
  // REQUIRES: child is empty; num_tokens <= parent.num_tokens(); parent has not given back what
  // the child needs.
  void Fork(const BlockTable& parent, int32_t num_tokens, BlockTable& child);

  // Whether the last block is not full and shared, so that nobody may write to it.
  bool IsTailShared(const BlockTable& table) const;

  // Copy-on-write: a shared tail becomes another block, which this table has to itself. Returns
  // what the worker has to copy before it writes; nothing when the tail is not shared. REQUIRES: a
  // free block if it is.
  std::optional<CopiedBlock> MakeTailExclusive(BlockTable& table);

  GroupBlocks CountBlocks(std::span<const BlockTable* const> group) const;

  // How many blocks of a sequence with these hashes it need not compute: the most of which all are
  // in the cache that the token after them attends to. Without a sliding window those are all, from
  // the first on.
  PrefixMatch Match(std::span<const BlockHash> hashes) const;

  // Whether a table holds the block of this hash.
  bool IsHeld(const BlockHash& hash) const;

  // The table begins with these blocks, full, and shares those in the window with whoever holds
  // them. REQUIRES: the table is empty; Match finds as many.
  void ShareCached(std::span<const BlockHash> hashes, BlockTable& table);

  // ShareCached for good: until Unpin, the blocks are found by their contents, whatever is taken
  // back. REQUIRES: as there; the caller owns the table like any other.
  void Pin(std::span<const BlockHash> hashes, BlockTable& table);
  // A pinned table takes the parent's last block too, which is not full, with all that it holds.
  // REQUIRES: the parent has one block more.
  void PinTail(const BlockTable& parent, BlockTable& table);
  // Gives back every block. The table is empty afterwards. REQUIRES: Pin has filled it.
  void Unpin(BlockTable& table);

  // The first num_tokens tokens of the parent's last block, copied to one that the table has to
  // itself. Returns what the worker has to copy before the table is read. REQUIRES: as above; a
  // free block; 0 < num_tokens, and no more than are there.
  CopiedBlock CopyTail(const BlockTable& parent, int32_t num_tokens, BlockTable& table);

  // From now on block i of the table, i >= first_block, is found by hashes[i]. Its tokens are
  // computed, or are by the step that is being planned: the steps of a worker run in order, and
  // within a step K and V of all slices are there before any of them is read. Of several blocks
  // with the same contents the first is found, unless no table holds it any more.
  // REQUIRES: the table has at least hashes.size() full blocks.
  void Publish(const BlockTable& table, int32_t first_block, std::span<const BlockHash> hashes);

  // No block of the table from first_block on is found any more, nor those of them before its
  // window, by the sequence's hashes: what was computed is no good, or nobody knows whether it is.
  // Pinned blocks are: their own logits were finite.
  void Unpublish(const BlockTable& table, int32_t first_block, std::span<const BlockHash> hashes);

  // The tables move to host memory in step step_id; appends what the worker has to copy, each
  // shared block once, also when another group takes it along in this step. The blocks are free
  // when OnSwapsDone has named the step. False, and nothing has changed, when too few host blocks
  // are free. REQUIRES: host tables are empty; with tables outside of the group only full blocks
  // are shared; nothing that was swapped in this step has been given back.
  [[nodiscard]] bool SwapOut(std::span<const SwapTables> group,
                             uint64_t step_id,
                             std::vector<SwappedBlock>& orders);

  // REQUIRES: the group is in host memory.
  SwapInNeed NeedToSwapIn(std::span<const SwapTables> group) const;

  // The way back, into other blocks. False, and nothing has changed, when too few are free.
  // REQUIRES: tables are empty; otherwise as above.
  [[nodiscard]] bool SwapIn(std::span<const SwapTables> group,
                            uint64_t step_id,
                            std::vector<SwappedBlock>& orders);

  // Gives back every host block. The host table is empty afterwards.
  void Free(HostTable& host_table);

  // The worker has done all swaps up to this step.
  void OnSwapsDone(uint64_t step_id);

  // Gives back every block, the last one first, so that tails are reused before what other
  // requests are likelier to share. The table is empty afterwards.
  void Free(BlockTable& table);

  // Between a plan and its answer, freed blocks stay pending: see BlockPool.
  void OnStepPlanned() { pool_.RaiseFence(); }
  void OnStepAnswered() { pool_.LowerFence(); }

  const BlockPool& pool() const { return pool_; }
  int32_t num_free_blocks() const { return pool_.num_free_blocks(); }
  int32_t block_size_tokens() const { return block_size_tokens_; }
  // Summed over the tables: a shared block counts for each of them, one before the window for none.
  int64_t num_stored_tokens() const { return num_stored_tokens_; }
  // Blocks that become free when the swaps under way are done.
  int32_t num_leaving_blocks() const { return static_cast<int32_t>(leaving_.size()); }
  bool has_swaps_under_way() const { return !leaving_.empty() || !arriving_.empty(); }
  const BlockPool& host_pool() const { return host_pool_; }
  int32_t num_pinned_blocks() const { return num_pinned_blocks_; }  // each once
  // Blocks that are found by their contents, used and free ones.
  int32_t num_cached_blocks() const { return cache_.size(); }
  int64_t num_lookups() const { return cache_.num_lookups(); }
  // Since it was made, in blocks of the device.
  struct Operations {
    int64_t num_allocated = 0;  // taken from the free list
    int64_t num_evicted = 0;    // of them, those that could still be found by what they held
    int64_t num_found = 0;      // references taken to what another sequence had computed
    int64_t num_forked = 0;     // references that a fork took to its parent's blocks
  };
  const Operations& operations() const { return operations_; }
  // What the block is found by, if by anything.
  std::optional<BlockHash> HashOf(BlockId block_id) const { return cache_.HashOf(block_id); }

  // What the blocks of tables hold, a block that several tables share counted once.
  struct Occupancy {
    int32_t num_held_blocks = 0;    // in a table; other used ones are on their way to host memory
    int64_t num_stored_tokens = 0;  // in held blocks
    int64_t num_table_blocks = 0;   // held ones, once for each table
  };
  // tables are all the tables in use, in any order. O(tables + blocks on their way).
  Occupancy CountTokens(std::span<const BlockTable* const> tables) const;

  // By block id, the null block as a free one. O(blocks + blocks on their way).
  std::vector<BlockState> BlockStates() const;

  // Aborts with the broken invariant; tables are all the tables in use, in any order.
  // O(blocks + table entries).
  void CheckInvariants(std::span<const BlockTable* const> tables,
                       std::span<const HostTable* const> host_tables = {}) const;

 private:
  // A copy of a step that is not done. What it reads is referenced.
  struct UnderWay {
    uint64_t step_id = 0;
    SwappedBlock copy;
  };

  // The copies that the step being planned makes already, for other groups.
  template <typename Src, typename Dst>
  class StepCopies {
   public:
    // By what they read, or write. Those of another step are forgotten.
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

  void CheckOccupancy(std::span<const BlockTable* const> tables) const;

  // Takes blocks from the pool, to hold something else: the caller unlists them.
  [[nodiscard]] bool Allocate(int32_t num_blocks, std::vector<BlockId>& out);
  // The block is about to hold something else, or what it holds is no good. Pinned blocks stay.
  void Unlist(BlockId block_id);

  // Host blocks are numbered from 0, blocks of a pool from 1.
  static BlockId InPool(HostBlockId host_block) { return host_block + 1; }

  int32_t NumPassedBlocks(int32_t num_computed_tokens) const;
  bool IsLastFull(const BlockTable& table) const {
    return table.num_tokens_ == table.num_blocks() * block_size_tokens_;
  }
  int64_t NumStoredTokens(const BlockTable& table) const;

  BlockPool pool_;
  BlockPool host_pool_;
  PrefixCache cache_;
  std::vector<int32_t> num_pins_;  // by block
  int32_t num_pinned_blocks_ = 0;
  std::deque<UnderWay> leaving_;                     // to host memory, in order of steps
  std::deque<UnderWay> arriving_;                    // likewise, on the way back
  std::unordered_map<BlockId, int32_t> num_copies_;  // of leaving_, by the block that they read
  StepCopies<BlockId, HostBlockId> leaving_now_;
  StepCopies<HostBlockId, BlockId> arriving_now_;
  int32_t block_size_tokens_;
  int32_t sliding_window_;
  int64_t num_stored_tokens_ = 0;
  Operations operations_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_KV_CACHE_MANAGER_H_
