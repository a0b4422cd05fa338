// PrefixCache finds blocks by their contents. A block that holds a full block of tokens is listed
// under their hash from the step that computes it until the block is handed out for something else.
// It stays listed while it is used, pending or free: a free block that is found is touched, and
// used again with its contents.
//
// If several blocks have the same contents, only the first is listed.
//
// Thread safety: not thread-safe; owned by KvCacheManager.
// Invariants:    a block is listed under at most one hash, and a hash names at most one block.
// Cost:          O(1) each; 36 to 40 bytes a block from the start, and no allocation afterwards.
#ifndef QUIRE_SCHEDULER_KV_CACHE_PREFIX_CACHE_H_
#define QUIRE_SCHEDULER_KV_CACHE_PREFIX_CACHE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "scheduler/kv_cache/block_hash.h"

namespace quire {

class PrefixCache {
 public:
  explicit PrefixCache(int32_t num_blocks);

  std::optional<BlockId> Find(const BlockHash& hash) const;

  // Lists the block, unless it is listed or another is under this hash.
  void Insert(BlockId block_id, const BlockHash& hash);

  // Unlists the block, if it is listed: it is about to hold something else.
  void Erase(BlockId block_id);

  // The hash that the block is listed under; nullopt if none.
  const std::optional<BlockHash>& HashOf(BlockId block_id) const {
    return hash_of_[static_cast<size_t>(block_id)];
  }
  int32_t size() const { return size_; }
  // Calls of Find, for tests of what Match costs.
  int64_t num_lookups() const { return num_lookups_; }

  // Aborts with the broken invariant.
  void CheckInvariants() const;

 private:
  // The first block of the hash's chain. kNone ends a chain.
  BlockId& FirstOf(const BlockHash& hash) { return first_[hash.low & (first_.size() - 1)]; }
  const BlockId& FirstOf(const BlockHash& hash) const {
    return first_[hash.low & (first_.size() - 1)];
  }

  static constexpr BlockId kNone = -1;

  std::vector<BlockId> first_;                     // heads of chains, by the hash's low bits
  std::vector<BlockId> next_;                      // by block: the next one of its chain
  std::vector<std::optional<BlockHash>> hash_of_;  // by block
  int32_t size_ = 0;
  mutable int64_t num_lookups_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_PREFIX_CACHE_H_
