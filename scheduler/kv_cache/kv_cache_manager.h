// KvCacheManager allocates blocks for the K and V of sequences: it grows, shares and frees block
// tables, with the blocks of one BlockPool. Every decoding algorithm uses Fork, Append and Free.
// Match, ShareCached and Publish let a sequence begin with blocks that another sequence computed.
//
// The manager knows tables, not requests: the owner of a sequence also owns the sequence's table,
// and passes the table to each call. SlideWindow gives back blocks that a model with a sliding
// window will not read again. The tables of a group of sequences move to host memory and back
// together, so that shared blocks stay shared (SwapSpace).
//
// A new table takes blocks from the front of the pool's free list. A growing table takes blocks
// from behind the first kNumFrontBlocks free blocks. So while sequences grow, the next new
// sequence's blocks stay the same, and a worker can prepare them once (SpareWindow). Even so,
// blocks leave the prefix cache almost in the order in which they were freed.
//
// If a page holds several blocks (BlockPool) and whole pages are free, block i of a table is block
// i % blocks_per_page of its page. So a worker can map the table page by page. This does not hold
// for a fork's table before MoveToOwnPage is called for it.
//
// A manager lives for one epoch: from the time when the worker group is ready until that group is
// lost. Then the manager is dropped as a whole and the tables are abandoned, so that no block can
// be given back twice across a crash.
//
// Thread safety: not thread-safe; owned by the scheduler loop.
// Invariants:    ref_count(b) == number of table entries that name b + number of unfinished copies
//                to host memory that read b, for each block b. Until OnStepPlanned, copies of
//                MoveToOwnPage that read b count too.
//                Every table has exactly the blocks that its tokens need, without blocks before the
//                sliding window.
// Units:         lengths in tokens, memory in blocks.
// Cost:          O(n log n), mostly O(n), for a call that takes, shares, finds or gives back n
//                blocks.
// Source:        PagedAttention, Kwon et al. 2023, sections 4.3, 4.4 and 5.2; finding blocks by a
//                hash of their contents is vLLM's automatic prefix caching; the sliding
//                window is Mistral's, Jiang et al. 2023, section 2.
#ifndef QUIRE_SCHEDULER_KV_CACHE_KV_CACHE_MANAGER_H_
#define QUIRE_SCHEDULER_KV_CACHE_KV_CACHE_MANAGER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/math.h"
#include "scheduler/kv_cache/block_hash.h"
#include "scheduler/kv_cache/block_pool.h"
#include "scheduler/kv_cache/block_table.h"
#include "scheduler/kv_cache/cache_event.h"
#include "scheduler/kv_cache/cache_event_log.h"
#include "scheduler/kv_cache/host_table.h"
#include "scheduler/kv_cache/prefix_cache.h"
#include "scheduler/kv_cache/swap_space.h"

namespace quire {

// Numbers of free device blocks that a swapped request needs when it returns from host memory.
struct SwapInNeed {
  int32_t num_blocks = 0;       // taken by SwapIn, each shared block once
  int32_t num_tail_copies = 0;  // taken by MakeTailExclusive, for shared last blocks
};

// An order to the worker: copy block src to block dst.
struct CopiedBlock {
  BlockId src = kNullBlockId;
  BlockId dst = kNullBlockId;
};

// State of a device block.
enum class BlockState : uint8_t {
  kFree,     // unreferenced, and not in the prefix cache
  kCached,   // unreferenced, and in the prefix cache
  kActive,   // in a table
  kLeaving,  // in no table any more, but read by copies to host memory
  kPending,  // given back while a step that may touch it is unanswered
};

// Blocks in the tables of one group (a request's sequences), each shared block counted once.
struct GroupBlocks {
  int32_t num_blocks = 0;
  int32_t num_exclusive = 0;  // held by this group alone, so free once the group gives them back
};

// The longest beginning of a sequence that the prefix cache can supply.
struct PrefixMatch {
  int32_t num_blocks = 0;
  int32_t num_passed_blocks = 0;  // blocks before the sliding window; the sequence never reads them
  // Number of consecutive blocks in use (ref_count > 0), from block num_passed_blocks on. No
  // allocation can evict these blocks. An allocation may evict the first block after them, and then
  // no later block is found either. With a sliding window the number is 0 unless all blocks of the
  // window are in use, because the next token needs each of them.
  int32_t num_held_blocks = 0;
};

class KvCacheManager {
 public:
  // Number of blocks at the front of the free list that only new tables take, unless no other block
  // is free. A worker can prepare at most these blocks for the next new sequence.
  static constexpr int32_t kNumFrontBlocks = 16;

  // sliding_window: in tokens; 0: none. REQUIRES: block_size_tokens >= 1.
  KvCacheManager(BlockPool pool,
                 int32_t block_size_tokens,
                 int32_t num_host_blocks = 0,
                 int32_t sliding_window = 0);

  // Returns the number of blocks that num_tokens tokens of a sequence occupy.
  int32_t NumBlocksFor(int64_t num_tokens) const;

  // Returns the number of blocks that Append would take. REQUIRES: num_tokens >= 0.
  int32_t NumBlocksToAppend(const BlockTable& table, int32_t num_tokens) const {
    const int64_t room = int64_t{table.num_blocks()} * block_size_tokens_ - table.num_tokens();
    return num_tokens <= room ? 0 : NumBlocksFor(num_tokens - room);
  }

  // Appends to `out` the n free blocks that a new table would begin with, or fewer if the whole
  // pages have fewer than n blocks.
  void PeekFirstBlocks(int32_t n, std::vector<BlockId>& out) const;
  // For each table, appends to `out` the block that the table would grow by next, or the null block
  // if that is unknown. Assumes that Append is called in the order of `tables`. REQUIRES: no table
  // is empty.
  void PeekNextBlocks(std::span<const BlockTable* const> tables, std::vector<BlockId>& out) const;

  // Makes room for num_tokens more tokens at the end of the table: first in the last block, then in
  // new blocks. Returns the new blocks, or an empty span if the last block had room for all tokens.
  // The span is valid until the table changes. Returns nullopt, without a change, if too few blocks
  // are free. REQUIRES: num_tokens > 0; the last block is full or not shared, because the table's
  // sequence will write into it.
  [[nodiscard]] std::optional<std::span<const BlockId>> Append(BlockTable& table,
                                                               int32_t num_tokens);

  // Gives back the blocks before the sliding window of the next token to compute, whose position is
  // num_computed_tokens. REQUIRES: num_computed_tokens <= table.num_tokens(), and is at least the
  // value of the last call for this table.
  void SlideWindow(BlockTable& table, int32_t num_computed_tokens);

  // Makes child begin with the first num_tokens tokens of parent. Both tables then share the blocks
  // of these tokens, except blocks before the sliding window of the next token. REQUIRES: child is
  // empty; num_tokens <= parent.num_tokens(); these tokens are computed; parent still has the
  // blocks that child needs.
  void Fork(const BlockTable& parent, int32_t num_tokens, BlockTable& child);

  // Returns true if the last block is partly filled and shared, so that it must not be written.
  bool IsTailShared(const BlockTable& table) const;

  // Copy-on-write: replaces a shared tail (partly filled last block) by a new block. Returns the
  // copy that the worker must make before it writes into the new block; nullopt if the tail is not
  // shared. REQUIRES: if the tail is shared, a block is free.
  std::optional<CopiedBlock> MakeTailExclusive(BlockTable& table);

  GroupBlocks CountBlocks(std::span<const BlockTable* const> group) const;

  // Returns the longest beginning that a sequence with these block hashes need not compute, because
  // the prefix cache lists its blocks. With a sliding window, only the blocks to which the token
  // after the beginning attends must be listed.
  PrefixMatch Match(std::span<const BlockHash> hashes) const;

  // Returns true if the prefix cache lists a block under this hash, and the block is in use.
  bool IsHeld(const BlockHash& hash) const;

  // Makes the table begin with the cached blocks of these hashes, which other tables may hold too.
  // Entries before the sliding window are the null block.
  // REQUIRES: the table is empty; Match(hashes).num_blocks == hashes.size().
  void ShareCached(std::span<const BlockHash> hashes, BlockTable& table);

  // Like ShareCached, but the blocks stay in the prefix cache until Unpin, even if Unpublish is
  // called for them. The caller owns the table. REQUIRES: as for ShareCached.
  void Pin(std::span<const BlockHash> hashes, BlockTable& table);
  // Adds the parent's partly filled last block, with all its tokens, to a table that Pin filled.
  // REQUIRES: the parent has one block more than the table.
  void PinTail(const BlockTable& parent, BlockTable& table);
  // Gives back every block. The table is empty afterwards. REQUIRES: Pin has filled the table.
  void Unpin(BlockTable& table);

  // Adds a new block to the table, for a copy of the first num_tokens tokens of the parent's last
  // block. Returns the copy that the worker must make before it reads the new block. REQUIRES: as
  // for PinTail; a block is free; 0 < num_tokens <= tokens in the parent's last block.
  CopiedBlock CopyTail(const BlockTable& parent, int32_t num_tokens, BlockTable& table);

  // Returns how many blocks MoveToOwnPage would take. Returns 0 if the table can grow in its last
  // page, if it fills its last page, or if it cannot be moved.
  int32_t NumBlocksToMove(const BlockTable& table) const;
  // Called when other tables keep the table from growing in its last page. Replaces the table's
  // blocks in that page by blocks of a whole page. Appends to `copies` the copies that the worker
  // must make before it reads the new blocks. The manager holds a reference to each replaced block
  // until OnStepPlanned, except to a shared tail (partly filled last block), which another table
  // holds. REQUIRES: NumBlocksToMove > 0.
  void MoveToOwnPage(BlockTable& table, std::vector<CopiedBlock>& copies);

  // Lists block i of the table in the prefix cache under hashes[i], for each i >= first_block. If
  // another block in use is already listed under the hash, that block stays listed instead.
  // REQUIRES: the table has at least hashes.size() full blocks; each block to list is computed
  // already, or the step being planned computes it. Other sequences may use the block in the same
  // step, because a worker writes K and V of all the step's tokens before it reads any.
  // contents: the tokens of the blocks from first_block on, for cache events. Null if only the
  // sequences of one request share the blocks; no event reports such blocks.
  void Publish(const BlockTable& table,
               int32_t first_block,
               std::span<const BlockHash> hashes,
               const SharedContents* contents = nullptr);

  // Removes the table's blocks from first_block on from the prefix cache. Called when the contents
  // of these blocks are bad or not known to be good. Blocks before the sliding window are no longer
  // in the table, so they are looked up by their hashes. Pinned blocks stay listed: the request
  // that computed their prefix got finite logits from them.
  void Unpublish(const BlockTable& table, int32_t first_block, std::span<const BlockHash> hashes);

  // Moves the tables to host memory in step `step_id`. Appends to `orders` the copies that the
  // worker must make. Blocks that no other table holds become free when OnSwapsDone is called for
  // this step. Returns false, without a change, if too few host blocks are free. REQUIRES: host
  // tables are empty; only full blocks are shared with tables outside the group. Each host block
  // that an earlier copy of this step fills is still in use.
  [[nodiscard]] bool SwapOut(std::span<const SwapTables> group,
                             uint64_t step_id,
                             std::vector<SwappedBlock>& orders);

  // Counts the free blocks that SwapIn takes now and that MakeTailExclusive takes later. REQUIRES:
  // the group is in host memory.
  SwapInNeed NeedToSwapIn(std::span<const SwapTables> group) const;

  // Moves the tables back to the device, into new blocks. Appends to `orders` the copies that the
  // worker must make. Returns false, without a change, if too few blocks are free. REQUIRES: block
  // tables are empty; SwapOut filled the host tables. Each block that an earlier copy of this step
  // fills is still in use.
  [[nodiscard]] bool SwapIn(std::span<const SwapTables> group,
                            uint64_t step_id,
                            std::vector<SwappedBlock>& orders);

  // Gives back every host block. The host table is empty afterwards.
  void Free(HostTable& host_table) { swap_space_.Free(host_table); }

  // Called when the worker has made all copies of steps up to step_id. Drops the references that
  // these copies held.
  void OnSwapsDone(uint64_t step_id) { swap_space_.OnSwapsDone(step_id, pool_); }

  // Gives back every block, the last one first. The pool then reuses the end of a sequence before
  // its beginning, which other requests are likelier to share. The table is empty afterwards.
  void Free(BlockTable& table);

  // A block that is freed between OnStepPlanned and OnStepAnswered is pending until OnStepAnswered
  // (BlockPool).
  void OnStepPlanned();
  void OnStepAnswered() { pool_.LowerFence(); }

  const BlockPool& pool() const { return pool_; }
  int32_t num_free_blocks() const { return pool_.num_free_blocks(); }
  int32_t block_size_tokens() const { return block_size_tokens_; }
  // Tokens in the blocks of all tables. A shared block counts once per table; blocks before the
  // sliding window do not count.
  int64_t num_stored_tokens() const { return num_stored_tokens_; }
  // Number of unfinished copies to host memory. Each reads one block, which becomes free after the
  // copy unless the block has other references.
  int32_t num_leaving_blocks() const { return swap_space_.num_leaving_blocks(); }
  bool has_swaps_under_way() const { return swap_space_.is_any_copy_under_way(); }
  const BlockPool& host_pool() const { return swap_space_.host_pool(); }
  // Blocks with at least one pin.
  int32_t num_pinned_blocks() const { return num_pinned_blocks_; }
  // Blocks in the prefix cache, both used and free.
  int32_t num_cached_blocks() const { return cache_.size(); }
  int64_t num_lookups() const { return cache_.num_lookups(); }
  // Counts of operations on device blocks since construction.
  struct Operations {
    int64_t num_allocated = 0;  // taken from the free list
    int64_t num_evicted = 0;    // allocated while still in the prefix cache
    int64_t num_found = 0;      // references that ShareCached took to cached blocks
    int64_t num_forked = 0;     // references that Fork took to a parent's blocks
  };
  const Operations& operations() const { return operations_; }
  // Records cache events from now on. REQUIRES: the prefix cache is empty.
  void KeepCacheEvents();
  bool keeps_cache_events() const { return cache_events_.is_kept(); }
  // Returns the events since the last call, in order.
  std::vector<CacheEvent> TakeCacheEvents() { return cache_events_.Take(); }

  // Returns the hash that the block is listed under; nullopt if it is not in the prefix cache.
  std::optional<BlockHash> HashOf(BlockId block_id) const { return cache_.HashOf(block_id); }

  // Contents of all blocks in tables.
  struct Occupancy {
    int32_t num_held_blocks = 0;    // blocks in at least one table
    int64_t num_stored_tokens = 0;  // tokens in held blocks, each shared block counted once
    int64_t num_table_blocks = 0;   // held blocks, each counted once per table
  };
  // Counts the contents of blocks in tables. REQUIRES: tables are all the tables in use, in any
  // order. O(tables + leaving blocks).
  Occupancy CountTokens(std::span<const BlockTable* const> tables) const;

  // Returns states by block id, with the null block as free. O(blocks + leaving blocks).
  std::vector<BlockState> BlockStates() const;

  // Aborts if an invariant is broken, with a message that names it. REQUIRES: tables are all the
  // tables in use, in any order. O(blocks + table entries).
  void CheckInvariants(std::span<const BlockTable* const> tables,
                       std::span<const HostTable* const> host_tables = {}) const;

 private:
  void CheckOccupancy(std::span<const BlockTable* const> tables) const;
  int32_t num_front_pages() const { return DivCeil(kNumFrontBlocks, pool_.blocks_per_page()); }

  // Takes blocks from the pool, behind the first num_kept whole pages. The caller must call Unlist
  // for each block, because its contents will change.
  [[nodiscard]] bool Allocate(int32_t num_kept, int32_t num_blocks, std::vector<BlockId>& out);
  // Takes a device block for each of host_blocks. Appends the blocks to `out` in the order of
  // host_blocks. If a page holds several blocks, each table of the group still gets its blocks in
  // page order. The caller must call Unlist for each block.
  [[nodiscard]] bool AllocateInOrder(std::span<const SwapTables> group,
                                     const SwapSpace::HostBlocks& host_blocks,
                                     std::vector<BlockId>& out);
  // Removes the block from the prefix cache, unless it is pinned.
  void Unlist(BlockId block_id);

  int32_t NumPassedBlocks(int32_t num_computed_tokens) const;
  bool IsLastFull(const BlockTable& table) const {
    return table.num_tokens_ == table.num_blocks() * block_size_tokens_;
  }
  int64_t NumStoredTokens(const BlockTable& table) const;

  BlockPool pool_;
  PrefixCache cache_;
  std::vector<int32_t> num_pins_;  // by block id
  int32_t num_pinned_blocks_ = 0;
  SwapSpace swap_space_;
  int32_t block_size_tokens_;
  int32_t sliding_window_;
  int64_t num_stored_tokens_ = 0;
  // published_ and replaced_ concern the step being planned. They are used only if a page holds
  // several blocks.
  std::vector<BlockId> published_;  // blocks that the step computes
  // Blocks that MoveToOwnPage replaced. The manager holds a reference to each until OnStepPlanned.
  std::vector<BlockId> replaced_;
  Operations operations_;
  CacheEventLog cache_events_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_KV_CACHE_MANAGER_H_
