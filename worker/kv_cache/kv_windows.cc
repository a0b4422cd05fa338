#include "worker/kv_cache/kv_windows.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<KvWindows>> KvWindows::Create(KernelBackend& backend,
                                                             WindowMemory& memory,
                                                             int32_t num_windows,
                                                             int32_t window_blocks,
                                                             int32_t blocks_per_page) {
  const int32_t window_pages = DivCeil(window_blocks, blocks_per_page);
  QUIRE_CHECK(memory.shape().num_places == int64_t{num_windows} * window_pages);
  QUIRE_RETURN_IF_ERROR(memory.Unmap(0, memory.shape().num_places));
  return std::unique_ptr<KvWindows>(
      new KvWindows(backend, memory, num_windows, window_pages, blocks_per_page));
}

KvWindows::KvWindows(KernelBackend& backend,
                     WindowMemory& memory,
                     int32_t num_windows,
                     int32_t window_pages,
                     int32_t blocks_per_page)
    : memory_(memory),
      window_pages_(window_pages),
      blocks_per_page_(blocks_per_page),
      windows_(static_cast<size_t>(num_windows)),
      shown_(static_cast<size_t>(memory.shape().num_places), kNullBlockId),
      is_ahead_(shown_.size(), false),
      mapper_(backend, memory) {}

void KvWindows::Begin(SequenceHandle handle) {
  Window& window = windows_[handle];
  window.num_shown = 0;
  window.is_used = true;
}

void KvWindows::End(SequenceHandle handle) {
  Begin(handle);
  windows_[handle].is_used = false;
}

bool KvWindows::Show(SequenceHandle handle, std::span<const BlockId> block_ids) {
  Window& window = windows_[handle];
  const auto end = static_cast<int32_t>(block_ids.size());
  if (window.num_shown >= end) {
    return true;
  }
  // MapAhead writes a page into shown_ before the page is mapped. So finish these mappings before
  // shown_ is read below.
  StartAhead();
  AwaitAhead();
  const int32_t first = window.num_shown / blocks_per_page_;
  const int32_t first_block = first * blocks_per_page_;
  if (!FindPages(block_ids.subspan(static_cast<size_t>(first_block)))) {
    return false;
  }
  const auto end_page = first + static_cast<int32_t>(pages_.size());
  const auto page_at = [&](int32_t index) { return pages_[static_cast<size_t>(index - first)]; };
  const bool is_first_shown =
      window.num_shown % blocks_per_page_ != 0 && ShownAt(handle, first) == page_at(first);
  for (int32_t index = first + (is_first_shown ? 1 : 0); index < end_page;) {
    const BlockId page = page_at(index);
    int32_t count = 1;
    if (!IsFound(handle, index, page)) {
      while (index + count < end_page && page_at(index + count) == page + count &&
             ShownAt(handle, index + count) != page + count) {
        ++count;
      }
      if (!Map(handle, index, page, count)) {
        return false;
      }
    }
    index += count;
    window.num_shown = std::min(end, index * blocks_per_page_);
  }
  window.num_shown = end;
  return true;
}

bool KvWindows::FindPages(std::span<const BlockId> block_ids) {
  pages_.clear();
  for (size_t i = 0; i < block_ids.size(); ++i) {
    const auto offset = static_cast<BlockId>(i) % blocks_per_page_;
    const BlockId block = block_ids[i];
    if (offset == 0) {
      pages_.push_back(kNullBlockId);
    }
    if (block == kNullBlockId) {
      continue;
    }
    BlockId& page = pages_.back();
    const BlockId expected = page == kNullBlockId ? block / blocks_per_page_ : page;
    if (expected == kNullBlockId || block != expected * blocks_per_page_ + offset) {
      return false;
    }
    page = expected;
  }
  return true;
}

bool KvWindows::IsFound(SequenceHandle handle, int32_t index, BlockId page) {
  if (page == kNullBlockId) {
    return true;
  }
  if (ShownAt(handle, index) != page) {
    return false;
  }
  const auto place = static_cast<size_t>(FirstPlace(handle) + index);
  ++(is_ahead_[place] ? counts_.num_mapped_ahead : counts_.num_found);
  is_ahead_[place] = false;
  return true;
}

bool KvWindows::Map(SequenceHandle handle, int32_t index, BlockId page, int32_t count) {
  if (!MakeRoomFor(NumEmpty(handle, index, count))) {
    return false;
  }
  const bool is_mapped = memory_.Map(FirstPlace(handle) + index, page, count).ok();
  for (int32_t i = 0; i < count; ++i) {
    Note(handle, index + i, is_mapped ? page + i : kNullBlockId);
  }
  counts_.num_mapped += is_mapped ? count : 0;
  return is_mapped;
}

void KvWindows::Note(SequenceHandle handle, int32_t index, BlockId page) {
  const auto place = static_cast<size_t>(FirstPlace(handle) + index);
  is_ahead_[place] = false;
  BlockId& shown = shown_[place];
  const int32_t change = (page != kNullBlockId ? 1 : 0) - (shown != kNullBlockId ? 1 : 0);
  num_mapped_ += change;
  windows_[handle].num_mapped += change;
  shown = page;
}

int64_t KvWindows::NumEmpty(SequenceHandle handle, int32_t index, int32_t count) const {
  const auto first = shown_.begin() + FirstPlace(handle) + index;
  return std::count(first, first + count, kNullBlockId);
}

bool KvWindows::MakeRoomFor(int64_t num_places) {
  const auto num_windows = static_cast<SequenceHandle>(windows_.size());
  for (SequenceHandle handle = 0; handle < num_windows && !HasRoomFor(num_places); ++handle) {
    if (handle != spare_ && !TakeDownUnused(handle)) {
      return false;
    }
  }
  if (!HasRoomFor(num_places) && spare_.has_value() && !TakeDownUnused(*spare_)) {
    return false;
  }
  return HasRoomFor(num_places);
}

bool KvWindows::TakeDownUnused(SequenceHandle handle) {
  const Window& window = windows_[handle];
  return window.is_used || window.num_mapped == 0 || TakeDown(handle);
}

bool KvWindows::TakeDown(SequenceHandle handle) {
  Window& window = windows_[handle];
  if (!memory_.Unmap(FirstPlace(handle), window_pages_).ok()) {
    return false;
  }
  counts_.num_taken_down += window.num_mapped;
  num_mapped_ -= window.num_mapped;
  window = {.is_used = window.is_used};
  std::fill_n(shown_.begin() + FirstPlace(handle), window_pages_, kNullBlockId);
  std::fill_n(is_ahead_.begin() + FirstPlace(handle), window_pages_, false);
  return true;
}

void KvWindows::Expect(SequenceHandle handle, BlockId block) {
  AwaitAhead();
  const int32_t num_shown = windows_[handle].num_shown;
  const int32_t index = num_shown / blocks_per_page_;
  const BlockId page = block / blocks_per_page_;
  const bool begins_page =
      num_shown % blocks_per_page_ == 0 && block % blocks_per_page_ == 0 && page != kNullBlockId;
  if (begins_page && index < window_pages_ && ShownAt(handle, index) != page &&
      HasRoomFor(NumEmpty(handle, index, 1))) {
    MapAhead(handle, index, page, 1);
  }
}

void KvWindows::ExpectBeginning(SequenceHandle handle, std::span<const BlockId> block_ids) {
  AwaitAhead();
  spare_ = handle;
  if (!FindPages(block_ids)) {
    return;
  }
  const auto end =
      static_cast<int32_t>(std::min(pages_.size(), static_cast<size_t>(window_pages_)));
  if (!HasRoomFor(NumEmpty(handle, 0, end))) {
    return;
  }
  windows_[handle].num_shown = 0;
  const auto page_at = [&](int32_t index) { return pages_[static_cast<size_t>(index)]; };
  for (int32_t index = 0; index < end;) {
    int32_t count = 0;
    while (index + count < end && page_at(index + count) == page_at(index) + count &&
           ShownAt(handle, index + count) != page_at(index + count)) {
      ++count;
    }
    if (count > 0) {
      MapAhead(handle, index, page_at(index), count);
    }
    index += std::max(count, 1);
  }
}

void KvWindows::MapAhead(SequenceHandle handle, int32_t index, BlockId page, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    Note(handle, index + i, page + i);
    is_ahead_[static_cast<size_t>(FirstPlace(handle) + index + i)] = true;
  }
  ahead_.push_back({.place = FirstPlace(handle) + index, .block = page, .count = count});
}

void KvWindows::StartAhead() {
  if (!ahead_.empty() && !is_ahead_under_way_) {
    is_ahead_under_way_ = true;
    mapper_.Start(ahead_);
  }
}

void KvWindows::AwaitAhead() {
  if (!is_ahead_under_way_) {
    return;
  }
  is_ahead_under_way_ = false;
  const bool is_mapped = mapper_.Wait();
  for (const MapOrder& order : ahead_) {
    for (int64_t place = order.place; !is_mapped && place < order.place + order.count; ++place) {
      Note(static_cast<SequenceHandle>(place / window_pages_),
           static_cast<int32_t>(place % window_pages_),
           kNullBlockId);
    }
  }
  ahead_.clear();
}

}  // namespace quire
