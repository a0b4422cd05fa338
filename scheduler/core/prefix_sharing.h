// PrefixSharing lets sequences begin with full blocks that somebody else computes or has computed:
// another request of the same salt, if both use the prefix cache, and in any case another sequence
// of the same request. The latter is how a group that was preempted by recomputation gets back the
// sharing that it had. Behind the full blocks of a pinned prefix they go on with a copy of its last
// block.
//
// Thread safety: free functions; the state is not thread-safe.
// Source:        automatic prefix caching is vLLM's; groups that keep their sharing:
//                PagedAttention, Kwon et al. 2023, section 4.5; the copy: section 4.4, figure 10.
#ifndef QUIRE_SCHEDULER_CORE_PREFIX_SHARING_H_
#define QUIRE_SCHEDULER_CORE_PREFIX_SHARING_H_

#include <cstdint>

#include "scheduler/core/core_state.h"

namespace quire {

// A sequence that is about to compute its first token takes all that is there, but for its last
// token, whose logits are wanted. REQUIRES: running with an empty table.
void BeginWithSharedBlocks(CoreState& state, const SequenceGroup& group, Sequence& sequence);

// The rest of a pinned prefix that a sequence goes on with, behind the full blocks with which it
// has begun: the longest.
struct PinnedTail {
  const BlockTable* table = nullptr;  // of the prefix
  int32_t num_tokens = 0;             // of its last block; 0: there is none
};
// REQUIRES: the sequence has begun with shared blocks, and is not introduced.
PinnedTail FindPinnedTail(const CoreState& state, const SequenceGroup& group, Sequence& sequence);
// The sequence has its own copy of it in its table, and need not compute it.
void BeginWithTail(CoreState& state, const PinnedTail& tail, Sequence& sequence);

// From now on others find the blocks that the sequence's slice fills. REQUIRES: it has a slice.
void PublishBlocks(CoreState& state, const SequenceGroup& group, Sequence& sequence);

// Of the blocks that the tokens of a waiting group fill, counted for each sequence: those that it
// need not take from the free list, because others hold them or its sequences share them.
// O(blocks).
int32_t NumSharedBlocks(const CoreState& state, SequenceGroup& group);
// No less than that, and nearly always the same. O(sequences^2 log blocks) once the tokens have
// been hashed, as long as no more blocks are held than when it was asked for last.
int32_t NumSharedBlocksAtMost(const CoreState& state, SequenceGroup& group);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREFIX_SHARING_H_
