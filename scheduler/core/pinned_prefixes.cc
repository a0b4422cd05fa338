#include "scheduler/core/pinned_prefixes.h"

#include <algorithm>
#include <memory>
#include <span>
#include <unordered_set>
#include <utility>

#include "common/base/check.h"
#include "common/model/sliding_window.h"
#include "scheduler/core/admission.h"
#include "scheduler/core/core_state.h"

namespace quire {
namespace {

// Bounds the memory of the token lists. The size of the pool does not bound that memory: prefixes
// can share most of their blocks, but each prefix has its own token list.
constexpr size_t kMaxPrefixes = 256;

// Returns the hashes of the blocks that a request reads if it begins with the prefix. Without a
// sliding window, these are all full blocks of the prefix.
std::span<const BlockHash> HashesToHold(const PinnedPrefix& prefix, const StepLimits& limits) {
  const auto num_blocks = static_cast<int32_t>(prefix.block_hashes.size());
  const int32_t num_passed = NumBlocksBeforeWindow(
      num_blocks * limits.block_size_tokens, limits.sliding_window, limits.block_size_tokens);
  return std::span(prefix.block_hashes).subspan(static_cast<size_t>(num_passed));
}

int32_t NumTailBlocks(const PinnedPrefix& prefix, const StepLimits& limits) {
  return prefix.tail(limits).empty() ? 0 : 1;
}

int32_t NumTokensToHold(const PinnedPrefix& prefix, const StepLimits& limits) {
  const size_t num_full =
      prefix.block_hashes.size() * static_cast<size_t>(limits.block_size_tokens);
  return static_cast<int32_t>(num_full + prefix.tail(limits).size());
}

// Returns the request that computes the prefix. The only output token of this request is dropped.
Request RequestFor(RequestId id, const PinnedPrefix& prefix, const StepLimits& limits) {
  Request request{.id = id};
  request.prompt_token_ids.assign(prefix.token_ids.begin(),
                                  prefix.token_ids.begin() + NumTokensToHold(prefix, limits));
  request.sampling.temperature = 0.0F;
  request.sampling.seed = id.value();
  request.max_tokens = 1;
  request.cache_salt = prefix.cache_salt;
  request.pins_prefix = true;
  return request;
}

// Returns an upper bound on the blocks that any one client request will hold at a time.
int64_t NumBlocksOfLargestRequest(const CoreState& state) {
  int64_t most = 0;
  for (const auto& [id, group] : state.groups) {
    const Request& request = group->request();
    if (!request.pins_prefix) {
      most = std::max(
          most,
          NumBlocksAtMost(
              group->num_live_sequences(), request.num_tokens_at_most(), *state.last_limits));
    }
  }
  return most;
}

// Returns true if the request of the prefix can run beside the blocks reserved for other prefixes.
bool CanBeComputed(const CoreState& state, RequestId id, const PinnedPrefix& prefix) {
  const StepLimits& limits = *state.last_limits;
  const int64_t num_tokens = int64_t{NumTokensToHold(prefix, limits)} + 1;
  return NumBlocksAtMost(1, num_tokens, limits) <=
         limits.num_blocks - 1 - state.reserved_blocks.NumWithout(id);
}

// Checks the prefix itself (length, context, share of the pool). Then checks that every live
// request and every prefix still being computed fits into the blocks that remain. REQUIRES: blocks
// are already reserved for the prefix.
PinOutcome CheckRoom(const CoreState& state, RequestId id, int64_t num_blocks_of_largest_request) {
  const StepLimits& limits = *state.last_limits;
  const PinnedPrefix& prefix = state.prefixes.at(id);
  if (prefix.block_hashes.empty()) {
    return PinOutcome::kTooShort;
  }
  if (!FitsContext(NumTokensToHold(prefix, limits), limits)) {
    return PinOutcome::kTooLong;
  }
  const int32_t num_reserved = state.reserved_blocks.num_blocks();
  const double num_allowed = state.config.max_pinned_share * (limits.num_blocks - 1);
  if (num_reserved > num_allowed || !CanBeComputed(state, id, prefix)) {
    return PinOutcome::kExceedsShare;
  }
  const bool all_fit =
      num_blocks_of_largest_request <= limits.num_blocks - 1 - num_reserved &&
      std::all_of(state.prefixes.begin(), state.prefixes.end(), [&state](const auto& entry) {
        const auto& [other_id, other] = entry;
        return other.state != PrefixState::kComputing || CanBeComputed(state, other_id, other);
      });
  return all_fit ? PinOutcome::kAccepted : PinOutcome::kStarvesRequest;
}

// Undoes Reserve. REQUIRES: blocks are reserved for the prefix.
void Unreserve(CoreState& state, RequestId id) {
  PinnedPrefix& prefix = state.prefixes.at(id);
  state.reserved_blocks.Remove(id, HashesToHold(prefix, *state.last_limits));
  prefix.has_room = false;
}

// Reserves the blocks that the prefix will hold, if there is room. REQUIRES: block_hashes is set.
PinOutcome Reserve(CoreState& state, RequestId id, int64_t num_blocks_of_largest_request) {
  PinnedPrefix& prefix = state.prefixes.at(id);
  const StepLimits& limits = *state.last_limits;
  state.reserved_blocks.Add(id, HashesToHold(prefix, limits), NumTailBlocks(prefix, limits));
  prefix.has_room = true;
  const PinOutcome outcome = CheckRoom(state, id, num_blocks_of_largest_request);
  if (outcome != PinOutcome::kAccepted) {
    Unreserve(state, id);
  }
  return outcome;
}

void HashBlocks(const CoreState& state, PinnedPrefix& prefix) {
  prefix.block_hashes = HashFullBlocks(state.config.block_hash_key,
                                       prefix.cache_salt,
                                       prefix.token_ids,
                                       state.last_limits->block_size_tokens);
}

// Returns true if both prefixes have the same tokens and cache salt. Compares the tokens of full
// blocks by the hash of the last full block, which covers all of them. REQUIRES: block_hashes of
// both prefixes are set.
bool AreSame(const PinnedPrefix& a, const PinnedPrefix& b, int32_t block_size_tokens) {
  const auto behind = [block_size_tokens](const PinnedPrefix& prefix) {
    return std::span(prefix.token_ids)
        .subspan(prefix.block_hashes.size() * static_cast<size_t>(block_size_tokens));
  };
  const auto last = [](const PinnedPrefix& prefix) {
    return prefix.block_hashes.empty() ? BlockHash{} : prefix.block_hashes.back();
  };
  return a.token_ids.size() == b.token_ids.size() && a.cache_salt == b.cache_salt &&
         last(a) == last(b) && std::ranges::equal(behind(a), behind(b));
}

// Queues the request of the prefix. Under first come, first served every rank is 0, so the request
// is served in order of arrival. Under other policies rank 0 usually puts the request ahead of
// client requests. This helps client requests that begin with the prefix, because they share its
// blocks. REQUIRES: an epoch is active; blocks are reserved for the prefix.
void Start(CoreState& state, RequestId id) {
  PinnedPrefix& prefix = state.prefixes.at(id);
  auto group = std::make_unique<SequenceGroup>(RequestFor(id, prefix, state.epoch->limits));
  group->SetRank(0);
  state.waiting.Return(*group);
  state.groups.emplace(id, std::move(group));
  prefix.state = PrefixState::kComputing;
}

// Recounts the reserved blocks, and compares the result with the counts of state.reserved_blocks.
void CheckReservedBlocks(const CoreState& state) {
  const auto count = [&state](std::optional<RequestId> without_id) {
    std::unordered_set<BlockHash, BlockHashHasher> hashes;
    int32_t num_tails = 0;
    for (const auto& [id, prefix] : state.prefixes) {
      if (id != without_id && prefix.has_room) {
        num_tails += NumTailBlocks(prefix, *state.last_limits);
        const std::span<const BlockHash> to_hold = HashesToHold(prefix, *state.last_limits);
        hashes.insert(to_hold.begin(), to_hold.end());
      }
    }
    return static_cast<int32_t>(hashes.size()) + num_tails;
  };
  QUIRE_CHECK_EQ(state.reserved_blocks.num_blocks(), count(std::nullopt));
  for (const auto& [id, prefix] : state.prefixes) {
    QUIRE_CHECK_EQ(state.reserved_blocks.NumWithout(id), count(id));
  }
}

}  // namespace

std::span<const TokenId> PinnedPrefix::tail(const StepLimits& limits) const {
  const std::span<const TokenId> behind = std::span(token_ids).subspan(
      block_hashes.size() * static_cast<size_t>(limits.block_size_tokens));
  return behind.first(limits.sliding_window > 0 ? 0 : behind.size());
}

PinResult PinPrefix(CoreState& state,
                    RequestId id,
                    std::vector<TokenId> token_ids,
                    std::string cache_salt) {
  QUIRE_CHECK(!token_ids.empty());
  QUIRE_CHECK(!state.last_request_id.has_value() || *state.last_request_id < id);
  if (!state.config.prefix_caching) {
    return {.outcome = PinOutcome::kDisabled};
  }
  if (!state.last_limits.has_value()) {
    return {.outcome = PinOutcome::kNoLimits};
  }
  PinnedPrefix prefix{.token_ids = std::move(token_ids), .cache_salt = std::move(cache_salt)};
  HashBlocks(state, prefix);
  for (const auto& [other_id, other] : state.prefixes) {
    if (AreSame(other, prefix, state.last_limits->block_size_tokens)) {
      return {.outcome = PinOutcome::kAlreadyPinned, .id = other_id};
    }
  }
  if (state.prefixes.size() >= kMaxPrefixes) {
    return {.outcome = PinOutcome::kTooMany};
  }
  state.prefixes.emplace(id, std::move(prefix));
  const PinOutcome outcome = Reserve(state, id, NumBlocksOfLargestRequest(state));
  if (outcome != PinOutcome::kAccepted) {
    state.prefixes.erase(id);
    return {.outcome = outcome};
  }
  state.last_request_id = id;
  if (state.epoch.has_value()) {
    Start(state, id);
  }
  return {.outcome = outcome, .id = id};
}

bool UnpinPrefix(CoreState& state, RequestId id) {
  auto it = state.prefixes.find(id);
  if (it == state.prefixes.end()) {
    return false;
  }
  if (it->second.state == PrefixState::kPinned) {
    state.epoch->kv_cache.Unpin(it->second.table);
  } else if (SequenceGroup* group = state.Find(id)) {
    state.FinishGroup(*group, FinishReason::kAborted);
  }
  if (it->second.has_room) {
    Unreserve(state, id);
  }
  state.prefixes.erase(it);
  state.suspects.Forget(id);
  return true;
}

std::optional<PrefixInfo> FindPrefix(const CoreState& state, RequestId id) {
  auto it = state.prefixes.find(id);
  if (it == state.prefixes.end()) {
    return std::nullopt;
  }
  const PinnedPrefix& prefix = it->second;
  const StepLimits& limits = *state.last_limits;
  PrefixInfo info = {.id = id, .state = prefix.state};
  if (prefix.has_room) {
    info.num_tokens = NumTokensToHold(prefix, limits);
    info.num_blocks =
        static_cast<int32_t>(HashesToHold(prefix, limits).size()) + NumTailBlocks(prefix, limits);
  }
  return info;
}

void OnPrefixComputed(CoreState& state, const SequenceGroup& group, const Sequence& sequence) {
  PinnedPrefix& prefix = state.prefixes.at(group.id());
  // The whole prefix was computed without a crash, so its request is no suspect any more.
  // OnComputed does not always clear the request: in an epoch with another block size, the computed
  // part of the prefix can end before the suspected tokens do.
  state.suspects.Forget(group.id());
  KvCacheManager& kv_cache = state.epoch->kv_cache;
  // When this sequence computed a block, the prefix cache may have listed another block with the
  // same contents. The other block may have been reused since. So Publish now lists the blocks of
  // this sequence.
  const int32_t first_block = sequence.table.num_passed_blocks();
  const auto first_token =
      static_cast<size_t>(first_block) * static_cast<size_t>(kv_cache.block_size_tokens());
  const SharedContents contents = {.token_ids = std::span(prefix.token_ids).subspan(first_token),
                                   .cache_salt = prefix.cache_salt};
  kv_cache.Publish(sequence.table, first_block, prefix.block_hashes, &contents);
  kv_cache.Pin(prefix.block_hashes, prefix.table);
  if (NumTailBlocks(prefix, state.epoch->limits) > 0) {
    kv_cache.PinTail(sequence.table, prefix.table);
  }
  prefix.state = PrefixState::kPinned;
}

void AbandonPrefixes(CoreState& state) {
  for (auto& [id, prefix] : state.prefixes) {
    prefix.table.Abandon();
    prefix.state = PrefixState::kWaiting;
  }
}

void EndPrefixRequests(CoreState& state) {
  for (auto& [id, prefix] : state.prefixes) {
    if (SequenceGroup* group = state.Find(id)) {
      state.FinishGroup(*group, FinishReason::kAborted);
    }
    prefix.has_room = false;
  }
  state.reserved_blocks.Clear();
}

void RestorePrefixes(CoreState& state) {
  const int64_t num_blocks_of_largest_request = NumBlocksOfLargestRequest(state);
  for (auto& [id, prefix] : state.prefixes) {
    if (prefix.block_hashes.empty()) {
      HashBlocks(state, prefix);
    }
    if (Reserve(state, id, num_blocks_of_largest_request) == PinOutcome::kAccepted) {
      Start(state, id);
    }
  }
}

void CheckPrefixes(const CoreState& state) {
  CheckReservedBlocks(state);
  int32_t num_held = 0;
  for (const auto& [id, prefix] : state.prefixes) {
    const bool is_pinned = prefix.state == PrefixState::kPinned;
    QUIRE_CHECK(state.epoch.has_value() || prefix.state == PrefixState::kWaiting);
    QUIRE_CHECK_EQ(is_pinned, !prefix.table.empty());
    num_held += prefix.table.num_blocks() - prefix.table.num_passed_blocks();

    // A request that begins with a pinned prefix finds all full blocks of the prefix.
    const auto num_blocks = static_cast<int32_t>(prefix.block_hashes.size());
    QUIRE_CHECK(!is_pinned ||
                state.epoch->kv_cache.Match(prefix.block_hashes).num_blocks == num_blocks);

    // A prefix has a request exactly while it is being computed.
    const bool has_request = state.groups.contains(id);
    QUIRE_CHECK(!state.epoch.has_value() ||
                has_request == (prefix.state == PrefixState::kComputing));
  }
  QUIRE_CHECK(!state.epoch.has_value() || state.epoch->kv_cache.num_pinned_blocks() <= num_held);
  QUIRE_CHECK(!state.epoch.has_value() ||
              state.epoch->kv_cache.num_pinned_blocks() <= state.reserved_blocks.num_blocks());
}

}  // namespace quire
