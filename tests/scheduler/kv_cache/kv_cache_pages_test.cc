// Tables whose blocks share pages of 4 blocks.
#include <cstdint>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/kv_cache/kv_cache_manager.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

// 40 blocks of one token. Pages 1 to 9 are whole; the first one lacks the null block.
class KvCachePagesTest : public testing::Test {
 protected:
  KvCachePagesTest() {
    BlockHash parent = RootHash(kKey, "");
    for (TokenId token_id = 1; token_id <= 6; ++token_id) {
      parent = ChainHash(kKey, parent, std::vector<TokenId>{token_id});
      hashes_.push_back(parent);
    }
  }

  // Table a_ gets these tokens' blocks, from 4 on, in a step that is answered.
  void Compute(int32_t num_tokens) {
    ASSERT_TRUE(manager_.Append(a_, num_tokens).has_value());
    manager_.Publish(a_, 0, First(num_tokens));
    manager_.OnStepPlanned();
    manager_.OnStepAnswered();
  }
  std::span<const BlockHash> First(int32_t count) const {
    return std::span(hashes_).first(static_cast<size_t>(count));
  }
  std::vector<BlockId> NextOf(const BlockTable& table) const {
    std::vector<BlockId> next;
    manager_.PeekNextBlocks(std::vector<const BlockTable*>{&table}, next);
    return next;
  }

  static constexpr Hash128 kKey = {.low = 1, .high = 2};
  std::vector<BlockHash> hashes_;
  KvCacheManager manager_{BlockPool(40, /*blocks_per_page=*/4), 1, /*num_host_blocks=*/20};
  BlockTable a_;
  BlockTable b_;
};

TEST_F(KvCachePagesTest, ATableThatGrowsInItsPageKeepsIt) {
  Compute(3);
  manager_.ShareCached(First(3), b_);
  EXPECT_EQ(manager_.NumBlocksToMove(b_), 3) << "the other table will take the next block";

  manager_.Free(a_);

  EXPECT_EQ(manager_.NumBlocksToMove(b_), 0);
  EXPECT_THAT(NextOf(b_), ElementsAre(7));
}

TEST_F(KvCachePagesTest, OnlyTheBlocksOfTheLastPageAreMoved) {
  Compute(6);
  manager_.ShareCached(hashes_, b_);

  std::vector<CopiedBlock> copies;
  manager_.MoveToOwnPage(b_, copies);

  EXPECT_THAT(b_.block_ids(), ElementsAre(4, 5, 6, 7, 28, 29)) << "behind the front 16 blocks";
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(copies[0].src, 8);
  EXPECT_EQ(copies[0].dst, 28);
  EXPECT_EQ(copies[1].src, 9);
  EXPECT_EQ(copies[1].dst, 29);
  manager_.CheckInvariants(std::vector<const BlockTable*>{&a_, &b_});
}

TEST_F(KvCachePagesTest, WhatIsCopiedIsNotReusedInTheStepThatCopies) {
  Compute(2);
  manager_.ShareCached(First(2), b_);
  std::vector<CopiedBlock> copies;
  manager_.MoveToOwnPage(b_, copies);

  manager_.Free(a_);
  EXPECT_EQ(manager_.pool().ref_count(4), 1);
  manager_.OnStepPlanned();
  EXPECT_EQ(manager_.pool().ref_count(4), 0);
  EXPECT_FALSE(manager_.pool().is_free(4)) << "the step may read it";
  manager_.OnStepAnswered();

  EXPECT_TRUE(manager_.pool().is_free(4));
  manager_.CheckInvariants(std::vector<const BlockTable*>{&b_});
}

TEST_F(KvCachePagesTest, WithoutAWholePageNoBlockIsMoved) {
  Compute(2);
  manager_.ShareCached(First(2), b_);
  BlockTable others;
  ASSERT_TRUE(manager_.Append(others, 37).has_value());

  EXPECT_EQ(manager_.NumBlocksToMove(b_), 0);
  EXPECT_THAT(NextOf(b_), ElementsAre(kNullBlockId));
}

TEST_F(KvCachePagesTest, AForkGoesOnAtItsPlaceInAnotherPage) {
  Compute(2);
  manager_.Fork(a_, 2, b_);
  ASSERT_TRUE(manager_.Append(a_, 1).has_value());
  const std::vector<BlockId> next = NextOf(b_);

  ASSERT_TRUE(manager_.Append(b_, 1).has_value());

  EXPECT_THAT(b_.block_ids(), ElementsAre(4, 5, 26));
  EXPECT_THAT(next, ElementsAre(26));
}

TEST_F(KvCachePagesTest, SwappedTablesComeBackInPages) {
  Compute(6);
  ASSERT_TRUE(manager_.Append(b_, 3).has_value());
  HostTable host_a;
  HostTable host_b;
  const std::vector<SwapTables> group = {{.table = &b_, .host_table = &host_b},
                                         {.table = &a_, .host_table = &host_a}};
  std::vector<SwappedBlock> orders;
  ASSERT_TRUE(manager_.SwapOut(group, 2, orders));
  manager_.OnSwapsDone(2);

  ASSERT_TRUE(manager_.SwapIn(group, 3, orders));

  for (const BlockTable* table : {&a_, &b_}) {
    for (int32_t i = 0; i < table->num_blocks(); ++i) {
      EXPECT_EQ((*table)[i], (*table)[i - i % 4] + i % 4);
      EXPECT_EQ((*table)[i] % 4, i % 4);
    }
  }
}

}  // namespace
}  // namespace quire
