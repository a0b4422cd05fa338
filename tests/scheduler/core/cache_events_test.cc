// Cache events of single cases; random histories are in core_random_test.cc.
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr StepLimits kLimits{.num_blocks = 9,
                             .block_size_tokens = 4,
                             .max_sequences = 4,
                             .max_tokens_per_step = 64,
                             .max_model_len = 60,
                             .vocab_size = 1000};

std::vector<TokenId> Tokens(size_t n, TokenId first = 100) {
  std::vector<TokenId> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class CacheEventsTest : public ::testing::Test {
 protected:
  void BeginEpoch(const StepLimits& limits = kLimits) {
    worker_.emplace(limits);
    core_.BeginEpoch(1, ++group_epoch_, limits);
  }

  // Computes a request of one output token to its end.
  void Run(std::vector<TokenId> prompt, const std::string& salt = "") {
    Request request{.id = RequestId(next_id_++), .prompt_token_ids = std::move(prompt)};
    request.max_tokens = 1;
    request.cache_salt = salt;
    ASSERT_EQ(core_.AddRequest(std::move(request)), AddOutcome::kQueued);
    RunToEnd();
  }
  void RunToEnd() {
    while (const std::optional<StepPlan> plan = core_.PlanStep(0)) {
      const auto result = worker_->Execute(*plan);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_TRUE(core_.ApplyStepResult(*result).ok());
    }
  }

  std::vector<CacheEvent::Kind> TakeKinds() {
    std::vector<CacheEvent::Kind> kinds;
    for (const CacheEvent& event : core_.TakeCacheEvents()) {
      kinds.push_back(event.kind);
    }
    return kinds;
  }

  const Hash128 key_ = {.low = 3, .high = 5};
  SchedulerCore core_{CoreConfig{.watermark = 0.0, .prefix_caching = true, .block_hash_key = key_}};
  std::optional<FakeWorker> worker_;
  uint64_t group_epoch_ = 0;
  uint64_t next_id_ = 1;
};

TEST_F(CacheEventsTest, NoneAreKeptUnlessAskedFor) {
  BeginEpoch();
  Run(Tokens(10));

  EXPECT_THAT(core_.TakeCacheEvents(), IsEmpty());
}

TEST_F(CacheEventsTest, TheStartAndBothEndsOfAnEpochClear) {
  core_.KeepCacheEvents();
  EXPECT_THAT(TakeKinds(), ElementsAre(CacheEvent::Kind::kCleared));
  EXPECT_THAT(TakeKinds(), IsEmpty());

  BeginEpoch();
  Run(Tokens(10));
  EXPECT_THAT(TakeKinds(), ElementsAre(CacheEvent::Kind::kCleared, CacheEvent::Kind::kStored));

  Run(Tokens(10, 500));  // events of a lost epoch are not told
  core_.OnWorkersLost();
  EXPECT_THAT(TakeKinds(), ElementsAre(CacheEvent::Kind::kCleared));
}

TEST_F(CacheEventsTest, BlocksOfAPromptAreOneEvent) {
  core_.KeepCacheEvents();
  BeginEpoch();
  core_.TakeCacheEvents();

  Run(Tokens(14), "salt");

  const std::vector<CacheEvent> events = core_.TakeCacheEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].block_hashes, HashFullBlocks(key_, "salt", Tokens(12), 4));
  EXPECT_EQ(events[0].parent, std::nullopt);
  EXPECT_EQ(events[0].token_ids, Tokens(12));
  EXPECT_EQ(events[0].cache_salt, "salt");
  EXPECT_EQ(events[0].sliding_window, 0);
}

TEST_F(CacheEventsTest, ALongerPromptTellsOfItsNewBlocksBehindTheirParent) {
  core_.KeepCacheEvents();
  BeginEpoch();
  Run(Tokens(8));
  core_.TakeCacheEvents();

  Run(Tokens(14));

  const std::vector<BlockHash> hashes = HashFullBlocks(key_, "", Tokens(12), 4);
  const std::vector<CacheEvent> events = core_.TakeCacheEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_THAT(events[0].block_hashes, ElementsAre(hashes[2]));
  EXPECT_EQ(events[0].parent, hashes[1]);
  EXPECT_EQ(events[0].token_ids, Tokens(4, 108));
}

TEST_F(CacheEventsTest, EventsNameTheModelsSlidingWindow) {
  core_.KeepCacheEvents();
  StepLimits limits = kLimits;
  limits.sliding_window = 6;
  BeginEpoch(limits);
  core_.TakeCacheEvents();

  Run(Tokens(10));

  EXPECT_EQ(core_.TakeCacheEvents().front().sliding_window, 6);
}

TEST_F(CacheEventsTest, PinnedBlocksAreToldOnceAndNotRemoved) {
  core_.KeepCacheEvents();
  BeginEpoch();
  core_.TakeCacheEvents();
  ASSERT_EQ(core_.PinPrefix(RequestId(next_id_++), Tokens(8), "").outcome, PinOutcome::kAccepted);
  RunToEnd();
  EXPECT_THAT(TakeKinds(), ElementsAre(CacheEvent::Kind::kStored));

  for (TokenId first = 200; first < 260; first += 20) {
    Run(Tokens(17, first));  // more than the pool holds
  }

  const std::vector<BlockHash> pinned = HashFullBlocks(key_, "", Tokens(8), 4);
  int32_t num_removed = 0;
  for (const CacheEvent& event : core_.TakeCacheEvents()) {
    for (const BlockHash& hash : event.block_hashes) {
      num_removed += event.kind == CacheEvent::Kind::kRemoved ? 1 : 0;
      EXPECT_THAT(pinned, ::testing::Not(::testing::Contains(hash)));
    }
  }
  EXPECT_GT(num_removed, 0);
}

}  // namespace
}  // namespace quire
