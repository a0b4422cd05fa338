// The blocks that a waiting group will share, and the lookups that it costs to ask.
#include "scheduler/core/prefix_sharing.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/core/invariants.h"
#include "scheduler/core/output_processor.h"
#include "scheduler/core/preemption.h"
#include "scheduler/core/step_planner.h"
#include "tests/support/random.h"

namespace quire {
namespace {

// Looks up each block of each sequence, which gives the number that NumSharedBlocks finds in fewer
// lookups.
int32_t CountSharedBlocks(const CoreState& state, SequenceGroup& group) {
  const bool uses_cache = state.config.prefix_caching && !group.request().bypasses_prefix_cache;
  if (!uses_cache && group.sequences().size() == 1) {
    return 0;
  }
  const KvCacheManager& kv_cache = state.epoch->kv_cache;
  const auto block_size = static_cast<size_t>(kv_cache.block_size_tokens());
  const Hash128& key = state.config.block_hash_key;
  std::unordered_set<BlockHash, BlockHashHasher> seen;
  int32_t num_shared = 0;
  for (const Sequence& sequence : group.sequences()) {
    if (sequence.is_finished()) {
      continue;
    }
    if (group.IsIdle(sequence) || group.WaitsForLeader(sequence)) {
      num_shared += kv_cache.NumBlocksFor(sequence.num_tokens()) - (group.IsIdle(sequence) ? 0 : 1);
      continue;
    }
    const std::vector<TokenId> tokens = group.TokenIdsOf(sequence);
    std::vector<BlockHash> hashes;
    BlockHash parent =
        uses_cache ? RootHash(key, group.request().cache_salt) : PrivateRootHash(key, group.id());
    for (size_t end = block_size; end < tokens.size(); end += block_size) {
      parent = ChainHash(key, parent, std::span(tokens).subspan(end - block_size, block_size));
      hashes.push_back(parent);
    }
    num_shared += kv_cache.Match(hashes).num_held_blocks;
    for (const BlockHash& hash : hashes) {
      const bool is_first = state.epoch->limits.sliding_window > 0 || seen.insert(hash).second;
      num_shared += is_first || kv_cache.IsHeld(hash) ? 0 : 1;
    }
  }
  return num_shared;
}

class SharingHistory {
 public:
  explicit SharingHistory(uint64_t seed)
      : random_(seed), state_(CoreConfig{.watermark = 0.0, .prefix_caching = !random_.OneIn(4)}) {
    BeginEpoch();
  }

  void Run(int32_t num_events) {
    for (int32_t i = 0; i < num_events && !::testing::Test::HasFailure(); ++i) {
      if (random_.OneIn(3)) {
        Add();
      } else if (random_.OneIn(8) && !state_.running.empty() && !state_.step.is_active) {
        Preempt(state_, *state_.running[Below(state_.running.size())]);
      } else if (random_.OneIn(8) && !state_.groups.empty()) {
        EndSequence();
      } else if (random_.OneIn(100)) {
        state_.LoseWorkers();
        BeginEpoch();
      } else if (state_.step.is_active) {
        Answer();
      } else {
        static_cast<void>(StepPlanner(state_).Plan());
      }
      CheckWaiting();
      CheckInvariants(state_);
    }
  }

  int64_t num_shared = 0;
  int64_t num_less = 0;  // than at most

 private:
  size_t Below(size_t count) {
    return static_cast<size_t>(random_.Below(static_cast<int32_t>(count)));
  }

  void BeginEpoch() {
    state_.epoch.emplace(uint64_t{1}, ++group_epoch_, limits_);
    state_.last_limits = limits_;
  }

  // Prompts and outputs are of few tokens, so that many begin alike.
  std::vector<TokenId> Tokens(int32_t count) {
    std::vector<TokenId> tokens(static_cast<size_t>(count), 5);
    if (random_.OneIn(2)) {
      tokens[Below(tokens.size())] = 6;
    }
    return tokens;
  }

  void Add() {
    Request request{.id = RequestId(next_id_++),
                    .prompt_token_ids = Tokens(random_.Between(1, 30))};
    request.num_sequences = random_.Between(1, 3);
    request.max_tokens = 12;
    request.bypasses_prefix_cache = random_.OneIn(6);
    if (random_.OneIn(2)) {
      request.is_resumed = true;
      for (int32_t i = 0; i < request.num_sequences; ++i) {
        request.resumed.push_back({.token_ids = Tokens(random_.Between(1, 11))});
      }
    }
    if (FitsPool(request, request.num_sequences, limits_)) {
      state_.Add(std::move(request));
    }
  }

  void EndSequence() {
    auto place = state_.groups.begin();
    std::advance(place, Below(state_.groups.size()));
    SequenceGroup& group = *place->second;
    const auto live = std::ranges::find_if(
        group.sequences(), [](const Sequence& sequence) { return !sequence.is_finished(); });
    state_.FinishSequence(group, *live, FinishReason::kStop);
  }

  void Answer() {
    StepResult result{.header = state_.step.header, .plan_digest = state_.step.plan_digest};
    for (const UnansweredStep::Slice& slice : state_.step.slices) {
      if (slice.samples) {
        result.sampled.push_back({.handle = slice.handle, .token_id = random_.OneIn(4) ? 6 : 5});
      }
    }
    ProcessResult(state_, result);
    state_.events.clear();
  }

  void CheckWaiting() {
    for (SequenceGroup* group : state_.waiting.groups()) {
      const int32_t expected = CountSharedBlocks(state_, *group);
      const int32_t at_most = NumSharedBlocksAtMost(state_, *group);
      ASSERT_GE(at_most, expected);
      if (random_.OneIn(3)) {  // else the next one at most stands on an older one
        ASSERT_EQ(NumSharedBlocks(state_, *group), expected);
      }
      num_shared += expected;
      num_less += at_most > expected ? 1 : 0;
    }
  }

  Random random_;
  CoreState state_;
  const StepLimits limits_{.num_blocks = random_.Between(16, 50),
                           .block_size_tokens = 4,
                           .max_sequences = 6,
                           .max_tokens_per_step = 20,
                           .max_model_len = 60,
                           .vocab_size = 1000,
                           .sliding_window = random_.OneIn(3) ? random_.Between(1, 20) : 0};
  uint64_t group_epoch_ = 0;
  uint64_t next_id_ = 1;
};

TEST(PrefixSharingTest, CountsWhatEachBlockLookedForByItselfGives) {
  int64_t num_shared = 0;
  int64_t num_less = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    SharingHistory history(seed);
    history.Run(200);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    num_shared += history.num_shared;
    num_less += history.num_less;
  }
  EXPECT_GT(num_shared, 10'000);
  EXPECT_GT(num_less, 100) << "a bound that is never above says nothing";
}

class WaitingForRoomTest : public ::testing::TestWithParam<int32_t> {
 protected:
  static constexpr int32_t kPromptTokens = 801;

  WaitingForRoomTest() {
    state_.epoch.emplace(uint64_t{1}, uint64_t{1}, limits_);
    state_.last_limits = limits_;
  }

  static Request Prompt(uint64_t id, int32_t num_tokens, TokenId token) {
    Request request{.id = RequestId(id)};
    request.prompt_token_ids.assign(static_cast<size_t>(num_tokens), token);
    request.max_tokens = 100;
    return request;
  }

  void Step() {
    ASSERT_TRUE(StepPlanner(state_).Plan().has_value());
    StepResult result{.header = state_.step.header, .plan_digest = state_.step.plan_digest};
    for (const UnansweredStep::Slice& slice : state_.step.slices) {
      if (slice.samples) {
        result.sampled.push_back({.handle = slice.handle, .token_id = 5});
      }
    }
    ProcessResult(state_, result);
  }

  const StepLimits limits_{.num_blocks = 1101,
                           .block_size_tokens = 4,
                           .max_sequences = 40,
                           .max_tokens_per_step = 6000,
                           .max_model_len = 5000,
                           .vocab_size = 1000};
  CoreState state_{CoreConfig{.watermark = 0.0, .prefix_caching = true}};
};

// It shares 200 blocks with a request that runs, and lacks one. As long as nothing changes they are
// not looked for again in every step.
TEST_P(WaitingForRoomTest, CostsALookupASequenceInEachStep) {
  const int32_t num_sequences = GetParam();
  state_.Add(Prompt(1, kPromptTokens, 5));
  state_.Add(Prompt(2, 894 * 4 - 2, 6));  // all blocks but five
  Step();
  ASSERT_EQ(state_.epoch->kv_cache.num_free_blocks(), 5);
  Request waiting = Prompt(3, kPromptTokens, 5);
  waiting.num_sequences = num_sequences;
  waiting.is_resumed = true;
  for (TokenId token = 10; token < 10 + num_sequences; ++token) {
    waiting.resumed.push_back({.token_ids = std::vector<TokenId>(20, token)});
  }
  state_.Add(std::move(waiting));
  Step();
  ASSERT_EQ(state_.waiting.size(), 1) << "it lacks room";
  const int64_t num_lookups_before = state_.epoch->kv_cache.num_lookups();

  for (int32_t i = 0; i < 3; ++i) {
    Step();
  }

  ASSERT_EQ(state_.waiting.size(), 1);
  const int64_t num_lookups = state_.epoch->kv_cache.num_lookups() - num_lookups_before;
  EXPECT_LE(num_lookups, 3 * num_sequences + 10) << "those that run publish blocks, too";
  CheckInvariants(state_);
}

INSTANTIATE_TEST_SUITE_P(Sequences, WaitingForRoomTest, ::testing::Values(1, 4));

}  // namespace
}  // namespace quire
