// PrefixSharing lets a sequence begin with full blocks that another sequence computes or has
// computed. The other sequence may belong to the same request, or to a request with the same cache
// salt if both requests use the prefix cache. So the sequences of a group share blocks again after
// a preemption by recomputation. After the full blocks of a pinned prefix, a sequence goes on with
// a copy of the prefix's partly filled last block.
//
// Thread safety: free functions on the thread that owns the state.
// Source:        vLLM has automatic prefix caching. PagedAttention, Kwon et al. 2023, has sharing
//                after preemption in section 4.5, and the copied block in section 4.4, figure 10.
#ifndef QUIRE_SCHEDULER_CORE_PREFIX_SHARING_H_
#define QUIRE_SCHEDULER_CORE_PREFIX_SHARING_H_

#include <cstdint>

#include "scheduler/core/core_state.h"

namespace quire {

// Fills the table of the sequence with the cached blocks of its known tokens. The last token is
// computed in any case, because its logits are needed. REQUIRES: the sequence is running, with an
// empty table.
void BeginWithSharedBlocks(CoreState& state, const SequenceGroup& group, Sequence& sequence);

// The tail of a pinned prefix (its partly filled last block), and how many of the tail's first
// tokens are also the sequence's next tokens.
struct PinnedTail {
  const BlockTable* table = nullptr;  // the prefix's table
  int32_t num_tokens = 0;             // leading equal tokens of the table's last block; 0: no tail
};
// Returns the longest tail that continues the sequence's full blocks. REQUIRES: the sequence has
// taken over shared blocks, and the worker does not know it yet.
PinnedTail FindPinnedTail(const CoreState& state, const SequenceGroup& group, Sequence& sequence);
// Gives the sequence its own copy of the tail's first tail.num_tokens tokens, so that it need not
// compute these tokens.
void BeginWithTail(CoreState& state, const PinnedTail& tail, Sequence& sequence);

// Adds the blocks that the sequence's slice fills to the prefix cache, so that other sequences find
// these blocks. REQUIRES: the sequence has a slice.
void PublishBlocks(CoreState& state, const SequenceGroup& group, Sequence& sequence);

// Returns how many blocks of a waiting group need not come from the free list, because other tables
// hold them or the group's sequences share them. A block counts once for each sequence that shares
// it. O(blocks).
int32_t NumSharedBlocks(const CoreState& state, SequenceGroup& group);
// Upper bound on NumSharedBlocks, and nearly always equal to it. O(sequences^2 log blocks) if the
// tokens are already hashed and no more blocks are held than at the last call.
int32_t NumSharedBlocksAtMost(const CoreState& state, SequenceGroup& group);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PREFIX_SHARING_H_
