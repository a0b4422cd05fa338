// PrefixCache finds blocks by their contents. A full block is listed under its BlockHash, from the
// step that computes it until KvCacheManager erases it. Most blocks are erased because they are
// handed out for other contents. A block stays listed while it is used, pending or free. If a
// lookup finds a free block, KvCacheManager takes that block from the free list (BlockPool::Touch)
// and uses it again with its contents.
//
// If several blocks have the same contents, only the block inserted first is listed.
//
// Thread safety: not thread-safe; owned by KvCacheManager.
// Invariants:    a block is listed under at most one hash, and a hash names at most one block.
// Cost:          O(1) for each call. The constructor allocates 32 to 36 bytes per block; nothing is
//                allocated later.
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

  // Lists the block, unless it is already listed or another block is listed under this hash.
  // Returns true if this call listed the block.
  bool Insert(BlockId block_id, const BlockHash& hash);

  // Unlists the block, if it is listed.
  void Erase(BlockId block_id);

  // Returns the hash that the block is listed under; nullopt if it is not listed.
  const std::optional<BlockHash>& HashOf(BlockId block_id) const {
    return hash_of_[static_cast<size_t>(block_id)];
  }
  int32_t size() const { return size_; }
  // Number of calls of Find, for tests of the cost of KvCacheManager::Match.
  int64_t num_lookups() const { return num_lookups_; }

  // Aborts if an invariant is broken, with a message that names it.
  void CheckInvariants() const;

 private:
  // Blocks whose hashes have equal low bits form a linked list. Returns the first block of the list
  // for this hash, or kNone if the list is empty.
  BlockId& FirstOf(const BlockHash& hash) { return first_[hash.low & (first_.size() - 1)]; }
  const BlockId& FirstOf(const BlockHash& hash) const {
    return first_[hash.low & (first_.size() - 1)];
  }

  static constexpr BlockId kNone = -1;

  std::vector<BlockId> first_;  // heads of the lists, indexed by a hash's low bits
  std::vector<BlockId> next_;   // for each block: next block of its list, or kNone
  std::vector<std::optional<BlockHash>> hash_of_;  // for each block: hash under which it is listed
  int32_t size_ = 0;
  mutable int64_t num_lookups_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_PREFIX_CACHE_H_
