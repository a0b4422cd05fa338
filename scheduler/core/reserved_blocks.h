// ReservedBlocks counts the blocks that pinned prefixes hold or will hold. A block counts once even
// if several prefixes share it. For each prefix, ReservedBlocks also counts the blocks that no
// other prefix needs.
//
// Thread safety: not thread-safe; owned by CoreState.
// Cost:          Add and Remove O(blocks of the prefix); the counts O(log prefixes).
#ifndef QUIRE_SCHEDULER_CORE_RESERVED_BLOCKS_H_
#define QUIRE_SCHEDULER_CORE_RESERVED_BLOCKS_H_

#include <cstdint>
#include <map>
#include <span>

#include "absl/container/flat_hash_map.h"

#include "common/base/ids.h"
#include "scheduler/kv_cache/block_hash.h"

namespace quire {

class ReservedBlocks {
 public:
  // Reserves for the prefix the full blocks with these hashes, and num_tails partly filled blocks,
  // which prefixes never share. REQUIRES: nothing is reserved for the prefix; no hash comes twice.
  void Add(RequestId prefix, std::span<const BlockHash> hashes, int32_t num_tails);

  // REQUIRES: the prefix was added with these hashes.
  void Remove(RequestId prefix, std::span<const BlockHash> hashes);

  void Clear();

  // All blocks that prefixes reserve, each counted once.
  int32_t num_blocks() const { return static_cast<int32_t>(needs_.size()) + num_tails_; }

  // Returns num_blocks() without the blocks that this prefix alone needs. A prefix that was not
  // added needs no blocks.
  int32_t NumWithout(RequestId prefix) const;

  // Total number of blocks that all calls looked at, for tests of the cost of a call.
  int64_t num_looked_at() const { return num_looked_at_; }

 private:
  // The prefixes that need a certain block: how many, and which one if there is only one.
  struct Need {
    int32_t num_prefixes = 0;
    uint64_t ids = 0;  // XOR of the ids of these prefixes, so the id if there is one prefix
  };

  absl::flat_hash_map<BlockHash, Need, BlockHashHasher> needs_;
  // By prefix: the number of blocks that no other prefix needs, tails included.
  std::map<RequestId, int32_t> num_own_;
  int32_t num_tails_ = 0;
  int64_t num_looked_at_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_RESERVED_BLOCKS_H_
