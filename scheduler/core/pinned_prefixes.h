// Pinned prefixes are beginnings of prompts that an operator keeps in the KV cache: a system
// prompt, the examples of a task. An internal request computes a prefix once, and the core holds
// its blocks from then on. A request of the same cache salt that begins with the prefix shares the
// prefix's full blocks. If the last block is partly filled, the request copies it, as far as their
// tokens are equal. (With a sliding window only full blocks are pinned. Once the last tokens are
// computed, full blocks that a request with a shorter common beginning reads may have been given
// back.)
//
// Requests cannot use the blocks of pinned prefixes for anything else. So a prefix is refused if
// prefixes would exceed CoreConfig::max_pinned_share of the pool, or if a live request could no
// longer run to its end; and a request must fit the pool beside the prefixes.
//
// A prefix outlives its workers: in the next epoch it is computed again, ahead of every later
// request. If the new pool has no room for it, it waits for another one.
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
  // Hashes of its full blocks, under last_limits. They stay while blocks keep their size.
  std::vector<BlockHash> block_hashes;
  bool has_room = false;  // blocks are reserved for it, in this epoch or the last one

  // Tokens in the partly filled last block, if it is held too. REQUIRES: block_hashes is set.
  std::span<const TokenId> tail(const StepLimits& limits) const;
  BlockTable table;  // its blocks while it is pinned, else empty
};

// Prefixes by the id of the request that computes each.
using PinnedPrefixes = std::map<RequestId, PinnedPrefix>;

// REQUIRES: id is greater than that of every request before; token_ids is not empty.
PinResult PinPrefix(CoreState& state,
                    RequestId id,
                    std::vector<TokenId> token_ids,
                    std::string cache_salt);

// Frees the blocks of the prefix; requests that share them keep them. Returns false if there is no
// such prefix.
bool UnpinPrefix(CoreState& state, RequestId id);

// Returns nullopt if there is no such prefix.
std::optional<PrefixInfo> FindPrefix(const CoreState& state, RequestId id);

// Pins the blocks of a prefix that its request has computed. REQUIRES: every token is computed, and
// the sequence still has its blocks.
void OnPrefixComputed(CoreState& state, const SequenceGroup& group, const Sequence& sequence);

// Forgets the blocks of all prefixes: they were lost with the workers.
void AbandonPrefixes(CoreState& state);

// For the start of an epoch. EndPrefixRequests ends the requests that computed prefixes and drops
// all reservations, so that requests are checked without them. RestorePrefixes then starts
// prefixes, the oldest first, as far as there is room. REQUIRES of RestorePrefixes: hashes of
// another block size were cleared.
void EndPrefixRequests(CoreState& state);
void RestorePrefixes(CoreState& state);

// Checks that pinned prefixes hold the blocks of their hashes and tails, and that the reserved
// blocks are those that prefixes hold or will hold.
void CheckPrefixes(const CoreState& state);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PINNED_PREFIXES_H_
