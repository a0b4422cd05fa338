#include "scheduler/core/reserved_blocks.h"

#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/core/core_state.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr RequestId kFirst(1);
constexpr RequestId kSecond(2);

std::vector<BlockHash> Hashes(const std::vector<uint64_t>& numbers) {
  std::vector<BlockHash> hashes;
  hashes.reserve(numbers.size());
  for (uint64_t number : numbers) {
    hashes.push_back({.low = number, .high = number});
  }
  return hashes;
}

TEST(ReservedBlocksTest, ASharedBlockCountsOnceAndIsNobodysOwn) {
  ReservedBlocks reserved;
  reserved.Add(kFirst, Hashes({1, 2, 3}), /*num_tails=*/1);
  EXPECT_EQ(reserved.num_blocks(), 4);
  EXPECT_EQ(reserved.NumWithout(kFirst), 0);

  reserved.Add(kSecond, Hashes({1, 2, 4}), /*num_tails=*/0);

  EXPECT_EQ(reserved.num_blocks(), 5);
  EXPECT_EQ(reserved.NumWithout(kFirst), 3);
  EXPECT_EQ(reserved.NumWithout(kSecond), 4);
  EXPECT_EQ(reserved.NumWithout(RequestId(3)), 5) << "nothing is reserved for it";

  reserved.Remove(kFirst, Hashes({1, 2, 3}));

  EXPECT_EQ(reserved.num_blocks(), 3);
  EXPECT_EQ(reserved.NumWithout(kSecond), 0);
}

// As many prefixes as are allowed come and go. Some of them begin alike.
TEST(ReservedBlocksTest, CountsAsASetOfAllHashesDoes) {
  Random random(1);
  ReservedBlocks reserved;
  std::map<RequestId, std::pair<std::vector<BlockHash>, int32_t>> prefixes;
  const auto count = [&prefixes](RequestId without) {
    std::set<uint64_t> hashes;
    int32_t num_tails = 0;
    for (const auto& [id, prefix] : prefixes) {
      for (const BlockHash& hash : prefix.first) {
        if (id != without) {
          hashes.insert(hash.low);
        }
      }
      num_tails += id == without ? 0 : prefix.second;
    }
    return static_cast<int32_t>(hashes.size()) + num_tails;
  };
  for (uint64_t next_id = 1; next_id < 2000; ++next_id) {
    if (!prefixes.empty() && random.OneIn(2)) {
      auto victim = prefixes.begin();
      std::advance(victim, random.Below(static_cast<int32_t>(prefixes.size())));
      reserved.Remove(victim->first, victim->second.first);
      prefixes.erase(victim);
    } else {
      std::vector<uint64_t> numbers(static_cast<size_t>(random.Between(1, 12)));
      std::iota(
          numbers.begin(), numbers.end(), uint64_t{100} * static_cast<uint64_t>(random.Below(3)));
      const int32_t num_tails = random.Below(2);
      prefixes[RequestId(next_id)] = {Hashes(numbers), num_tails};
      reserved.Add(RequestId(next_id), prefixes[RequestId(next_id)].first, num_tails);
    }
    ASSERT_EQ(reserved.num_blocks(), count(RequestId(0)));
    for (const auto& [id, prefix] : prefixes) {
      ASSERT_EQ(reserved.NumWithout(id), count(id));
    }
  }
}

// However many prefixes there are, an epoch's begin looks at each block of each once, and hashes
// nothing that has its hash.
TEST(ReservedBlocksTest, AnEpochsBeginIsLinearInThePrefixes) {
  constexpr int32_t kNumPrefixes = 64;
  constexpr int32_t kBlocksOfEach = 8;
  const StepLimits limits{.num_blocks = 2000,
                          .block_size_tokens = 4,
                          .max_sequences = 4,
                          .max_tokens_per_step = 64,
                          .max_model_len = 100,
                          .vocab_size = 1000};
  CoreState state(CoreConfig{.prefix_caching = true});
  state.epoch.emplace(uint64_t{1}, uint64_t{1}, limits);
  state.last_limits = limits;
  for (int32_t i = 0; i < kNumPrefixes; ++i) {
    std::vector<TokenId> tokens(size_t{4} * kBlocksOfEach, i);
    ASSERT_EQ(
        PinPrefix(state, RequestId(static_cast<uint64_t>(i) + 1), std::move(tokens), "").outcome,
        PinOutcome::kAccepted);
  }
  const BlockHash* const hashes = state.prefixes.begin()->second.block_hashes.data();
  state.LoseWorkers();
  const int64_t num_looked_at_before = state.reserved_blocks.num_looked_at();

  state.epoch.emplace(uint64_t{1}, uint64_t{2}, limits);
  EndPrefixRequests(state);
  RestorePrefixes(state);

  EXPECT_EQ(state.reserved_blocks.num_looked_at() - num_looked_at_before,
            kNumPrefixes * kBlocksOfEach);
  EXPECT_EQ(state.reserved_blocks.num_blocks(), kNumPrefixes * kBlocksOfEach);
  EXPECT_EQ(state.prefixes.begin()->second.block_hashes.data(), hashes);
}

}  // namespace
}  // namespace quire
