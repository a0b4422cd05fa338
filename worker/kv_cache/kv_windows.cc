#include "worker/kv_cache/kv_windows.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<KvWindows>> KvWindows::Create(KernelBackend& backend,
                                                             WindowMemory& memory,
                                                             int32_t num_windows,
                                                             int32_t window_blocks) {
  QUIRE_CHECK(memory.shape().num_places == int64_t{num_windows} * window_blocks);
  QUIRE_RETURN_IF_ERROR(memory.Unmap(0, memory.shape().num_places));
  return std::unique_ptr<KvWindows>(new KvWindows(backend, memory, num_windows, window_blocks));
}

KvWindows::KvWindows(KernelBackend& backend,
                     WindowMemory& memory,
                     int32_t num_windows,
                     int32_t window_blocks)
    : memory_(memory),
      window_blocks_(window_blocks),
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
  // MapAhead writes a block into shown_ before the block is mapped. So map the expected blocks
  // before shown_ is read below.
  StartAhead();
  AwaitAhead();
  const auto block_at = [&](int32_t index) { return block_ids[static_cast<size_t>(index)]; };
  while (window.num_shown < end) {
    const int32_t index = window.num_shown;
    const BlockId block = block_at(index);
    if (IsFound(handle, index, block)) {
      ++window.num_shown;
      continue;
    }
    int32_t count = 1;
    while (index + count < end && block_at(index + count) == block + count &&
           ShownAt(handle, index + count) != block + count) {
      ++count;
    }
    if (!Map(handle, index, block, count)) {
      return false;
    }
    window.num_shown += count;
  }
  return true;
}

bool KvWindows::IsFound(SequenceHandle handle, int32_t index, BlockId block) {
  if (block == kNullBlockId) {
    return true;
  }
  if (ShownAt(handle, index) != block) {
    return false;
  }
  const auto place = static_cast<size_t>(FirstPlace(handle) + index);
  ++(is_ahead_[place] ? counts_.num_mapped_ahead : counts_.num_found);
  is_ahead_[place] = false;
  return true;
}

bool KvWindows::Map(SequenceHandle handle, int32_t index, BlockId block, int32_t count) {
  if (!MakeRoomFor(NumEmpty(handle, index, count))) {
    return false;
  }
  const bool is_mapped = memory_.Map(FirstPlace(handle) + index, block, count).ok();
  for (int32_t i = 0; i < count; ++i) {
    Note(handle, index + i, is_mapped ? block + i : kNullBlockId);
  }
  counts_.num_mapped += is_mapped ? count : 0;
  return is_mapped;
}

void KvWindows::Note(SequenceHandle handle, int32_t index, BlockId block) {
  const auto place = static_cast<size_t>(FirstPlace(handle) + index);
  is_ahead_[place] = false;
  BlockId& shown = shown_[place];
  const int32_t change = (block != kNullBlockId ? 1 : 0) - (shown != kNullBlockId ? 1 : 0);
  num_mapped_ += change;
  windows_[handle].num_mapped += change;
  shown = block;
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
  if (!memory_.Unmap(FirstPlace(handle), window_blocks_).ok()) {
    return false;
  }
  counts_.num_taken_down += window.num_mapped;
  num_mapped_ -= window.num_mapped;
  window = {.is_used = window.is_used};
  std::fill_n(shown_.begin() + FirstPlace(handle), window_blocks_, kNullBlockId);
  std::fill_n(is_ahead_.begin() + FirstPlace(handle), window_blocks_, false);
  return true;
}

void KvWindows::Expect(SequenceHandle handle, BlockId block) {
  AwaitAhead();
  const int32_t index = windows_[handle].num_shown;
  if (index < window_blocks_ && ShownAt(handle, index) != block &&
      HasRoomFor(NumEmpty(handle, index, 1))) {
    MapAhead(handle, index, block, 1);
  }
}

void KvWindows::ExpectBeginning(SequenceHandle handle, std::span<const BlockId> block_ids) {
  AwaitAhead();
  const auto end =
      static_cast<int32_t>(std::min(block_ids.size(), static_cast<size_t>(window_blocks_)));
  spare_ = handle;
  if (!HasRoomFor(NumEmpty(handle, 0, end))) {
    return;
  }
  windows_[handle].num_shown = 0;
  const auto block_at = [&](int32_t index) { return block_ids[static_cast<size_t>(index)]; };
  for (int32_t index = 0; index < end;) {
    int32_t count = 0;
    while (index + count < end && block_at(index + count) == block_at(index) + count &&
           ShownAt(handle, index + count) != block_at(index + count)) {
      ++count;
    }
    if (count > 0) {
      MapAhead(handle, index, block_at(index), count);
    }
    index += std::max(count, 1);
  }
}

void KvWindows::MapAhead(SequenceHandle handle, int32_t index, BlockId block, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    Note(handle, index + i, block + i);
    is_ahead_[static_cast<size_t>(FirstPlace(handle) + index + i)] = true;
  }
  ahead_.push_back({.place = FirstPlace(handle) + index, .block = block, .count = count});
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
      Note(static_cast<SequenceHandle>(place / window_blocks_),
           static_cast<int32_t>(place % window_blocks_),
           kNullBlockId);
    }
  }
  ahead_.clear();
}

}  // namespace quire
