#include "scheduler/kv_cache/block_pool.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {

BlockPool::BlockPool(int32_t num_blocks) : num_blocks_(num_blocks) {
  InitializeHeads();
  for (BlockId block_id = 1; block_id < num_blocks; ++block_id) {
    PushBack(free_, Place::kFree, block_id);
  }
}

BlockPool::BlockPool(int32_t num_blocks, std::span<const BlockId> free_order)
    : num_blocks_(num_blocks) {
  InitializeHeads();
  QUIRE_CHECK(free_order.size() == static_cast<size_t>(num_usable_blocks()));
  for (BlockId block_id : free_order) {
    QUIRE_CHECK(IsUsable(block_id) && At(block_id).place == Place::kUsed);
    PushBack(free_, Place::kFree, block_id);
  }
}

void BlockPool::InitializeHeads() {
  QUIRE_CHECK(num_blocks_ >= 1);
  records_.resize(static_cast<size_t>(num_blocks_) + 1);
  free_.head = kNullBlockId;
  pending_.head = num_blocks_;
  for (BlockId head : {free_.head, pending_.head}) {
    At(head) = {.ref_count = 0, .place = Place::kListHead, .previous = head, .next = head};
  }
}

bool BlockPool::Allocate(int32_t n, std::vector<BlockId>& out) { return AllocateBehind(0, n, out); }

bool BlockPool::AllocateBehind(int32_t num_kept, int32_t n, std::vector<BlockId>& out) {
  QUIRE_CHECK(n >= 0 && num_kept >= 0);
  if (n > free_.size) {
    return false;
  }
  BlockId block_id = FreeBehind(num_kept);
  for (int32_t i = 0; i < n; ++i) {
    if (block_id == free_.head) {
      block_id = At(free_.head).next;
    }
    const BlockId next = At(block_id).next;
    Take(block_id, out);
    block_id = next;
  }
  return true;
}

void BlockPool::PeekBehind(int32_t num_kept, int32_t n, std::vector<BlockId>& out) const {
  QUIRE_CHECK(n >= 0 && num_kept >= 0);
  BlockId block_id = FreeBehind(num_kept);
  for (int32_t i = 0; i < std::min(n, free_.size); ++i) {
    if (block_id == free_.head) {
      block_id = At(free_.head).next;
    }
    out.push_back(block_id);
    block_id = At(block_id).next;
  }
}

BlockId BlockPool::FreeBehind(int32_t num_kept) const {
  if (num_kept >= free_.size) {
    return free_.head;
  }
  BlockId block_id = At(free_.head).next;
  for (int32_t i = 0; i < num_kept; ++i) {
    block_id = At(block_id).next;
  }
  return block_id;
}

void BlockPool::Take(BlockId block_id, std::vector<BlockId>& out) {
  Unlink(free_, block_id);
  At(block_id).ref_count = 1;
  out.push_back(block_id);
}

void BlockPool::Touch(BlockId block_id) {
  QUIRE_CHECK(IsUsable(block_id));
  Record& record = At(block_id);
  if (record.place == Place::kFree) {
    Unlink(free_, block_id);
  } else if (record.place == Place::kPending) {
    Unlink(pending_, block_id);
  }
  num_shared_blocks_ += ++record.ref_count == 2 ? 1 : 0;
}

void BlockPool::MarkCached(BlockId block_id, bool is_cached) {
  QUIRE_CHECK(IsUsable(block_id));
  Record& record = At(block_id);
  const int32_t change = static_cast<int32_t>(is_cached) - static_cast<int32_t>(record.is_cached);
  record.is_cached = is_cached;
  if (record.place == Place::kFree) {
    free_.num_cached += change;
  } else if (record.place == Place::kPending) {
    pending_.num_cached += change;
  }
}

void BlockPool::Free(BlockId block_id) {
  QUIRE_CHECK(IsUsable(block_id));
  Record& record = At(block_id);
  QUIRE_CHECK(record.ref_count > 0);
  if (--record.ref_count > 0) {
    num_shared_blocks_ -= record.ref_count == 1 ? 1 : 0;
    return;
  }
  if (is_fenced_) {
    PushBack(pending_, Place::kPending, block_id);
  } else {
    PushBack(free_, Place::kFree, block_id);
  }
}

void BlockPool::RaiseFence() {
  QUIRE_CHECK(!is_fenced_);
  is_fenced_ = true;
}

void BlockPool::LowerFence() {
  QUIRE_CHECK(is_fenced_);
  is_fenced_ = false;
  while (pending_.size > 0) {
    BlockId block_id = At(pending_.head).next;
    Unlink(pending_, block_id);
    PushBack(free_, Place::kFree, block_id);
  }
}

void BlockPool::PushBack(List& list, Place place, BlockId block_id) {
  BlockId last = At(list.head).previous;
  Record& record = At(block_id);
  record.place = place;
  record.previous = last;
  record.next = list.head;
  At(last).next = block_id;
  At(list.head).previous = block_id;
  ++list.size;
  list.num_cached += record.is_cached ? 1 : 0;
}

void BlockPool::Unlink(List& list, BlockId block_id) {
  Record& record = At(block_id);
  At(record.previous).next = record.next;
  At(record.next).previous = record.previous;
  record.place = Place::kUsed;
  --list.size;
  list.num_cached -= record.is_cached ? 1 : 0;
}

std::vector<BlockId> BlockPool::FreeListForTest() const {
  std::vector<BlockId> block_ids;
  for (BlockId id = At(free_.head).next; id != free_.head; id = At(id).next) {
    block_ids.push_back(id);
  }
  return block_ids;
}

void BlockPool::CheckInvariants() const {
  // Each list is a closed ring of exactly its own blocks, without duplicates.
  CheckList(free_, Place::kFree);
  CheckList(pending_, Place::kPending);

  // Every usable block is free, used or pending. It is used if and only if it has a reference.
  // (I2 of tests/scheduler/README.md)
  int32_t num_used = 0;
  int32_t num_shared = 0;
  for (BlockId block_id = 1; block_id < num_blocks_; ++block_id) {
    const Record& record = At(block_id);
    QUIRE_CHECK(record.place != Place::kListHead);
    QUIRE_CHECK((record.place == Place::kUsed) == (record.ref_count > 0));
    QUIRE_CHECK(record.ref_count >= 0);
    num_used += record.ref_count > 0 ? 1 : 0;
    num_shared += record.ref_count > 1 ? 1 : 0;
  }
  QUIRE_CHECK_EQ(num_shared, num_shared_blocks_);
  QUIRE_CHECK_EQ(free_.size + pending_.size + num_used, num_usable_blocks());

  // The null block is never referenced.
  QUIRE_CHECK_EQ(At(kNullBlockId).ref_count, 0);

  // A block is pending only while a step is unanswered. (I6 of tests/scheduler/README.md)
  QUIRE_CHECK(is_fenced_ || pending_.size == 0);
}

void BlockPool::CheckList(const List& list, Place place) const {
  int32_t size = 0;
  int32_t num_cached = 0;
  BlockId previous = list.head;
  for (BlockId id = At(list.head).next; id != list.head; id = At(id).next) {
    QUIRE_CHECK(IsUsable(id));
    QUIRE_CHECK(At(id).place == place);
    QUIRE_CHECK_EQ(At(id).previous, previous);
    QUIRE_CHECK(++size <= list.size);  // also ends the walk if the ring is broken
    num_cached += At(id).is_cached ? 1 : 0;
    previous = id;
  }
  QUIRE_CHECK_EQ(At(list.head).previous, previous);
  QUIRE_CHECK_EQ(size, list.size);
  QUIRE_CHECK_EQ(num_cached, list.num_cached);
}

}  // namespace quire
