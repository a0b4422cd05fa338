#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/kv_cache/kv_cache_manager.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

// Blocks 1 to 6 of 4 tokens, host blocks 0 to 3, and a window of 6 tokens: the token at position p
// reads p - 5 to p.
class SlidingWindowTest : public ::testing::Test {
 protected:
  SlidingWindowTest() {
    BlockHash parent = RootHash(kKey, "");
    for (TokenId first : {0, 4, 8, 12}) {
      const std::vector<TokenId> tokens = {first, first + 1, first + 2, first + 3};
      parent = ChainHash(kKey, parent, tokens);
      hashes_.push_back(parent);
    }
  }

  void Append(BlockTable& table, int32_t num_tokens) {
    ASSERT_TRUE(manager_.Append(table, num_tokens).has_value());
  }
  void Check(std::vector<const BlockTable*> tables,
             std::vector<const HostTable*> host_tables = {}) const {
    manager_.CheckInvariants(tables, host_tables);
  }
  std::span<const BlockHash> FirstHashes(size_t n) const { return std::span(hashes_).first(n); }

  static constexpr Hash128 kKey = {.low = 1, .high = 2};
  KvCacheManager manager_{BlockPool(7), 4, /*num_host_blocks=*/4, /*sliding_window=*/6};
  std::vector<BlockHash> hashes_;
  BlockTable a_;
  BlockTable b_;
};

TEST_F(SlidingWindowTest, GivesBackWhatTheNextTokenDoesNotRead) {
  Append(a_, 12);
  manager_.SlideWindow(a_, 8);
  EXPECT_THAT(a_.block_ids(), ElementsAre(1, 2, 3)) << "position 8 reads 3, which is in block 1";

  manager_.SlideWindow(a_, 9);

  EXPECT_THAT(a_.block_ids(), ElementsAre(kNullBlockId, 2, 3));
  EXPECT_EQ(a_.num_tokens(), 12);
  EXPECT_EQ(a_.num_passed_blocks(), 1);
  EXPECT_EQ(manager_.num_free_blocks(), 4);
  EXPECT_EQ(manager_.num_stored_tokens(), 8);
  Check({&a_});
}

TEST_F(SlidingWindowTest, APassedBlockServesTheSameSequenceAgain) {
  for (int32_t num_tokens = 1; num_tokens <= 40; ++num_tokens) {
    Append(a_, 1);
    manager_.SlideWindow(a_, num_tokens);
    EXPECT_LE(manager_.pool().num_used_blocks(), 3);
    Check({&a_});
  }
  EXPECT_EQ(a_.num_blocks(), 10);
  manager_.Free(a_);
  EXPECT_EQ(manager_.num_free_blocks(), 6);
  EXPECT_EQ(manager_.num_stored_tokens(), 0);
}

TEST_F(SlidingWindowTest, AForkSharesWhatItReadsAndNoMore) {
  Append(a_, 14);
  manager_.SlideWindow(a_, 9);

  manager_.Fork(a_, 13, b_);

  EXPECT_THAT(b_.block_ids(), ElementsAre(kNullBlockId, kNullBlockId, 3, 4));
  EXPECT_EQ(manager_.pool().ref_count(2), 1);
  EXPECT_EQ(manager_.pool().ref_count(3), 2);
  EXPECT_EQ(manager_.num_stored_tokens(), 10 + 5);
  Check({&a_, &b_});
}

TEST_F(SlidingWindowTest, AForkOfWhatIsGoneIsAFault) {
  Append(a_, 14);
  manager_.SlideWindow(a_, 13);
  EXPECT_DEATH(manager_.Fork(a_, 12, b_), "num_passed_blocks_");
}

TEST_F(SlidingWindowTest, PassedBlocksAreNotSwapped) {
  Append(a_, 13);
  manager_.SlideWindow(a_, 13);
  HostTable host;
  const std::vector<SwapTables> group = {{&a_, &host}};
  std::vector<SwappedBlock> orders;

  ASSERT_TRUE(manager_.SwapOut(group, 1, orders));

  EXPECT_EQ(orders.size(), 2U);
  EXPECT_EQ(host.num_blocks(), 4);
  EXPECT_EQ(host.num_passed_blocks(), 2);
  Check({&a_}, {&host});
  manager_.OnSwapsDone(1);
  EXPECT_EQ(manager_.num_free_blocks(), 6);
  EXPECT_EQ(manager_.NeedToSwapIn(group).num_blocks, 2);
  orders.clear();

  ASSERT_TRUE(manager_.SwapIn(group, 2, orders));

  EXPECT_EQ(orders.size(), 2U);
  EXPECT_EQ(a_.num_passed_blocks(), 2);
  EXPECT_EQ(a_[1], kNullBlockId);
  EXPECT_EQ(a_[2], orders[0].block);
  EXPECT_EQ(manager_.num_stored_tokens(), 5);
  Check({&a_}, {&host});
  manager_.Free(a_);
}

TEST_F(SlidingWindowTest, AHitNeedsOnlyTheBlocksInsideOfTheWindow) {
  Append(a_, 16);
  manager_.Publish(a_, 0, hashes_);
  manager_.SlideWindow(a_, 16);  // frees blocks 1 and 2; block 1 is reused first
  Append(b_, 12);
  EXPECT_THAT(b_.block_ids(), ElementsAre(5, 6, 1));

  const PrefixMatch match = manager_.Match(hashes_);

  EXPECT_EQ(match.num_blocks, 4) << "though the first is not there any more";
  EXPECT_EQ(match.num_passed_blocks, 2);
  EXPECT_EQ(match.num_held_blocks, 2);
  EXPECT_EQ(manager_.Match(FirstHashes(2)).num_blocks, 0);
  EXPECT_EQ(manager_.Match(FirstHashes(3)).num_blocks, 3);
  EXPECT_EQ(manager_.Match(FirstHashes(3)).num_held_blocks, 0) << "block 2 is free";
  BlockTable c;
  manager_.ShareCached(hashes_, c);
  EXPECT_THAT(c.block_ids(), ElementsAre(kNullBlockId, kNullBlockId, 3, 4));
  EXPECT_EQ(c.num_tokens(), 16);
  Check({&a_, &b_, &c});
}

TEST_F(SlidingWindowTest, WhatIsHeldOfAHitCountsOnlyWhenAllOfItIs) {
  Append(a_, 16);
  manager_.Publish(a_, 0, hashes_);
  manager_.Free(a_);
  manager_.ShareCached(FirstHashes(3), b_);  // holds the second block and the third
  EXPECT_EQ(manager_.Match(FirstHashes(3)).num_held_blocks, 2);

  const PrefixMatch match = manager_.Match(hashes_);

  EXPECT_EQ(match.num_blocks, 4);
  EXPECT_EQ(match.num_held_blocks, 0) << "without the fourth block, which is free, this is no hit";
  Check({&b_});
}

TEST_F(SlidingWindowTest, WhatIsTakenBackIsNotFoundBeforeTheWindowEither) {
  Append(a_, 16);
  manager_.Publish(a_, 0, hashes_);
  manager_.SlideWindow(a_, 16);
  EXPECT_EQ(manager_.num_cached_blocks(), 4);

  manager_.Unpublish(a_, 0, hashes_);

  EXPECT_EQ(manager_.num_cached_blocks(), 0);
  Check({&a_});
}

// With a window of one token, no earlier token is read.
TEST(OneTokenWindowTest, FullBlocksAreGivenBackAndSwappedAsNothing) {
  KvCacheManager manager(BlockPool(3), 4, /*num_host_blocks=*/1, /*sliding_window=*/1);
  BlockTable table;
  HostTable host;
  ASSERT_TRUE(manager.Append(table, 8).has_value());
  manager.SlideWindow(table, 8);
  EXPECT_EQ(manager.num_free_blocks(), 2);
  const std::vector<SwapTables> group = {{&table, &host}};
  std::vector<SwappedBlock> orders;

  ASSERT_TRUE(manager.SwapOut(group, 1, orders));
  EXPECT_TRUE(orders.empty());
  EXPECT_FALSE(host.empty());
  ASSERT_TRUE(manager.SwapIn(group, 2, orders));

  EXPECT_EQ(table.num_tokens(), 8);
  EXPECT_EQ(table.num_passed_blocks(), 2);
  ASSERT_TRUE(manager.Append(table, 1).has_value());
  manager.CheckInvariants(std::vector<const BlockTable*>{&table});
  manager.Free(table);
}

}  // namespace
}  // namespace quire
