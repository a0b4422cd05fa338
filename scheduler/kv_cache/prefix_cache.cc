#include "scheduler/kv_cache/prefix_cache.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {

std::optional<BlockId> PrefixCache::Find(const BlockHash& hash) const {
  auto found = block_of_.find(hash);
  return found == block_of_.end() ? std::nullopt : std::optional<BlockId>(found->second);
}

void PrefixCache::Insert(BlockId block_id, const BlockHash& hash) {
  std::optional<BlockHash>& listed = hash_of_[static_cast<size_t>(block_id)];
  if (!listed.has_value() && block_of_.try_emplace(hash, block_id).second) {
    listed = hash;
  }
}

void PrefixCache::Erase(BlockId block_id) {
  std::optional<BlockHash>& listed = hash_of_[static_cast<size_t>(block_id)];
  if (listed.has_value()) {
    block_of_.erase(*listed);
    listed.reset();
  }
}

void PrefixCache::CheckInvariants() const {
  for (const auto& [hash, block_id] : block_of_) {
    QUIRE_CHECK(hash_of_[static_cast<size_t>(block_id)] == hash);
  }
  auto is_listed = [](const auto& hash) { return hash.has_value(); };
  QUIRE_CHECK_EQ(static_cast<size_t>(std::count_if(hash_of_.begin(), hash_of_.end(), is_listed)),
                 block_of_.size());
}

}  // namespace quire
