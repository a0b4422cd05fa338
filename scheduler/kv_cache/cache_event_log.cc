#include "scheduler/kv_cache/cache_event_log.h"

#include <optional>
#include <string>

namespace quire {

void CacheEventLog::Keep(int32_t num_blocks, int32_t sliding_window) {
  is_told_.assign(static_cast<size_t>(num_blocks), false);
  sliding_window_ = sliding_window;
}

void CacheEventLog::OnListed(BlockId block_id,
                             std::span<const BlockHash> hashes,
                             size_t index,
                             const SharedContents& contents) {
  is_told_[static_cast<size_t>(block_id)] = true;
  const bool follows_last = index > 0 && !events_.empty() &&
                            events_.back().kind == CacheEvent::Kind::kStored &&
                            events_.back().block_hashes.back() == hashes[index - 1];
  if (!follows_last) {
    events_.push_back({.kind = CacheEvent::Kind::kStored,
                       .parent = index > 0 ? std::make_optional(hashes[index - 1]) : std::nullopt,
                       .cache_salt = std::string(contents.cache_salt),
                       .sliding_window = sliding_window_});
  }
  CacheEvent& event = events_.back();
  event.block_hashes.push_back(hashes[index]);
  event.token_ids.insert(
      event.token_ids.end(), contents.token_ids.begin(), contents.token_ids.end());
}

void CacheEventLog::OnUnlisted(BlockId block_id, const BlockHash& hash) {
  if (!is_kept() || !is_told_[static_cast<size_t>(block_id)]) {
    return;
  }
  is_told_[static_cast<size_t>(block_id)] = false;
  if (events_.empty() || events_.back().kind != CacheEvent::Kind::kRemoved) {
    events_.push_back({.kind = CacheEvent::Kind::kRemoved});
  }
  events_.back().block_hashes.push_back(hash);
}

}  // namespace quire
