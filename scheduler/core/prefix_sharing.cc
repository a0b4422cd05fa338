#include "scheduler/core/prefix_sharing.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "common/model/sliding_window.h"

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

// Returns the hash from which the hash of the first block is chained.
BlockHash RootOf(const CoreState& state, const SequenceGroup& group) {
  const Hash128& key = state.config.block_hash_key;
  return UsesPrefixCache(state, group) ? RootHash(key, group.request().cache_salt)
                                       : PrivateRootHash(key, group.id());
}

// Returns the hashes of the first num_blocks blocks, and computes the missing ones. REQUIRES: the
// sequence has enough tokens to fill these blocks.
std::span<const BlockHash> HashBlocks(const CoreState& state,
                                      const SequenceGroup& group,
                                      Sequence& sequence,
                                      int32_t num_blocks) {
  std::vector<BlockHash>& hashes = sequence.block_hashes;
  const auto num_wanted = static_cast<size_t>(num_blocks);
  if (hashes.size() < num_wanted) {
    const int32_t block_size = state.epoch->kv_cache.block_size_tokens();
    if (hashes.empty()) {  // sequences of a group have their prompt in common
      const std::vector<BlockHash>& first = group.sequences().front().block_hashes;
      const auto num_of_prompt = static_cast<size_t>(sequence.num_prompt_tokens() / block_size);
      const size_t num_common = std::min({num_wanted, num_of_prompt, first.size()});
      hashes.assign(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(num_common));
    }
    std::vector<TokenId> tokens(static_cast<size_t>(block_size));
    BlockHash parent = hashes.empty() ? RootOf(state, group) : hashes.back();
    hashes.reserve(num_wanted);
    for (auto i = static_cast<int32_t>(hashes.size()); i < num_blocks; ++i) {
      for (int32_t k = 0; k < block_size; ++k) {
        tokens[static_cast<size_t>(k)] = TokenAt(group, sequence, i * block_size + k);
      }
      parent = ChainHash(state.config.block_hash_key, parent, tokens);
      hashes.push_back(parent);
    }
  }
  return std::span(hashes).first(num_wanted);
}

// Returns the hashes of the blocks that the sequence may share with other sequences: all full
// blocks before the last token.
std::span<const BlockHash> HashPrefix(const CoreState& state,
                                      const SequenceGroup& group,
                                      Sequence& sequence) {
  const int32_t block_size = state.epoch->kv_cache.block_size_tokens();
  return HashBlocks(state, group, sequence, (sequence.num_tokens() - 1) / block_size);
}

// How the sequences of a waiting group will get the first blocks of their tables.
struct Beginnings {
  std::vector<Sequence*> cache_readers;  // sequences that look for blocks in the prefix cache
  int32_t num_shared = 0;  // blocks that idle and waiting sequences will share with the leader
};

Beginnings BeginningsOf(const CoreState& state, SequenceGroup& group) {
  Beginnings beginnings;
  for (Sequence& sequence : group.sequences()) {
    if (sequence.is_finished()) {
      continue;
    }
    if (group.IsIdle(sequence) || group.WaitsForLeader(sequence)) {
      // An idle sequence takes no new block. A sequence that waits for the leader takes one: a copy
      // of the last shared block if that block is partly filled, else a new block behind the shared
      // blocks.
      const int32_t num_own = group.IsIdle(sequence) ? 0 : 1;
      beginnings.num_shared += state.epoch->kv_cache.NumBlocksFor(sequence.num_tokens()) - num_own;
    } else {
      beginnings.cache_readers.push_back(&sequence);
    }
  }
  return beginnings;
}

// Returns the number of leading hashes that are equal. Hashes are chained, so none is equal after
// the first difference, and binary search finds that difference.
int32_t NumEqual(std::span<const BlockHash> a, std::span<const BlockHash> b) {
  size_t num_equal = 0;
  size_t num_at_most = std::min(a.size(), b.size());
  while (num_equal < num_at_most) {
    const size_t middle = num_equal + (num_at_most - num_equal) / 2;
    if (a[middle] == b[middle]) {
      num_equal = middle + 1;
    } else {
      num_at_most = middle;
    }
  }
  return static_cast<int32_t>(num_equal);
}

// The leading blocks that a sequence has in common with an earlier sequence of its group.
struct CommonBeginning {
  size_t other = 0;  // index of the earlier sequence
  int32_t num_blocks = 0;
};

// Returns the longest beginning in common with an earlier sequence. before: the hashes of each
// earlier sequence.
CommonBeginning FindCommonBeginning(std::span<const std::span<const BlockHash>> before,
                                    std::span<const BlockHash> hashes) {
  CommonBeginning longest;
  for (size_t other = 0; other < before.size(); ++other) {
    const int32_t num_equal = NumEqual(before[other], hashes);
    if (num_equal > longest.num_blocks) {
      longest = {.other = other, .num_blocks = num_equal};
    }
  }
  return longest;
}

// Returns an upper bound on the number of the sequence's blocks before the first block that no
// table holds. Returns 0 if the sequence takes no cached blocks. With a sliding window, returns the
// number of blocks that the window reaches.
int32_t NumHeldAtMost(const CoreState& state,
                      const SequenceGroup& group,
                      std::span<const BlockHash> hashes,
                      Sequence& sequence) {
  if (group.ScoresPrompt(sequence)) {
    return 0;
  }
  const auto num_blocks = static_cast<int32_t>(hashes.size());
  const StepLimits& limits = state.epoch->limits;
  if (limits.sliding_window > 0) {
    return num_blocks - NumBlocksBeforeWindow(num_blocks * limits.block_size_tokens,
                                              limits.sliding_window,
                                              limits.block_size_tokens);
  }
  // Begins where the last call ended, because the blocks before that are nearly always still held.
  int32_t& num_held = sequence.num_blocks_held_at_most;
  num_held = std::min(num_held, num_blocks);
  while (num_held < num_blocks &&
         state.epoch->kv_cache.IsHeld(hashes[static_cast<size_t>(num_held)])) {
    ++num_held;
  }
  return num_held;
}

}  // namespace

void BeginWithSharedBlocks(CoreState& state, const SequenceGroup& group, Sequence& sequence) {
  if (!SharesBlocks(state, group) || group.ScoresPrompt(sequence)) {
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
  if (num_full <= num_full_before) {
    return;
  }
  KvCacheManager& kv_cache = state.epoch->kv_cache;
  const std::span<const BlockHash> hashes = HashBlocks(state, group, sequence, num_full);
  if (!kv_cache.keeps_cache_events() || !UsesPrefixCache(state, group)) {
    kv_cache.Publish(sequence.table, num_full_before, hashes);
    return;
  }
  std::vector<TokenId> token_ids;
  for (int32_t position = num_full_before * block_size; position < num_full * block_size;
       ++position) {
    token_ids.push_back(TokenAt(group, sequence, position));
  }
  const SharedContents contents = {.token_ids = token_ids,
                                   .cache_salt = group.request().cache_salt};
  kv_cache.Publish(sequence.table, num_full_before, hashes, &contents);
}

int32_t NumSharedBlocksAtMost(const CoreState& state, SequenceGroup& group) {
  if (!SharesBlocks(state, group)) {
    return 0;
  }
  const Beginnings beginnings = BeginningsOf(state, group);
  std::vector<std::span<const BlockHash>> before;
  int32_t num_shared = beginnings.num_shared;
  for (Sequence* sequence : beginnings.cache_readers) {
    const std::span<const BlockHash> hashes = HashPrefix(state, group, *sequence);
    const CommonBeginning common = FindCommonBeginning(before, hashes);
    if (common.num_blocks > 0) {
      const int32_t num_held_of_other =
          beginnings.cache_readers[common.other]->num_blocks_held_at_most;
      sequence->num_blocks_held_at_most = std::max(sequence->num_blocks_held_at_most,
                                                   std::min(common.num_blocks, num_held_of_other));
    }
    num_shared += std::max(common.num_blocks, NumHeldAtMost(state, group, hashes, *sequence));
    before.push_back(hashes);
  }
  return num_shared;
}

int32_t NumSharedBlocks(const CoreState& state, SequenceGroup& group) {
  if (!SharesBlocks(state, group)) {
    return 0;
  }
  const Beginnings beginnings = BeginningsOf(state, group);
  const KvCacheManager& kv_cache = state.epoch->kv_cache;
  int32_t num_shared = beginnings.num_shared;
  if (beginnings.cache_readers.size() == 1 || state.epoch->limits.sliding_window > 0) {
    // With a sliding window, an earlier sequence does not always compute every block that a later
    // sequence reads, so only blocks that are held now count.
    for (Sequence* sequence : beginnings.cache_readers) {
      const int32_t num_held =
          group.ScoresPrompt(*sequence)
              ? 0
              : kv_cache.Match(HashPrefix(state, group, *sequence)).num_held_blocks;
      sequence->num_blocks_held_at_most = num_held;
      num_shared += num_held;
    }
    return num_shared;
  }
  std::vector<std::span<const BlockHash>> before;
  std::vector<std::vector<bool>> held_before;  // by earlier sequence, then by block: is it held
  for (Sequence* sequence : beginnings.cache_readers) {
    const std::span<const BlockHash> hashes = HashPrefix(state, group, *sequence);
    // Blocks in common with an earlier sequence were already looked up, and will be shared.
    const CommonBeginning common = FindCommonBeginning(before, hashes);
    std::vector<bool> held(hashes.size());
    for (size_t i = 0; i < held.size(); ++i) {
      held[i] = i < static_cast<size_t>(common.num_blocks)
                    ? held_before[common.other][i]
                    : !group.ScoresPrompt(*sequence) && kv_cache.IsHeld(hashes[i]);
    }
    const auto first_free = std::find(held.begin(), held.end(), false);
    const auto common_end = held.begin() + common.num_blocks;
    sequence->num_blocks_held_at_most = static_cast<int32_t>(first_free - held.begin());
    num_shared += sequence->num_blocks_held_at_most;
    if (first_free < common_end) {
      num_shared += static_cast<int32_t>(std::count(first_free, common_end, false));
    }
    before.push_back(hashes);
    held_before.push_back(std::move(held));
  }
  return num_shared;
}

}  // namespace quire
