// Pinned prefixes are beginnings of prompts that an operator keeps in the KV cache: a system
// prompt, the examples of a task. An internal request computes a prefix once, and the core holds
// the prefix's blocks from then on. A request of the same cache salt that begins with the prefix
// shares the prefix's full blocks. If the last block (the tail) is partly filled, the request
// copies the leading tokens of the tail that equal its own tokens. With a sliding window only full
// blocks are pinned. Computing the tail would move the window on, and could give back full blocks.
// A request that shares only the full blocks would need these blocks.
//
// Requests can share the blocks of pinned prefixes, but cannot fill these blocks with other tokens.
// So a prefix is refused if all prefixes together would exceed CoreConfig::max_pinned_share of the
// pool. A prefix is also refused if a live request could no longer run to its end. A request is
// refused if it does not fit the pool beside the prefixes.
//
// A prefix outlives its workers: in the next epoch it is computed again, ahead of every later
// request. If the new pool has no room for the prefix, the prefix waits for another epoch.
//
// Thread safety: free functions on the thread that owns the state.
// Cost:          PinPrefix O(tokens of the prefix + prefixes + live requests), UnpinPrefix and
//                OnPrefixComputed O(blocks of the prefix); RestorePrefixes O(live requests +
//                prefixes^2), and O(tokens of all prefixes) if the block size has changed.
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
  // Hashes of the prefix's full blocks, for the block size of CoreState::last_limits. Kept until an
  // epoch has another block size.
  std::vector<BlockHash> block_hashes;
  // Whether blocks are reserved for the prefix in the present epoch or, between epochs, were
  // reserved in the last epoch.
  bool has_room = false;

  // Returns the tokens in the partly filled last block. Returns an empty span if the last block is
  // full, or if limits.sliding_window is set. REQUIRES: block_hashes is set.
  std::span<const TokenId> tail(const StepLimits& limits) const;
  BlockTable table;  // the prefix's blocks while it is pinned, else empty
};

// Prefixes by id. A prefix has the id of the request that computes it.
using PinnedPrefixes = std::map<RequestId, PinnedPrefix>;

// Reserves blocks for a new prefix. If there are workers, also queues the request that computes the
// prefix. REQUIRES: id is greater than the id of every earlier request; token_ids is not empty.
PinResult PinPrefix(CoreState& state,
                    RequestId id,
                    std::vector<TokenId> token_ids,
                    std::string cache_salt);

// Gives back the blocks of the prefix; requests that share these blocks keep them. Returns false if
// there is no such prefix.
bool UnpinPrefix(CoreState& state, RequestId id);

// Returns nullopt if there is no such prefix.
std::optional<PrefixInfo> FindPrefix(const CoreState& state, RequestId id);

// Pins the blocks of a prefix that its request has computed. REQUIRES: the request's whole
// prompt is computed, and the sequence still holds the blocks.
void OnPrefixComputed(CoreState& state, const SequenceGroup& group, const Sequence& sequence);

// Forgets the blocks of all prefixes: they were lost with the workers.
void AbandonPrefixes(CoreState& state);

// Called when an epoch begins. Ends the requests that computed prefixes, and drops all
// reservations, so that client requests are checked against the whole pool.
void EndPrefixRequests(CoreState& state);

// Called after EndPrefixRequests. Starts to compute prefixes, the oldest first, as far as there is
// room. REQUIRES: if the block size has changed, block_hashes were cleared.
void RestorePrefixes(CoreState& state);

// Checks that pinned prefixes hold the blocks of their hashes and tails. Also checks that the
// reserved blocks are exactly the blocks that prefixes hold or will hold.
void CheckPrefixes(const CoreState& state);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_PINNED_PREFIXES_H_
