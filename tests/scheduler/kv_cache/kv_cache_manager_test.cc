#include "scheduler/kv_cache/kv_cache_manager.h"

#include <optional>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Blocks 1 to 6 of 4 tokens.
class KvCacheManagerTest : public ::testing::Test {
 protected:
  void Check(std::vector<const BlockTable*> tables) const { manager_.CheckInvariants(tables); }

  KvCacheManager manager_{BlockPool(7), 4};
  BlockTable a_;
  BlockTable b_;
};

TEST_F(KvCacheManagerTest, NumBlocksForRoundsUp) {
  EXPECT_EQ(manager_.NumBlocksFor(0), 0);
  EXPECT_EQ(manager_.NumBlocksFor(1), 1);
  EXPECT_EQ(manager_.NumBlocksFor(4), 1);
  EXPECT_EQ(manager_.NumBlocksFor(5), 2);
}

TEST_F(KvCacheManagerTest, AppendTakesTheBlocksThatTheTokensNeed) {
  auto new_blocks = manager_.Append(a_, 5);

  ASSERT_TRUE(new_blocks.has_value());
  EXPECT_THAT(*new_blocks, ElementsAre(1, 2));
  EXPECT_EQ(a_.num_tokens(), 5);
  Check({&a_});
}

TEST_F(KvCacheManagerTest, AppendFillsTheLastBlockFirst) {
  ASSERT_TRUE(manager_.Append(a_, 5).has_value());

  auto new_blocks = manager_.Append(a_, 3);

  ASSERT_TRUE(new_blocks.has_value());
  EXPECT_THAT(*new_blocks, IsEmpty());
  EXPECT_EQ(a_.num_tokens(), 8);
  Check({&a_});
}

TEST_F(KvCacheManagerTest, AppendTakesANewBlockAtTheEdge) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());

  auto new_blocks = manager_.Append(a_, 1);

  ASSERT_TRUE(new_blocks.has_value());
  EXPECT_THAT(*new_blocks, ElementsAre(2));
  Check({&a_});
}

TEST_F(KvCacheManagerTest, NumBlocksToAppendForetellsAppend) {
  ASSERT_TRUE(manager_.Append(a_, 3).has_value());

  EXPECT_EQ(manager_.NumBlocksToAppend(a_, 0), 0);
  EXPECT_EQ(manager_.NumBlocksToAppend(a_, 1), 0);
  EXPECT_EQ(manager_.NumBlocksToAppend(a_, 2), 1);
  EXPECT_EQ(manager_.NumBlocksToAppend(a_, 6), 2);
}

TEST_F(KvCacheManagerTest, AppendChangesNothingWhenBlocksAreShort) {
  ASSERT_TRUE(manager_.Append(a_, 5).has_value());

  EXPECT_EQ(manager_.Append(b_, 17), std::nullopt);

  EXPECT_TRUE(b_.empty());
  EXPECT_EQ(manager_.num_free_blocks(), 4);
  EXPECT_EQ(manager_.num_stored_tokens(), 5);
  Check({&a_, &b_});
}

TEST_F(KvCacheManagerTest, FreeGivesBackTailsFirst) {
  ASSERT_TRUE(manager_.Append(a_, 12).has_value());

  manager_.Free(a_);

  EXPECT_TRUE(a_.empty());
  EXPECT_EQ(a_.num_tokens(), 0);
  EXPECT_THAT(manager_.pool().FreeListForTest(), ElementsAre(4, 5, 6, 3, 2, 1));
  Check({&a_});
}

TEST_F(KvCacheManagerTest, FreeOfAnEmptyTableDoesNothing) {
  manager_.Free(a_);

  EXPECT_EQ(manager_.num_free_blocks(), 6);
  Check({&a_});
}

TEST_F(KvCacheManagerTest, ForkSharesEveryBlock) {
  ASSERT_TRUE(manager_.Append(a_, 6).has_value());

  manager_.Fork(a_, a_.num_tokens(), b_);

  EXPECT_THAT(b_.block_ids(), ElementsAre(1, 2));
  EXPECT_EQ(b_.num_tokens(), 6);
  EXPECT_EQ(manager_.pool().ref_count(1), 2);
  EXPECT_EQ(manager_.pool().ref_count(2), 2);
  EXPECT_EQ(manager_.pool().num_used_blocks(), 2);
  Check({&a_, &b_});
}

TEST_F(KvCacheManagerTest, ForkedTablesGrowApartBehindAFullBlock) {
  ASSERT_TRUE(manager_.Append(a_, 8).has_value());
  manager_.Fork(a_, a_.num_tokens(), b_);

  ASSERT_TRUE(manager_.Append(a_, 1).has_value());
  ASSERT_TRUE(manager_.Append(b_, 1).has_value());

  EXPECT_THAT(a_.block_ids(), ElementsAre(1, 2, 3));
  EXPECT_THAT(b_.block_ids(), ElementsAre(1, 2, 4));
  Check({&a_, &b_});
}

TEST_F(KvCacheManagerTest, FreeOfAForkLeavesTheOther) {
  ASSERT_TRUE(manager_.Append(a_, 6).has_value());
  manager_.Fork(a_, a_.num_tokens(), b_);

  manager_.Free(a_);

  EXPECT_EQ(manager_.num_free_blocks(), 4);
  EXPECT_THAT(b_.block_ids(), ElementsAre(1, 2));
  // The only holder again, it may fill its last block.
  EXPECT_TRUE(manager_.Append(b_, 2).has_value());
  Check({&a_, &b_});
}

TEST_F(KvCacheManagerTest, FreedBlocksWaitForTheAnswer) {
  ASSERT_TRUE(manager_.Append(a_, 24).has_value());
  manager_.OnStepPlanned();

  manager_.Free(a_);

  EXPECT_EQ(manager_.Append(b_, 1), std::nullopt);
  Check({&a_, &b_});
  manager_.OnStepAnswered();
  EXPECT_TRUE(manager_.Append(b_, 1).has_value());
  Check({&a_, &b_});
}

TEST_F(KvCacheManagerTest, StoredTokensAreThoseOfAllTables) {
  ASSERT_TRUE(manager_.Append(a_, 5).has_value());
  ASSERT_TRUE(manager_.Append(b_, 3).has_value());
  EXPECT_EQ(manager_.num_stored_tokens(), 8);

  manager_.Free(a_);

  EXPECT_EQ(manager_.num_stored_tokens(), 3);
}

TEST_F(KvCacheManagerTest, BlocksOfAGroupAreCountedOnceAndThoseOfOthersAreNotItsOwn) {
  BlockTable other;
  ASSERT_TRUE(manager_.Append(a_, 12).has_value());
  manager_.Fork(a_, 8, b_);
  ASSERT_TRUE(manager_.Append(b_, 1).has_value());
  manager_.Fork(a_, 4, other);

  const BlockTable* group[] = {&a_, &b_};
  const GroupBlocks both = manager_.CountBlocks(group);
  const GroupBlocks alone = manager_.CountBlocks(std::span(group).first(1));

  EXPECT_EQ(both.num_blocks, 4);
  EXPECT_EQ(both.num_exclusive, 3) << "the first block is another group's, too";
  EXPECT_EQ(alone.num_blocks, 3);
  EXPECT_EQ(alone.num_exclusive, 1);
  EXPECT_EQ(manager_.CountBlocks({}).num_blocks, 0);
}

using KvCacheManagerDeathTest = KvCacheManagerTest;

TEST_F(KvCacheManagerDeathTest, RefusesToWriteIntoASharedBlock) {
  ASSERT_TRUE(manager_.Append(a_, 6).has_value());
  manager_.Fork(a_, a_.num_tokens(), b_);

  EXPECT_DEATH((void)manager_.Append(a_, 1), "is_last_full");
}

TEST_F(KvCacheManagerDeathTest, RefusesToAppendNothing) {
  EXPECT_DEATH((void)manager_.Append(a_, 0), "num_tokens > 0");
}

TEST_F(KvCacheManagerDeathTest, RefusesToForkOntoATableInUse) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());
  ASSERT_TRUE(manager_.Append(b_, 4).has_value());

  EXPECT_DEATH(manager_.Fork(a_, a_.num_tokens(), b_), "child.empty");
}

TEST_F(KvCacheManagerDeathTest, RefusesABlockOfNoTokens) {
  EXPECT_DEATH(KvCacheManager(BlockPool(2), 0), "block_size_tokens >= 1");
}

TEST_F(KvCacheManagerDeathTest, FindsAReferenceThatNoTableHolds) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());

  EXPECT_DEATH(Check({}), "num_stored_tokens");
  a_.Abandon();
  EXPECT_DEATH(Check({&a_}), "num_stored_tokens");
}

TEST_F(KvCacheManagerDeathTest, FindsATableThatIsCountedTwice) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());
  ASSERT_TRUE(manager_.Append(b_, 4).has_value());

  EXPECT_DEATH(Check({&a_, &a_}), "ref_count");
}

// Blocks 1 to 6 of 4 tokens, and a sequence of three full blocks of known contents.
class PrefixCacheTest : public KvCacheManagerTest {
 protected:
  PrefixCacheTest() {
    BlockHash parent = RootHash(kKey, "");
    for (TokenId first : {0, 4, 8}) {
      const std::vector<TokenId> tokens = {first, first + 1, first + 2, first + 3};
      parent = ChainHash(kKey, parent, tokens);
      hashes_.push_back(parent);
    }
  }

  // Table a_ gets blocks 1 to 3 and gives them back.
  void ComputeAndFree() {
    ASSERT_TRUE(manager_.Append(a_, 12).has_value());
    manager_.Publish(a_, 0, hashes_);
    manager_.Free(a_);
  }

  static constexpr Hash128 kKey = {.low = 1, .high = 2};
  std::vector<BlockHash> hashes_;
};

TEST_F(PrefixCacheTest, FindsWhatWasPublishedFromTheFirstBlockOn) {
  ASSERT_TRUE(manager_.Append(a_, 12).has_value());
  EXPECT_EQ(manager_.Match(hashes_).num_blocks, 0);
  manager_.Publish(a_, 0, std::span(hashes_).first(2));

  const PrefixMatch match = manager_.Match(hashes_);

  EXPECT_EQ(match.num_blocks, 2);
  EXPECT_EQ(match.num_held_blocks, 2);
  EXPECT_EQ(manager_.Match(std::span(hashes_).subspan(2)).num_blocks, 0);
  manager_.Publish(a_, 2, hashes_);
  EXPECT_EQ(manager_.Match(hashes_).num_blocks, 3);
  Check({&a_});
}

TEST_F(PrefixCacheTest, SharesBlocksThatAreInUse) {
  ASSERT_TRUE(manager_.Append(a_, 12).has_value());
  manager_.Publish(a_, 0, hashes_);

  manager_.ShareCached(std::span(hashes_).first(2), b_);

  EXPECT_THAT(b_.block_ids(), ElementsAre(1, 2));
  EXPECT_EQ(b_.num_tokens(), 8);
  EXPECT_EQ(manager_.pool().ref_count(1), 2);
  EXPECT_EQ(manager_.num_stored_tokens(), 20);
  Check({&a_, &b_});
}

TEST_F(PrefixCacheTest, TakesFreeBlocksBackWithTheirContents) {
  ComputeAndFree();
  const PrefixMatch match = manager_.Match(hashes_);
  EXPECT_EQ(match.num_blocks, 3);
  EXPECT_EQ(match.num_held_blocks, 0);

  manager_.ShareCached(hashes_, b_);

  EXPECT_THAT(b_.block_ids(), ElementsAre(1, 2, 3));
  EXPECT_EQ(manager_.num_free_blocks(), 3);
  EXPECT_EQ(manager_.Match(hashes_).num_held_blocks, 3);
  Check({&b_});
}

TEST_F(PrefixCacheTest, BlocksThatHoldNothingGoFirstThenEndsThenBeginnings) {
  ComputeAndFree();
  ASSERT_TRUE(manager_.Append(b_, 12).has_value());
  EXPECT_THAT(b_.block_ids(), ElementsAre(4, 5, 6));
  EXPECT_EQ(manager_.Match(hashes_).num_blocks, 3);

  ASSERT_TRUE(manager_.Append(b_, 4).has_value());

  EXPECT_EQ(b_[3], 3);
  EXPECT_EQ(manager_.Match(hashes_).num_blocks, 2);
  ASSERT_TRUE(manager_.Append(b_, 8).has_value());
  EXPECT_EQ(manager_.num_cached_blocks(), 0);
  Check({&b_});
}

TEST_F(PrefixCacheTest, OperationsAreCounted) {
  ComputeAndFree();
  manager_.ShareCached(std::span(hashes_).first(2), a_);  // block 3 stays free and cached
  EXPECT_EQ(manager_.operations().num_allocated, 3);
  EXPECT_EQ(manager_.operations().num_found, 2);
  EXPECT_EQ(manager_.operations().num_evicted, 0);

  ASSERT_TRUE(manager_.Append(b_, 15).has_value());  // takes 4, 5, 6, then evicts 3
  EXPECT_EQ(manager_.operations().num_allocated, 7);
  EXPECT_EQ(manager_.operations().num_evicted, 1);

  BlockTable fork;
  manager_.Free(a_);
  manager_.Fork(b_, 15, fork);
  EXPECT_EQ(manager_.operations().num_forked, 4);
  ASSERT_TRUE(manager_.MakeTailExclusive(fork).has_value());  // evicts the last block of a_
  EXPECT_EQ(manager_.operations().num_allocated, 8);
  EXPECT_EQ(manager_.operations().num_evicted, 2);
  Check({&b_, &fork});
}

TEST_F(PrefixCacheTest, OfTwoBlocksWithOneContentTheFirstIsFound) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());
  ASSERT_TRUE(manager_.Append(b_, 4).has_value());
  manager_.Publish(a_, 0, std::span(hashes_).first(1));
  manager_.Publish(b_, 0, std::span(hashes_).first(1));
  BlockTable c;

  manager_.ShareCached(std::span(hashes_).first(1), c);

  EXPECT_THAT(c.block_ids(), ElementsAre(1));
  Check({&a_, &b_, &c});
  manager_.Free(c);
}

// Admission of a request relies on its sequences sharing the blocks that the first one computes.
TEST_F(PrefixCacheTest, ABlockThatIsHeldIsFoundBeforeAFreeOne) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());
  ASSERT_TRUE(manager_.Append(b_, 4).has_value());
  manager_.Publish(a_, 0, std::span(hashes_).first(1));
  manager_.Free(a_);

  manager_.Publish(b_, 0, std::span(hashes_).first(1));

  EXPECT_EQ(manager_.Match(hashes_).num_held_blocks, 1);
  EXPECT_EQ(manager_.num_cached_blocks(), 1);
  Check({&b_});
}

// Held blocks behind a free one do not count: the free one may be reused first.
TEST_F(PrefixCacheTest, HeldBlocksAreCountedUpToTheFirstFreeOne) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());
  ASSERT_TRUE(manager_.Append(b_, 8).has_value());
  manager_.Publish(a_, 0, std::span(hashes_).first(1));
  manager_.Publish(b_, 0, std::span(hashes_).first(2));
  manager_.Free(a_);

  const PrefixMatch match = manager_.Match(hashes_);

  EXPECT_EQ(match.num_blocks, 2);
  EXPECT_EQ(match.num_held_blocks, 0);
  Check({&b_});
}

TEST_F(PrefixCacheTest, NothingIsFoundThatWasTakenBack) {
  ASSERT_TRUE(manager_.Append(a_, 12).has_value());
  manager_.Publish(a_, 0, hashes_);
  manager_.Unpublish(a_, 1, hashes_);
  EXPECT_EQ(manager_.Match(hashes_).num_blocks, 1);
  manager_.Unpublish(a_, 0, hashes_);
  EXPECT_EQ(manager_.Match(hashes_).num_blocks, 0);
  EXPECT_EQ(manager_.num_cached_blocks(), 0);
  Check({&a_});
}

TEST(BlockHashTest, DependsOnEverythingBeforeAndOnTheSaltAndTheKey) {
  constexpr Hash128 kKey = {.low = 1, .high = 2};
  constexpr Hash128 kOtherKey = {.low = 1, .high = 3};
  const std::vector<TokenId> first = {1, 2};
  const std::vector<TokenId> other = {1, 3};
  const std::vector<TokenId> second = {5, 6};
  const BlockHash root = RootHash(kKey, "");
  const BlockHash plain = ChainHash(kKey, ChainHash(kKey, root, first), second);
  EXPECT_EQ(plain, ChainHash(kKey, ChainHash(kKey, root, first), second));
  EXPECT_NE(plain, ChainHash(kKey, ChainHash(kKey, root, other), second));
  EXPECT_NE(plain, ChainHash(kKey, root, second));
  const BlockHash salted = RootHash(kKey, "salt");
  EXPECT_NE(plain, ChainHash(kKey, ChainHash(kKey, salted, first), second));
  EXPECT_NE(plain, ChainHash(kOtherKey, ChainHash(kOtherKey, root, first), second));
}

// Blocks 1 to 6 and host blocks 0 to 3.
class SwapManagerTest : public ::testing::Test {
 protected:
  std::vector<SwapTables> Group() { return {{&a_, &host_a_}, {&b_, &host_b_}}; }
  void Check() const {
    const std::vector<const BlockTable*> tables = {&a_, &b_};
    const std::vector<const HostTable*> host_tables = {&host_a_, &host_b_};
    manager_.CheckInvariants(tables, host_tables);
  }

  KvCacheManager manager_{BlockPool(7), 4, /*num_host_blocks=*/4};
  BlockTable a_;
  BlockTable b_;
  HostTable host_a_;
  HostTable host_b_;
  std::vector<SwappedBlock> orders_;
};

TEST_F(SwapManagerTest, ASharedBlockLeavesOnceAndStaysShared) {
  ASSERT_TRUE(manager_.Append(a_, 8).has_value());
  manager_.Fork(a_, a_.num_tokens(), b_);
  ASSERT_TRUE(manager_.Append(a_, 2).has_value());
  ASSERT_TRUE(manager_.Append(b_, 1).has_value());
  EXPECT_EQ(manager_.pool().num_used_blocks(), 4);

  ASSERT_TRUE(manager_.SwapOut(Group(), 5, orders_));

  EXPECT_EQ(orders_.size(), 4U);
  EXPECT_TRUE(a_.empty() && b_.empty());
  EXPECT_EQ(host_a_.num_tokens(), 10);
  EXPECT_EQ(host_a_.host_block_ids()[0], host_b_.host_block_ids()[0]);
  EXPECT_NE(host_a_.host_block_ids()[2], host_b_.host_block_ids()[2]);
  EXPECT_EQ(manager_.host_pool().num_used_blocks(), 4);
  EXPECT_EQ(manager_.num_stored_tokens(), 0);
  Check();
  manager_.OnSwapsDone(5);
  EXPECT_EQ(manager_.NeedToSwapIn(Group()).num_blocks, 4);
  EXPECT_EQ(manager_.NeedToSwapIn(Group()).num_tail_copies, 0);
  orders_.clear();

  ASSERT_TRUE(manager_.SwapIn(Group(), 6, orders_));

  EXPECT_EQ(orders_.size(), 4U);
  EXPECT_EQ(manager_.pool().num_used_blocks(), 4);
  EXPECT_EQ(a_[0], b_[0]);
  EXPECT_NE(a_[2], b_[2]);
  EXPECT_EQ(a_.num_tokens(), 10);
  EXPECT_EQ(b_.num_tokens(), 9);
  EXPECT_EQ(manager_.num_stored_tokens(), 19);
  Check();
}

// Host block ids are reused; only the generation tells one content from another.
TEST_F(SwapManagerTest, ATableKnowsWhichStepFilledItsHostBlocks) {
  const std::vector<SwapTables> first = {{&a_, &host_a_}};
  const std::vector<SwapTables> second = {{&b_, &host_b_}};
  const auto generations = [this] {
    std::vector<uint64_t> all;
    for (const SwappedBlock& order : std::exchange(orders_, {})) {
      all.push_back(order.generation);
    }
    return all;
  };
  ASSERT_TRUE(manager_.Append(a_, 8).has_value());
  ASSERT_TRUE(manager_.SwapOut(first, 5, orders_));
  EXPECT_THAT(generations(), ElementsAre(5, 5));
  manager_.Free(host_a_);
  ASSERT_TRUE(manager_.Append(b_, 16).has_value());
  ASSERT_TRUE(manager_.SwapOut(second, 7, orders_));
  EXPECT_THAT(generations(), ElementsAre(7, 7, 7, 7)) << "two of them for the second time";
  EXPECT_EQ(host_b_.generation(), 7U);
  manager_.OnSwapsDone(7);

  ASSERT_TRUE(manager_.SwapIn(second, 9, orders_));

  EXPECT_THAT(generations(), ElementsAre(7, 7, 7, 7));
  EXPECT_EQ(host_b_.generation(), 0U);
  Check();
}

// Two groups share the block of their common prefix; both leave in one step and return in one step.
TEST_F(SwapManagerTest, ABlockThatTwoGroupsShareIsCopiedOnceInAStep) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());
  manager_.Fork(a_, 4, b_);
  ASSERT_TRUE(manager_.Append(b_, 1).has_value());
  const std::vector<SwapTables> first = {{&a_, &host_a_}};
  const std::vector<SwapTables> second = {{&b_, &host_b_}};

  ASSERT_TRUE(manager_.SwapOut(first, 5, orders_));
  ASSERT_TRUE(manager_.SwapOut(second, 5, orders_));

  ASSERT_EQ(orders_.size(), 2U);
  EXPECT_NE(orders_[0].block, orders_[1].block);
  EXPECT_EQ(host_a_.host_block_ids()[0], host_b_.host_block_ids()[0]);
  Check();
  manager_.OnSwapsDone(5);
  EXPECT_EQ(manager_.num_free_blocks(), 6);
  orders_.clear();

  ASSERT_TRUE(manager_.SwapIn(first, 6, orders_));
  ASSERT_TRUE(manager_.SwapIn(second, 6, orders_));

  ASSERT_EQ(orders_.size(), 2U);
  EXPECT_NE(orders_[0].host_block, orders_[1].host_block);
  EXPECT_EQ(a_[0], b_[0]);
  Check();
  manager_.OnSwapsDone(6);
  EXPECT_EQ(manager_.host_pool().num_free_blocks(), 4);
}

// In different steps each group makes its own copy, because the first group's copy may be gone by
// then.
TEST_F(SwapManagerTest, ABlockIsCopiedAgainInALaterStep) {
  ASSERT_TRUE(manager_.Append(a_, 4).has_value());
  manager_.Fork(a_, 4, b_);
  const std::vector<SwapTables> first = {{&a_, &host_a_}};
  const std::vector<SwapTables> second = {{&b_, &host_b_}};

  ASSERT_TRUE(manager_.SwapOut(first, 5, orders_));
  ASSERT_TRUE(manager_.SwapOut(second, 6, orders_));

  ASSERT_EQ(orders_.size(), 2U);
  EXPECT_EQ(orders_[0].block, orders_[1].block);
  EXPECT_NE(orders_[0].host_block, orders_[1].host_block);
  Check();
  manager_.OnSwapsDone(5);
  EXPECT_EQ(manager_.num_free_blocks(), 5);
  manager_.OnSwapsDone(6);
  EXPECT_EQ(manager_.num_free_blocks(), 6);
  Check();
}

TEST_F(SwapManagerTest, AllButOneHolderOfATailWillCopyIt) {
  ASSERT_TRUE(manager_.Append(a_, 10).has_value());
  manager_.Fork(a_, 10, b_);
  ASSERT_TRUE(manager_.SwapOut(Group(), 5, orders_));
  EXPECT_EQ(manager_.NeedToSwapIn(Group()).num_blocks, 3);
  EXPECT_EQ(manager_.NeedToSwapIn(Group()).num_tail_copies, 1);
}

TEST_F(SwapManagerTest, WhoeverHoldsTheTailAsAFullBlockKeepsIt) {
  ASSERT_TRUE(manager_.Append(a_, 12).has_value());
  manager_.Fork(a_, 10, b_);  // the last two tokens of its tail are not its own
  ASSERT_TRUE(manager_.SwapOut(Group(), 5, orders_));
  EXPECT_EQ(manager_.NeedToSwapIn(Group()).num_blocks, 3);
  EXPECT_EQ(manager_.NeedToSwapIn(Group()).num_tail_copies, 1);
}

TEST_F(SwapManagerTest, BlocksAreFreeWhenTheWorkerHasCopiedThem) {
  ASSERT_TRUE(manager_.Append(a_, 12).has_value());
  ASSERT_TRUE(manager_.SwapOut(Group(), 5, orders_));
  EXPECT_EQ(manager_.num_leaving_blocks(), 3);
  EXPECT_EQ(manager_.num_free_blocks(), 3);
  manager_.OnSwapsDone(4);
  EXPECT_EQ(manager_.num_free_blocks(), 3);
  manager_.OnSwapsDone(5);
  EXPECT_EQ(manager_.num_free_blocks(), 6);
  EXPECT_EQ(manager_.host_pool().num_free_blocks(), 1);

  ASSERT_TRUE(manager_.SwapIn(Group(), 7, orders_));

  EXPECT_TRUE(host_a_.empty());
  EXPECT_TRUE(manager_.has_swaps_under_way());
  EXPECT_EQ(manager_.host_pool().num_free_blocks(), 1);
  Check();
  manager_.OnSwapsDone(7);
  EXPECT_EQ(manager_.host_pool().num_free_blocks(), 4);
  EXPECT_FALSE(manager_.has_swaps_under_way());
}

TEST_F(SwapManagerTest, WithoutRoomNothingChanges) {
  ASSERT_TRUE(manager_.Append(a_, 20).has_value());
  EXPECT_FALSE(manager_.SwapOut(Group(), 1, orders_));
  EXPECT_EQ(a_.num_blocks(), 5);
  EXPECT_EQ(manager_.host_pool().num_free_blocks(), 4);
  manager_.Free(a_);
  ASSERT_TRUE(manager_.Append(a_, 16).has_value());
  ASSERT_TRUE(manager_.SwapOut(Group(), 1, orders_));
  manager_.OnSwapsDone(1);
  ASSERT_TRUE(manager_.Append(b_, 12).has_value());
  std::vector<SwappedBlock> back;
  const std::vector<SwapTables> alone = {{&a_, &host_a_}};
  EXPECT_FALSE(manager_.SwapIn(alone, 2, back));
  EXPECT_TRUE(back.empty());
  EXPECT_EQ(host_a_.num_tokens(), 16);
  Check();
}

TEST_F(SwapManagerTest, HostBlocksOfWhoEndsAreFree) {
  ASSERT_TRUE(manager_.Append(a_, 12).has_value());
  ASSERT_TRUE(manager_.SwapOut(Group(), 1, orders_));
  manager_.Free(host_a_);
  EXPECT_EQ(manager_.host_pool().num_free_blocks(), 4);
  Check();
}

TEST_F(KvCacheManagerTest, CountsTokensOfTablesThatShareNothing) {
  ASSERT_TRUE(manager_.Append(a_, 5).has_value());
  ASSERT_TRUE(manager_.Append(b_, 4).has_value());

  const std::vector<const BlockTable*> tables = {&a_, &b_};
  const KvCacheManager::Occupancy occupancy = manager_.CountTokens(tables);

  EXPECT_EQ(occupancy.num_held_blocks, 3);
  EXPECT_EQ(occupancy.num_stored_tokens, 5 + 4);
}

// Both tables share their last block, with three tokens for one table and two for the other.
TEST_F(KvCacheManagerTest, CountsTokensOfASharedTailOnceAndAsTheLongestTableHasThem) {
  ASSERT_TRUE(manager_.Append(a_, 7).has_value());
  manager_.Fork(a_, 6, b_);
  const std::vector<const BlockTable*> both = {&a_, &b_};
  EXPECT_EQ(manager_.CountTokens(both).num_held_blocks, 2);
  EXPECT_EQ(manager_.CountTokens(both).num_stored_tokens, 7);
  Check(both);

  manager_.Free(a_);

  const std::vector<const BlockTable*> one = {&b_};
  EXPECT_EQ(manager_.CountTokens(one).num_stored_tokens, 6);
  Check(one);
}

// The parent's table sees the shared block as full, and not as its last one.
TEST_F(KvCacheManagerTest, ATailThatIsFullForAnotherTableIsFull) {
  ASSERT_TRUE(manager_.Append(a_, 8).has_value());
  manager_.Fork(a_, 3, b_);

  const std::vector<const BlockTable*> both = {&a_, &b_};
  EXPECT_EQ(manager_.CountTokens(both).num_stored_tokens, 8);
  Check(both);
}

TEST_F(KvCacheManagerTest, BlocksOnTheirWayToTheHostAreNotHeld) {
  KvCacheManager manager(BlockPool(7), 4, 4);
  HostTable host;
  std::vector<SwappedBlock> orders;
  ASSERT_TRUE(manager.Append(a_, 6).has_value());
  manager.Fork(a_, 6, b_);
  const SwapTables group[] = {{.table = &a_, .host_table = &host}};
  ASSERT_TRUE(manager.SwapOut(group, 1, orders));

  // The other table still holds both blocks while the swap-out reads them.
  const std::vector<const BlockTable*> other = {&b_};
  EXPECT_EQ(manager.CountTokens(other).num_held_blocks, 2);
  EXPECT_EQ(manager.CountTokens(other).num_stored_tokens, 6);

  manager.Free(b_);
  EXPECT_EQ(manager.pool().num_used_blocks(), 2);
  EXPECT_EQ(manager.CountTokens({}).num_held_blocks, 0);
  EXPECT_EQ(manager.CountTokens({}).num_stored_tokens, 0);
  manager.OnSwapsDone(1);
  EXPECT_EQ(manager.pool().num_used_blocks(), 0);
}

TEST_F(KvCacheManagerTest, FreeBlocksThatCanBeFoundAreCounted) {
  const BlockHash hashes[] = {{.low = 1, .high = 2}, {.low = 3, .high = 4}};
  ASSERT_TRUE(manager_.Append(a_, 8).has_value());
  manager_.Publish(a_, 0, hashes);
  EXPECT_EQ(manager_.pool().num_free_cached_blocks(), 0);

  manager_.Free(a_);
  EXPECT_EQ(manager_.pool().num_free_cached_blocks(), 2);
  Check({});

  ASSERT_TRUE(manager_.Append(b_, 4 * 5).has_value());  // the four uncached, then one cached block
  EXPECT_EQ(manager_.pool().num_free_cached_blocks(), 1);
  Check({&b_});
}

}  // namespace
}  // namespace quire
