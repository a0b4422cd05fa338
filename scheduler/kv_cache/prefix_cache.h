// PrefixCache finds blocks by what they hold. A block that holds a full block of tokens is listed
// under their hash from the step that computes it until the block is handed out for something else.
// Whether it is used, pending or free in the meantime does not matter: a free block that is found
// is touched, and used again with its contents.
//
// Several blocks may hold the same: the first is listed, the others are not.
//
// Thread safety: not thread-safe; owned by KvCacheManager.
// Invariants:    a block is listed under at most one hash, and a hash names at most one block.
// Cost:          O(1) each.
#ifndef QUIRE_SCHEDULER_KV_CACHE_PREFIX_CACHE_H_
#define QUIRE_SCHEDULER_KV_CACHE_PREFIX_CACHE_H_

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/base/ids.h"
#include "scheduler/kv_cache/block_hash.h"

namespace quire {

class PrefixCache {
 public:
  explicit PrefixCache(int32_t num_blocks) : hash_of_(static_cast<size_t>(num_blocks)) {}

  std::optional<BlockId> Find(const BlockHash& hash) const;

  // Lists the block, unless it is listed or another is under this hash.
  void Insert(BlockId block_id, const BlockHash& hash);

  // The block is about to hold something else. Nothing when it was not listed.
  void Erase(BlockId block_id);

  // What the block is listed under, if it is.
  const std::optional<BlockHash>& HashOf(BlockId block_id) const {
    return hash_of_[static_cast<size_t>(block_id)];
  }
  int32_t size() const { return static_cast<int32_t>(block_of_.size()); }

  // Aborts with the broken invariant.
  void CheckInvariants() const;

 private:
  std::unordered_map<BlockHash, BlockId, BlockHashHasher> block_of_;
  std::vector<std::optional<BlockHash>> hash_of_;  // by block
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_PREFIX_CACHE_H_
