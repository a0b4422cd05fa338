// Pinned prefixes are beginnings of prompts that an operator keeps in the KV cache: a system
// prompt, the examples of a task. A prefix is computed once, by a request of the core's own, and
// its blocks are held from then on: they are never handed out for something else, and every request
// of the same cache salt that begins so finds them. It shares the full ones. The last one, where it
// is not full, is copied to a block of its own, as far as the request begins like it. (Not with a
// sliding window: when the last tokens are computed, full blocks that a shorter beginning reads may
// have been given back.)
//
// Blocks of pinned prefixes are gone for everybody else. So a prefix is refused that takes more of
// the pool than CoreConfig::max_pinned_share allows, or beside which a live request could not be
// run to its end; and a request must fit the pool beside the prefixes.
//
// A prefix outlives its workers: in the next epoch it is computed again, ahead of every request
// that came after it. Where the new pool has no room for it, it waits for another one.
//
// Thread safety: free functions; the state is not thread-safe.
// Cost:          PinPrefix O(its tokens + prefixes + live requests), UnpinPrefix and
//                OnPrefixComputed O(its blocks); RestorePrefixes O(live requests + tokens of all
//                prefixes + prefixes^2), without the tokens where blocks keep their size.
// Source:        PagedAttention, Kwon et al. 2023, section 4.4, figure 10 (shared prefix).
#ifndef QUIRE_SCHEDULER_CORE_PINNED_PREFIXES_H_
#define QUIRE_SCHEDULER_CORE_PINNED_PREFIXES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/step/step_limits.h"
#include "scheduler/core/prefix_info.h"
#include "scheduler/core/sequence_group.h"
#include "scheduler/kv_cache/block_hash.h"
#include "scheduler/kv_cache/block_table.h"

namespace quire {

struct CoreState;

struct PinnedPrefix {
  std::vector<TokenId> token_ids;
  std::string cache_salt;
  PrefixState state = PrefixState::kWaiting;
  // The hashes of its full blocks, under last_limits. They stay while blocks keep their size.
  std::vector<BlockHash> block_hashes;
  bool has_room = false;  // blocks are reserved for it, in this epoch or the last one

  // Tokens behind the full blocks that are kept too. REQUIRES: it has its hashes.
  std::span<const TokenId> tail(const StepLimits& limits) const;
  BlockTable table;  // while it is pinned
};

// By the id of the request that computes it.
using PinnedPrefixes = std::map<RequestId, PinnedPrefix>;

// REQUIRES: id is greater than that of every request before; token_ids is not empty.
PinResult PinPrefix(CoreState& state,
                    RequestId id,
                    std::vector<TokenId> token_ids,
                    std::string cache_salt);

// Lets the blocks go; who shares them keeps them. False when there is no such prefix.
bool UnpinPrefix(CoreState& state, RequestId id);

// Nothing when there is no such prefix.
std::optional<PrefixInfo> FindPrefix(const CoreState& state, RequestId id);

// The request of a prefix has computed it: from now on the blocks are held. REQUIRES: every token
// is computed, and the sequence still has its blocks.
void OnPrefixComputed(CoreState& state, const SequenceGroup& group, const Sequence& sequence);

// The workers are gone, and the blocks with them.
void AbandonPrefixes(CoreState& state);

// An epoch has begun. What computed prefixes in the last one ends, so that requests are looked at
// without them; then prefixes begin anew, the oldest first, as far as there is room.
// REQUIRES of RestorePrefixes: hashes of blocks of another size are gone.
void EndPrefixRequests(CoreState& state);
void RestorePrefixes(CoreState& state);

// Held blocks are those of its hashes and that of its tail, and what is reserved is what prefixes
// hold or will hold.
void CheckPrefixes(const CoreState& state);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PINNED_PREFIXES_H_
