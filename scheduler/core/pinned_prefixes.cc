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

// Each is a list of tokens, however few blocks it adds to those of others.
constexpr size_t kMaxPrefixes = 256;

// Of its blocks those that a request which begins so still reads: all, without a sliding window.
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

// What computes the prefix, and then a token that nobody hears of.
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

// Whether there is room for the prefix, which has its hashes, beside everything that lives.
PinOutcome CheckRoom(const CoreState& state, RequestId id) {
  const StepLimits& limits = *state.last_limits;
  const PinnedPrefix& prefix = state.prefixes.at(id);
  if (prefix.block_hashes.empty()) {
    return PinOutcome::kTooShort;
  }
  const Request request = RequestFor(id, prefix, limits);
  if (!FitsContext(static_cast<int64_t>(request.prompt_token_ids.size()), limits)) {
    return PinOutcome::kTooLong;
  }
  const double num_allowed = state.config.max_pinned_share * (limits.num_blocks - 1);
  if (state.num_reserved_blocks > num_allowed || !FitsPool(request, 1, state.LimitsFor(request))) {
    return PinOutcome::kExceedsShare;
  }
  const bool all_fit =
      std::all_of(state.groups.begin(), state.groups.end(), [&state](const auto& entry) {
        return FitsEver(*entry.second, state.LimitsFor(entry.second->request()));
      });
  return all_fit ? PinOutcome::kAccepted : PinOutcome::kStarvesRequest;
}

// Reserves what the prefix will hold, if there is room.
PinOutcome Reserve(CoreState& state, RequestId id) {
  PinnedPrefix& prefix = state.prefixes.at(id);
  prefix.block_hashes = HashFullBlocks(state.config.block_hash_key,
                                       prefix.cache_salt,
                                       prefix.token_ids,
                                       state.last_limits->block_size_tokens);
  state.num_reserved_blocks = NumReservedBlocks(state);
  const PinOutcome outcome = CheckRoom(state, id);
  if (outcome != PinOutcome::kAccepted) {
    prefix.block_hashes.clear();
    state.num_reserved_blocks = NumReservedBlocks(state);
  }
  return outcome;
}

// Under first come, first served its request waits in the place of its arrival; under any other
// policy it is ahead of clients, whose later requests are the cheaper for it. REQUIRES: an epoch;
// blocks are reserved.
void Start(CoreState& state, RequestId id) {
  PinnedPrefix& prefix = state.prefixes.at(id);
  auto group = std::make_unique<SequenceGroup>(RequestFor(id, prefix, state.epoch->limits));
  group->SetRank(0);
  state.waiting.Return(*group);
  state.groups.emplace(id, std::move(group));
  prefix.state = PrefixState::kComputing;
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
  for (const auto& [other, prefix] : state.prefixes) {
    if (prefix.token_ids == token_ids && prefix.cache_salt == cache_salt) {
      return {.outcome = PinOutcome::kAlreadyPinned, .id = other};
    }
  }
  if (state.prefixes.size() >= kMaxPrefixes) {
    return {.outcome = PinOutcome::kTooMany};
  }
  PinnedPrefix& prefix = state.prefixes[id];
  prefix.token_ids = std::move(token_ids);
  prefix.cache_salt = std::move(cache_salt);
  const PinOutcome outcome = Reserve(state, id);
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
  state.prefixes.erase(it);
  state.suspects.Forget(id);
  state.num_reserved_blocks = NumReservedBlocks(state);
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
  if (!prefix.block_hashes.empty()) {
    info.num_tokens = NumTokensToHold(prefix, limits);
    info.num_blocks =
        static_cast<int32_t>(HashesToHold(prefix, limits).size()) + NumTailBlocks(prefix, limits);
  }
  return info;
}

void OnPrefixComputed(CoreState& state, const SequenceGroup& group, const Sequence& sequence) {
  PinnedPrefix& prefix = state.prefixes.at(group.id());
  state.suspects.Forget(group.id());  // blocks of another size may have made it shorter
  KvCacheManager& kv_cache = state.epoch->kv_cache;
  // A block of the same contents may have been listed when this sequence computed its own, and
  // handed out since: now this one is listed.
  kv_cache.Publish(sequence.table, sequence.table.num_passed_blocks(), prefix.block_hashes);
  kv_cache.Pin(prefix.block_hashes, prefix.table);
  if (NumTailBlocks(prefix, state.epoch->limits) > 0) {
    kv_cache.PinTail(sequence.table, prefix.table);
  }
  prefix.state = PrefixState::kPinned;
}

int32_t NumReservedBlocks(const CoreState& state, std::optional<RequestId> without_id) {
  std::unordered_set<BlockHash, BlockHashHasher> hashes;
  int32_t num_tails = 0;
  for (const auto& [id, prefix] : state.prefixes) {
    if (id != without_id && !prefix.block_hashes.empty()) {
      num_tails += NumTailBlocks(prefix, *state.last_limits);
      const std::span<const BlockHash> to_hold = HashesToHold(prefix, *state.last_limits);
      hashes.insert(to_hold.begin(), to_hold.end());
    }
  }
  return static_cast<int32_t>(hashes.size()) + num_tails;
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
    prefix.block_hashes.clear();
  }
  state.num_reserved_blocks = 0;
}

void RestorePrefixes(CoreState& state) {
  for (auto& [id, prefix] : state.prefixes) {
    if (Reserve(state, id) == PinOutcome::kAccepted) {
      Start(state, id);
    }
  }
}

void CheckPrefixes(const CoreState& state) {
  if (!state.prefixes.empty()) {
    QUIRE_CHECK_EQ(state.num_reserved_blocks, NumReservedBlocks(state));
  }
  int32_t num_held = 0;
  for (const auto& [id, prefix] : state.prefixes) {
    const bool is_pinned = prefix.state == PrefixState::kPinned;
    QUIRE_CHECK(state.epoch.has_value() || prefix.state == PrefixState::kWaiting);
    QUIRE_CHECK_EQ(is_pinned, !prefix.table.empty());
    num_held += prefix.table.num_blocks() - prefix.table.num_passed_blocks();

    // Whoever begins so finds all of it.
    const auto num_blocks = static_cast<int32_t>(prefix.block_hashes.size());
    QUIRE_CHECK(!is_pinned ||
                state.epoch->kv_cache.Match(prefix.block_hashes).num_blocks == num_blocks);

    // What is being computed has a request, and nothing else has.
    const bool has_request = state.groups.contains(id);
    QUIRE_CHECK(!state.epoch.has_value() ||
                has_request == (prefix.state == PrefixState::kComputing));
  }
  QUIRE_CHECK(!state.epoch.has_value() || state.epoch->kv_cache.num_pinned_blocks() <= num_held);
  QUIRE_CHECK(!state.epoch.has_value() ||
              state.epoch->kv_cache.num_pinned_blocks() <= state.num_reserved_blocks);
}

}  // namespace quire
