#include "scheduler/core/prefix_sharing.h"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <vector>

namespace quire {
namespace {

bool UsesPrefixCache(const CoreState& state, const SequenceGroup& group) {
  return state.config.prefix_caching && !group.request().bypasses_prefix_cache;
}

bool SharesBlocks(const CoreState& state, const SequenceGroup& group) {
  return UsesPrefixCache(state, group) || group.sequences().size() > 1;
}

TokenId TokenAt(const SequenceGroup& group, const Sequence& sequence, int32_t position) {
  const int32_t num_prompt_tokens = sequence.num_prompt_tokens();
  return position < num_prompt_tokens
             ? group.request().prompt_token_ids[static_cast<size_t>(position)]
             : sequence.output_token_ids()[static_cast<size_t>(position - num_prompt_tokens)];
}

// The hashes of the first num_blocks blocks, which are full.
std::span<const BlockHash> HashBlocks(const CoreState& state,
                                      const SequenceGroup& group,
                                      Sequence& sequence,
                                      int32_t num_blocks) {
  const Hash128& key = state.config.block_hash_key;
  const int32_t block_size = state.epoch->kv_cache.block_size_tokens();
  std::vector<TokenId> tokens(static_cast<size_t>(block_size));
  for (auto i = static_cast<int32_t>(sequence.block_hashes.size()); i < num_blocks; ++i) {
    for (int32_t k = 0; k < block_size; ++k) {
      tokens[static_cast<size_t>(k)] = TokenAt(group, sequence, i * block_size + k);
    }
    const BlockHash root = UsesPrefixCache(state, group) ? RootHash(key, group.request().cache_salt)
                                                         : PrivateRootHash(key, group.id());
    const BlockHash parent = i == 0 ? root : sequence.block_hashes.back();
    sequence.block_hashes.push_back(ChainHash(key, parent, tokens));
  }
  return std::span(sequence.block_hashes).first(static_cast<size_t>(num_blocks));
}

// Of the blocks that may be taken from others.
std::span<const BlockHash> HashPrefix(const CoreState& state,
                                      const SequenceGroup& group,
                                      Sequence& sequence) {
  const int32_t block_size = state.epoch->kv_cache.block_size_tokens();
  return HashBlocks(state, group, sequence, (sequence.num_tokens() - 1) / block_size);
}

}  // namespace

void BeginWithSharedBlocks(CoreState& state, const SequenceGroup& group, Sequence& sequence) {
  if (!SharesBlocks(state, group)) {
    return;
  }
  KvCacheManager& kv_cache = state.epoch->kv_cache;
  const std::span<const BlockHash> hashes = HashPrefix(state, group, sequence);
  const PrefixMatch match = kv_cache.Match(hashes);
  if (match.num_blocks > 0) {
    kv_cache.ShareCached(hashes.first(static_cast<size_t>(match.num_blocks)), sequence.table);
    sequence.BeginWithCached(sequence.table.num_tokens());
  }
  if (UsesPrefixCache(state, group)) {
    state.counters.num_prefix_queried_tokens += sequence.num_tokens();
    state.counters.num_prefix_hit_tokens += sequence.num_computed_tokens();
  }
}

PinnedTail FindPinnedTail(const CoreState& state, const SequenceGroup& group, Sequence& sequence) {
  PinnedTail longest;
  const BlockTable& table = sequence.table;
  if (state.prefixes.empty() || table.empty() || !UsesPrefixCache(state, group)) {
    return longest;
  }
  const BlockHash last = HashBlocks(state, group, sequence, table.num_blocks()).back();
  const int32_t num_wanted = sequence.num_tokens() - 1 - table.num_tokens();
  for (const auto& [id, prefix] : state.prefixes) {
    if (prefix.state != PrefixState::kPinned || prefix.block_hashes.back() != last) {
      continue;
    }
    const std::span<const TokenId> tail = prefix.tail(state.epoch->limits);
    const int32_t num_at_most = std::min(num_wanted, static_cast<int32_t>(tail.size()));
    int32_t num_equal = 0;
    while (num_equal < num_at_most &&
           tail[static_cast<size_t>(num_equal)] ==
               TokenAt(group, sequence, table.num_tokens() + num_equal)) {
      ++num_equal;
    }
    if (num_equal > longest.num_tokens) {
      longest = {.table = &prefix.table, .num_tokens = num_equal};
    }
  }
  return longest;
}

void BeginWithTail(CoreState& state, const PinnedTail& tail, Sequence& sequence) {
  const CopiedBlock copy =
      state.epoch->kv_cache.CopyTail(*tail.table, tail.num_tokens, sequence.table);
  state.step.copies.push_back({.src = copy.src, .dst = copy.dst});
  ++state.counters.num_blocks_copied;
  sequence.BeginWithCached(sequence.table.num_tokens());
  state.counters.num_prefix_hit_tokens += tail.num_tokens;
}

void PublishBlocks(CoreState& state, const SequenceGroup& group, Sequence& sequence) {
  if (!SharesBlocks(state, group)) {
    return;
  }
  const int32_t block_size = state.epoch->kv_cache.block_size_tokens();
  const int32_t num_full = sequence.table.num_tokens() / block_size;
  const int32_t num_full_before = sequence.num_computed_tokens() / block_size;
  if (num_full > num_full_before) {
    state.epoch->kv_cache.Publish(
        sequence.table, num_full_before, HashBlocks(state, group, sequence, num_full));
  }
}

int32_t NumSharedBlocks(const CoreState& state, SequenceGroup& group) {
  if (!SharesBlocks(state, group)) {
    return 0;
  }
  const KvCacheManager& kv_cache = state.epoch->kv_cache;
  std::unordered_set<BlockHash, BlockHashHasher> seen;  // of sequences before
  int32_t num_shared = 0;
  for (Sequence& sequence : group.sequences()) {
    if (sequence.is_finished()) {
      continue;
    }
    if (group.IsIdle(sequence) || group.WaitsForLeader(sequence)) {
      // A fork of the leader takes one block: its own copy of the last one, or the next.
      const int32_t num_own = group.IsIdle(sequence) ? 0 : 1;
      num_shared += kv_cache.NumBlocksFor(sequence.num_tokens()) - num_own;
      continue;
    }
    const std::span<const BlockHash> hashes = HashPrefix(state, group, sequence);
    const PrefixMatch match = kv_cache.Match(hashes);
    num_shared += match.num_held_blocks;
    if (state.epoch->limits.sliding_window > 0) {
      continue;  // what a sequence before it computes may not be all that this one reads
    }
    for (const BlockHash& hash : hashes) {
      const bool is_first = seen.insert(hash).second;
      num_shared += is_first || kv_cache.IsHeld(hash) ? 0 : 1;
    }
  }
  return num_shared;
}

}  // namespace quire
