#include "scheduler/kv_cache/prefix_cache.h"

#include <bit>
#include <utility>

#include "common/base/check.h"

namespace quire {

PrefixCache::PrefixCache(int32_t num_blocks)
    : first_(std::bit_ceil(static_cast<size_t>(num_blocks)), kNone),
      next_(static_cast<size_t>(num_blocks), kNone),
      hash_of_(static_cast<size_t>(num_blocks)) {}

std::optional<BlockId> PrefixCache::Find(const BlockHash& hash) const {
  ++num_lookups_;
  BlockId block_id = FirstOf(hash);
  while (block_id != kNone && HashOf(block_id) != hash) {
    block_id = next_[static_cast<size_t>(block_id)];
  }
  return block_id == kNone ? std::nullopt : std::make_optional(block_id);
}

bool PrefixCache::Insert(BlockId block_id, const BlockHash& hash) {
  std::optional<BlockHash>& listed = hash_of_[static_cast<size_t>(block_id)];
  if (listed.has_value() || Find(hash).has_value()) {
    return false;
  }
  listed = hash;
  next_[static_cast<size_t>(block_id)] = std::exchange(FirstOf(hash), block_id);
  ++size_;
  return true;
}

void PrefixCache::Erase(BlockId block_id) {
  std::optional<BlockHash>& listed = hash_of_[static_cast<size_t>(block_id)];
  if (!listed.has_value()) {
    return;
  }
  BlockId* place = &FirstOf(*listed);
  while (*place != block_id) {
    place = &next_[static_cast<size_t>(*place)];
  }
  *place = std::exchange(next_[static_cast<size_t>(block_id)], kNone);
  listed.reset();
  --size_;
}

void PrefixCache::CheckInvariants() const {
  int32_t num_listed = 0;
  for (size_t i = 0; i < hash_of_.size(); ++i) {
    if (hash_of_[i].has_value()) {
      QUIRE_CHECK(Find(*hash_of_[i]) == static_cast<BlockId>(i));
      ++num_listed;
    } else {
      QUIRE_CHECK(next_[i] == kNone);
    }
  }
  QUIRE_CHECK_EQ(num_listed, size_);
}

}  // namespace quire
