#include "scheduler/core/reserved_blocks.h"

#include "common/base/check.h"

namespace quire {

void ReservedBlocks::Add(RequestId prefix, std::span<const BlockHash> hashes, int32_t num_tails) {
  num_tails_ += num_tails;
  const auto [own, is_new] = num_own_.emplace(prefix, num_tails);
  QUIRE_CHECK(is_new);
  for (const BlockHash& hash : hashes) {
    Need& need = needs_[hash];
    if (++need.num_prefixes == 1) {
      ++own->second;
    } else if (need.num_prefixes == 2) {
      --num_own_.at(RequestId(need.ids));
    }
    need.ids ^= prefix.value();
  }
  num_looked_at_ += static_cast<int64_t>(hashes.size());
}

void ReservedBlocks::Remove(RequestId prefix, std::span<const BlockHash> hashes) {
  const auto own = num_own_.find(prefix);
  QUIRE_CHECK(own != num_own_.end());
  for (const BlockHash& hash : hashes) {
    const auto place = needs_.find(hash);
    QUIRE_CHECK(place != needs_.end());
    Need& need = place->second;
    need.ids ^= prefix.value();
    if (--need.num_prefixes == 0) {
      --own->second;
      needs_.erase(place);
    } else if (need.num_prefixes == 1) {
      ++num_own_.at(RequestId(need.ids));
    }
  }
  num_looked_at_ += static_cast<int64_t>(hashes.size());
  num_tails_ -= own->second;  // own->second counts only tails by now
  num_own_.erase(own);
}

void ReservedBlocks::Clear() {
  needs_.clear();
  num_own_.clear();
  num_tails_ = 0;
}

int32_t ReservedBlocks::NumWithout(RequestId prefix) const {
  const auto own = num_own_.find(prefix);
  return num_blocks() - (own == num_own_.end() ? 0 : own->second);
}

}  // namespace quire
