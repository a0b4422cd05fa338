#include "scheduler/kv_cache/block_pool.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {

BlockPool::BlockPool(int32_t num_blocks, int32_t blocks_per_page)
    : num_blocks_(num_blocks), blocks_per_page_(blocks_per_page) {
  InitializeHeads();
  for (BlockId block_id = 1; block_id < num_blocks; ++block_id) {
    EnterFree(block_id);
  }
}

BlockPool::BlockPool(int32_t num_blocks, std::span<const BlockId> free_order)
    : num_blocks_(num_blocks), blocks_per_page_(1) {
  InitializeHeads();
  QUIRE_CHECK(free_order.size() == static_cast<size_t>(num_usable_blocks()));
  for (BlockId block_id : free_order) {
    QUIRE_CHECK(IsUsable(block_id) && At(block_id).place == Place::kUsed);
    EnterFree(block_id);
  }
}

void BlockPool::InitializeHeads() {
  QUIRE_CHECK(num_blocks_ >= 1 && blocks_per_page_ >= 1);
  records_.resize(static_cast<size_t>(num_blocks_) + 2);
  num_free_in_page_.resize(PageOf(num_blocks_ - 1) + 1);
  whole_.head = kNullBlockId;
  pending_.head = num_blocks_;
  loose_.head = num_blocks_ + 1;
  for (BlockId head : {whole_.head, pending_.head, loose_.head}) {
    At(head) = {.ref_count = 0, .place = Place::kListHead, .previous = head, .next = head};
  }
}

bool BlockPool::Allocate(int32_t n, std::vector<BlockId>& out) { return AllocateBehind(0, n, out); }

bool BlockPool::AllocateBehind(int32_t num_kept, int32_t n, std::vector<BlockId>& out) {
  QUIRE_CHECK(n >= 0 && num_kept >= 0);
  if (n > num_free_) {
    return false;
  }
  BlockId page = WholeBehind(num_kept);
  for (int32_t i = 0; i < n; ++i) {
    if (const BlockId next = NextInPage(out); next != kNullBlockId) {
      Take(next, out);
      continue;
    }
    if (whole_.size == 0) {
      Take(At(loose_.head).next, out);
      continue;
    }
    if (page == whole_.head) {
      page = At(whole_.head).next;
    }
    const BlockId next_page = At(page).next;
    Take(page + static_cast<BlockId>(out.size()) % blocks_per_page_, out);
    page = next_page;
  }
  return true;
}

void BlockPool::PeekBehind(int32_t num_kept, int32_t n, std::vector<BlockId>& out) const {
  QUIRE_CHECK(n >= 0 && num_kept >= 0);
  BlockId page = WholeBehind(num_kept);
  for (int32_t i = 0; i < std::min(n, whole_.size); ++i) {
    if (page == whole_.head) {
      page = At(whole_.head).next;
    }
    out.push_back(page);
    page = At(page).next;
  }
}

BlockId BlockPool::NextInPage(std::span<const BlockId> table) const {
  const auto offset = static_cast<BlockId>(table.size()) % blocks_per_page_;
  if (offset == 0 || table.back() == kNullBlockId ||
      table.back() % blocks_per_page_ != offset - 1) {
    return kNullBlockId;
  }
  const BlockId next = table.back() + 1;
  return IsUsable(next) && is_free(next) ? next : kNullBlockId;
}

BlockId BlockPool::WholeBehind(int32_t num_kept) const {
  if (num_kept >= whole_.size) {
    return whole_.head;
  }
  BlockId page = At(whole_.head).next;
  for (int32_t i = 0; i < num_kept; ++i) {
    page = At(page).next;
  }
  return page;
}

void BlockPool::Take(BlockId block_id, std::vector<BlockId>& out) {
  LeaveFree(block_id);
  At(block_id).ref_count = 1;
  out.push_back(block_id);
}

void BlockPool::EnterFree(BlockId block_id) {
  At(block_id).place = Place::kFree;
  ++num_free_;
  num_free_cached_ += At(block_id).is_cached ? 1 : 0;
  ++num_free_in_page_[PageOf(block_id)];
  if (!IsWhole(PageOf(block_id))) {
    PushBack(loose_, block_id);
    return;
  }
  const BlockId first = FirstInPageOf(block_id);
  for (BlockId id = first; id < first + blocks_per_page_; ++id) {
    if (id != block_id) {
      Unlink(loose_, id);
    }
  }
  PushBack(whole_, first);
}

void BlockPool::LeaveFree(BlockId block_id) {
  if (IsWhole(PageOf(block_id))) {
    const BlockId first = FirstInPageOf(block_id);
    Unlink(whole_, first);
    // Lists the page's last block first. A table that grows in the page needs that block last, so
    // another table should take it before the page's other blocks.
    for (BlockId id = first + blocks_per_page_ - 1; id >= first; --id) {
      if (id != block_id) {
        PushBack(loose_, id);
      }
    }
  } else {
    Unlink(loose_, block_id);
  }
  At(block_id).place = Place::kUsed;
  --num_free_;
  num_free_cached_ -= At(block_id).is_cached ? 1 : 0;
  --num_free_in_page_[PageOf(block_id)];
}

void BlockPool::Touch(BlockId block_id) {
  QUIRE_CHECK(IsUsable(block_id));
  Record& record = At(block_id);
  if (record.place == Place::kFree) {
    LeaveFree(block_id);
  } else if (record.place == Place::kPending) {
    Unlink(pending_, block_id);
    record.place = Place::kUsed;
  }
  num_shared_blocks_ += ++record.ref_count == 2 ? 1 : 0;
}

void BlockPool::MarkCached(BlockId block_id, bool is_cached) {
  QUIRE_CHECK(IsUsable(block_id));
  Record& record = At(block_id);
  const int32_t change = static_cast<int32_t>(is_cached) - static_cast<int32_t>(record.is_cached);
  record.is_cached = is_cached;
  if (record.place == Place::kFree) {
    num_free_cached_ += change;
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
    record.place = Place::kPending;
    PushBack(pending_, block_id);
  } else {
    EnterFree(block_id);
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
    EnterFree(block_id);
  }
}

void BlockPool::PushBack(List& list, BlockId block_id) {
  BlockId last = At(list.head).previous;
  Record& record = At(block_id);
  record.previous = last;
  record.next = list.head;
  At(last).next = block_id;
  At(list.head).previous = block_id;
  ++list.size;
}

void BlockPool::Unlink(List& list, BlockId block_id) {
  Record& record = At(block_id);
  At(record.previous).next = record.next;
  At(record.next).previous = record.previous;
  --list.size;
}

std::vector<BlockId> BlockPool::FreeListForTest() const {
  std::vector<BlockId> block_ids;
  for (BlockId page = At(whole_.head).next; page != whole_.head; page = At(page).next) {
    for (BlockId id = page; id < page + blocks_per_page_; ++id) {
      block_ids.push_back(id);
    }
  }
  for (BlockId id = At(loose_.head).next; id != loose_.head; id = At(id).next) {
    block_ids.push_back(id);
  }
  return block_ids;
}

void BlockPool::CheckInvariants() const {
  // Each list is a closed ring of exactly its own blocks, without duplicates.
  CheckList(whole_, Place::kFree);
  CheckList(loose_, Place::kFree);
  CheckList(pending_, Place::kPending);
  CheckPages();

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
  QUIRE_CHECK_EQ(num_free_ + pending_.size + num_used, num_usable_blocks());

  // The null block is never referenced.
  QUIRE_CHECK_EQ(At(kNullBlockId).ref_count, 0);

  // A block is pending only while a step is unanswered. (I6 of tests/scheduler/README.md)
  QUIRE_CHECK(is_fenced_ || pending_.size == 0);
}

void BlockPool::CheckList(const List& list, Place place) const {
  int32_t size = 0;
  BlockId previous = list.head;
  for (BlockId id = At(list.head).next; id != list.head; id = At(id).next) {
    QUIRE_CHECK(IsUsable(id));
    QUIRE_CHECK(At(id).place == place);
    QUIRE_CHECK_EQ(At(id).previous, previous);
    QUIRE_CHECK(++size <= list.size);  // also ends the walk if the ring is broken
    previous = id;
  }
  QUIRE_CHECK_EQ(At(list.head).previous, previous);
  QUIRE_CHECK_EQ(size, list.size);
}

// Compares the counts of free blocks and the two free lists with the `place` of each block.
void BlockPool::CheckPages() const {
  std::vector<int32_t> num_free_in_page(num_free_in_page_.size(), 0);
  int32_t num_free = 0;
  int32_t num_cached = 0;
  for (BlockId block_id = 1; block_id < num_blocks_; ++block_id) {
    if (is_free(block_id)) {
      ++num_free_in_page[PageOf(block_id)];
      ++num_free;
      num_cached += is_cached(block_id) ? 1 : 0;
    }
  }
  QUIRE_CHECK(num_free_in_page == num_free_in_page_);
  QUIRE_CHECK_EQ(num_free, num_free_);
  QUIRE_CHECK_EQ(num_cached, num_free_cached_);
  QUIRE_CHECK_EQ(whole_.size * blocks_per_page_ + loose_.size, num_free_);
  for (BlockId page = At(whole_.head).next; page != whole_.head; page = At(page).next) {
    QUIRE_CHECK(page % blocks_per_page_ == 0 && IsWhole(PageOf(page)));
  }
  for (BlockId id = At(loose_.head).next; id != loose_.head; id = At(id).next) {
    QUIRE_CHECK(!IsWhole(PageOf(id)));
  }
}

}  // namespace quire
