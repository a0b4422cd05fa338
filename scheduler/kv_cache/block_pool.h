// BlockPool hands out and takes back device blocks by number. It holds no KV data.
//
// A block is free, used (ref_count > 0) or pending. A block becomes pending if it is given back
// while an unanswered step may still touch it. A pending block is not handed out before the step is
// answered.
//
// The free list is intrusive and doubly linked, in eviction order. Blocks are handed out from the
// front of the list and given back to the end, so the block given back last keeps its contents
// longest. Touch takes a block out of the middle of the list in O(1). The null block is the list's
// head, so an empty list needs no special case and the null block is never handed out.
//
// Pages: page i is blocks [i * blocks_per_page, (i + 1) * blocks_per_page). A worker maps whole
// pages. A page is whole if all its blocks are free. The free list holds whole pages, and a second
// list holds the free blocks of the other pages. A table grows by the block behind its last block
// in the same page, if that block is free. Otherwise it takes a block of a whole page or, if no
// page is whole, any free block. With one block a page, the second list is always empty.
//
// Thread safety: not thread-safe; owned by the scheduler loop. Copyable, for exhaustive tests.
// Invariants:    free + used + pending == num_blocks() - 1: every block except the null block is in
//                exactly one of these states.
//                A block is used if and only if its ref_count is positive.
//                The page of the null block, and a last page that the pool's end cuts, are never
//                whole.
//                No block is pending while the fence is down, that is, when every step is answered.
//                num_shared_blocks() blocks have a ref_count above 1; num_free_cached_blocks() free
//                blocks are marked as cached.
// Cost:          O(1) for each block that a call names, plus O(num_kept), plus O(blocks_per_page)
//                for each page that becomes whole or is no longer whole. LowerFence is O(pending
//                blocks).
// Source:        PagedAttention, Kwon et al. 2023, sections 4.2 and 4.4; the flat array with an
//                intrusive free list and a null block is vLLM v1's block_pool.
#ifndef QUIRE_SCHEDULER_KV_CACHE_BLOCK_POOL_H_
#define QUIRE_SCHEDULER_KV_CACHE_BLOCK_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/base/ids.h"

namespace quire {

class BlockPool {
 public:
  // Makes a pool of blocks 1 .. num_blocks - 1, all free, in this order. REQUIRES: num_blocks >= 1;
  // blocks_per_page >= 1.
  explicit BlockPool(int32_t num_blocks, int32_t blocks_per_page = 1);

  // Makes a pool with one block a page, and with the free list in the order of `free_order`.
  // REQUIRES: free_order is a permutation of 1 .. num_blocks - 1.
  BlockPool(int32_t num_blocks, std::span<const BlockId> free_order);

  // Appends n blocks to `out`, which holds the block ids of a table. Each block gets one reference.
  // Whole pages are taken from the front of the free list. Returns false, without a change, if
  // fewer than n blocks are free. REQUIRES: n >= 0.
  [[nodiscard]] bool Allocate(int32_t n, std::vector<BlockId>& out);

  // Like Allocate, but takes the whole pages behind the first num_kept ones, and only then pages
  // from the front. Several calls take the same blocks as one call with the sum of their n.
  // REQUIRES: n >= 0, num_kept >= 0.
  [[nodiscard]] bool AllocateBehind(int32_t num_kept, int32_t n, std::vector<BlockId>& out);

  // Appends to `out` the first block of each of the n whole pages that AllocateBehind would take
  // from next, or of all whole pages if fewer are left. The blocks stay free. REQUIRES: n >= 0,
  // num_kept >= 0.
  void PeekBehind(int32_t num_kept, int32_t n, std::vector<BlockId>& out) const;

  // Returns the block behind the table's last block in the same page, if that block is free and the
  // table's next block belongs there. Returns the null block otherwise.
  BlockId NextInPage(std::span<const BlockId> table) const;

  // Adds a reference. A free or pending block becomes used again and keeps its contents.
  // REQUIRES: 0 < block_id < num_blocks().
  void Touch(BlockId block_id);

  // Removes a reference. If no reference is left, the block goes to the end of the free list or,
  // while the fence is up, becomes pending. REQUIRES: ref_count(block_id) > 0.
  void Free(BlockId block_id);

  // Marks whether the prefix cache lists the block. The mark stays until the next call for this
  // block. The pool uses marks only for its counts.
  void MarkCached(BlockId block_id, bool is_cached);

  // Called when a step is planned. The step may touch any used block, so from now on a block that
  // is given back becomes pending, not free. REQUIRES: the fence is down.
  void RaiseFence();

  // Called when the step is answered. Pending blocks become free, in the order in which they were
  // given back. REQUIRES: the fence is up.
  void LowerFence();

  int32_t num_blocks() const { return num_blocks_; }  // the null block included
  int32_t num_usable_blocks() const { return num_blocks_ - 1; }
  int32_t num_free_blocks() const { return num_free_; }
  int32_t num_free_cached_blocks() const { return num_free_cached_; }
  int32_t blocks_per_page() const { return blocks_per_page_; }
  int32_t num_whole_pages() const { return whole_.size; }  // pages whose blocks are all free
  int32_t num_shared_blocks() const { return num_shared_blocks_; }
  int32_t num_pending_blocks() const { return pending_.size; }
  int32_t num_used_blocks() const { return num_usable_blocks() - num_free_ - pending_.size; }
  bool is_fenced() const { return is_fenced_; }
  int32_t ref_count(BlockId block_id) const {
    QUIRE_CHECK(IsUsable(block_id));
    return At(block_id).ref_count;
  }
  bool is_cached(BlockId block_id) const { return At(block_id).is_cached; }
  bool is_free(BlockId block_id) const { return At(block_id).place == Place::kFree; }

  // Returns the free blocks: first the blocks of whole pages, in the order of the free list, then
  // all others. O(free blocks).
  std::vector<BlockId> FreeListForTest() const;

  // Aborts if an invariant is broken, with a message that names it. O(num_blocks()).
  void CheckInvariants() const;

 private:
  enum class Place : uint8_t { kFree, kUsed, kPending, kListHead };

  struct Record {
    int32_t ref_count = 0;
    Place place = Place::kUsed;
    bool is_cached = false;
    // Neighbors in a list. Not set for used blocks, nor for the later blocks of a whole page: only
    // the page's first block is in a list.
    BlockId previous = kNullBlockId;
    BlockId next = kNullBlockId;
  };

  // A circular list through records_. Its head is a record that belongs to no usable block and
  // links the two ends of the list.
  struct List {
    BlockId head = kNullBlockId;
    int32_t size = 0;
  };

  void InitializeHeads();
  // Returns the first block of page num_kept, counted from 0, in the list of whole free pages.
  // Returns the list's head, which is no block, if the list is not that long.
  BlockId WholeBehind(int32_t num_kept) const;
  void Take(BlockId block_id, std::vector<BlockId>& out);
  // Makes the block free. REQUIRES: the block is in no list.
  void EnterFree(BlockId block_id);
  // Makes a free block used.
  void LeaveFree(BlockId block_id);
  void PushBack(List& list, BlockId block_id);
  void Unlink(List& list, BlockId block_id);
  Record& At(BlockId block_id) { return records_[static_cast<size_t>(block_id)]; }
  const Record& At(BlockId block_id) const { return records_[static_cast<size_t>(block_id)]; }
  bool IsUsable(BlockId block_id) const { return block_id > 0 && block_id < num_blocks_; }
  size_t PageOf(BlockId block_id) const { return static_cast<size_t>(block_id / blocks_per_page_); }
  BlockId FirstInPageOf(BlockId block_id) const { return block_id - block_id % blocks_per_page_; }
  bool IsWhole(size_t page) const { return num_free_in_page_[page] == blocks_per_page_; }
  void CheckList(const List& list, Place place) const;
  void CheckPages() const;

  int32_t num_blocks_;
  int32_t blocks_per_page_;
  std::vector<Record> records_;  // [num_blocks + 2]: by block id, then heads of pending_ and loose_
  std::vector<int32_t> num_free_in_page_;
  List whole_;  // the first block of each whole page
  List loose_;  // the free blocks of other pages
  List pending_;
  int32_t num_free_ = 0;
  int32_t num_free_cached_ = 0;
  int32_t num_shared_blocks_ = 0;
  bool is_fenced_ = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_BLOCK_POOL_H_
