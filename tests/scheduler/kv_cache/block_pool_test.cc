#include "scheduler/kv_cache/block_pool.h"

#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<BlockId> Allocate(BlockPool& pool, int32_t n) {
  std::vector<BlockId> block_ids;
  EXPECT_TRUE(pool.Allocate(n, block_ids));
  return block_ids;
}

TEST(BlockPoolTest, HandsOutBlocksFromTheFrontOfTheFreeList) {
  BlockPool pool(6);

  EXPECT_THAT(Allocate(pool, 2), ElementsAre(1, 2));
  EXPECT_THAT(Allocate(pool, 3), ElementsAre(3, 4, 5));
  pool.CheckInvariants();
}

TEST(BlockPoolTest, StartsFromAGivenFreeList) {
  BlockPool pool(5, std::vector<BlockId>{3, 1, 4, 2});

  EXPECT_THAT(Allocate(pool, 4), ElementsAre(3, 1, 4, 2));
}

TEST(BlockPoolTest, NeverHandsOutTheNullBlock) {
  BlockPool pool(4);

  std::vector<BlockId> block_ids = Allocate(pool, 3);

  EXPECT_THAT(block_ids, ElementsAre(1, 2, 3));
  EXPECT_FALSE(pool.Allocate(1, block_ids));
}

TEST(BlockPoolTest, OfNothingButTheNullBlockIsEmpty) {
  BlockPool pool(1);
  std::vector<BlockId> block_ids;

  EXPECT_EQ(pool.num_free_blocks(), 0);
  EXPECT_FALSE(pool.Allocate(1, block_ids));
  pool.CheckInvariants();
}

TEST(BlockPoolTest, AllocateReturnsNothingWhenFewerAreFree) {
  BlockPool pool(4);
  std::vector<BlockId> block_ids = {77};

  EXPECT_FALSE(pool.Allocate(4, block_ids));

  EXPECT_THAT(block_ids, ElementsAre(77));
  EXPECT_EQ(pool.num_free_blocks(), 3);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, AllocateOfNothingAlwaysSucceeds) {
  BlockPool pool(1);

  EXPECT_THAT(Allocate(pool, 0), IsEmpty());
}

TEST(BlockPoolTest, AllocateAppendsBehindWhatIsThere) {
  BlockPool pool(4);
  std::vector<BlockId> block_ids = {9};

  EXPECT_TRUE(pool.Allocate(2, block_ids));

  EXPECT_THAT(block_ids, ElementsAre(9, 1, 2));
}

TEST(BlockPoolTest, AnAllocatedBlockHasOneReference) {
  BlockPool pool(4);

  Allocate(pool, 1);

  EXPECT_EQ(pool.ref_count(1), 1);
  EXPECT_EQ(pool.ref_count(2), 0);
}

// Freed blocks go to the end of the list, so that the block freed last survives longest.
TEST(BlockPoolTest, FreedBlocksAreReusedLastInTheOrderTheyWereFreed) {
  BlockPool pool(6);
  Allocate(pool, 4);

  pool.Free(3);
  pool.Free(1);

  EXPECT_THAT(pool.FreeListForTest(), ElementsAre(5, 3, 1));
  EXPECT_EQ(pool.num_used_blocks(), 2);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, ASharedBlockIsFreeWhenItsLastReferenceGoes) {
  BlockPool pool(3);
  Allocate(pool, 1);
  pool.Touch(1);

  pool.Free(1);
  EXPECT_EQ(pool.ref_count(1), 1);
  EXPECT_THAT(pool.FreeListForTest(), ElementsAre(2));

  pool.Free(1);
  EXPECT_THAT(pool.FreeListForTest(), ElementsAre(2, 1));
  pool.CheckInvariants();
}

TEST(BlockPoolTest, TouchTakesABlockOutOfTheMiddleOfTheFreeList) {
  BlockPool pool(6);

  pool.Touch(3);

  EXPECT_THAT(pool.FreeListForTest(), ElementsAre(1, 2, 4, 5));
  EXPECT_EQ(pool.ref_count(3), 1);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, FreedBlocksArePendingWhileTheFenceIsUp) {
  BlockPool pool(4);
  Allocate(pool, 3);
  pool.RaiseFence();

  pool.Free(2);
  pool.Free(1);

  std::vector<BlockId> block_ids;
  EXPECT_FALSE(pool.Allocate(1, block_ids));
  EXPECT_EQ(pool.num_pending_blocks(), 2);
  EXPECT_EQ(pool.num_used_blocks(), 1);
  EXPECT_EQ(pool.ref_count(2), 0);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, PendingBlocksBecomeFreeInOrderWhenTheFenceFalls) {
  BlockPool pool(5);
  Allocate(pool, 3);
  pool.RaiseFence();
  pool.Free(2);
  pool.Free(1);

  pool.LowerFence();
  pool.Free(3);

  EXPECT_THAT(pool.FreeListForTest(), ElementsAre(4, 2, 1, 3));
  EXPECT_EQ(pool.num_pending_blocks(), 0);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, TouchBringsAPendingBlockBackIntoUse) {
  BlockPool pool(4);
  Allocate(pool, 3);
  pool.RaiseFence();
  pool.Free(1);
  pool.Free(2);
  pool.Free(3);

  pool.Touch(2);
  pool.LowerFence();

  EXPECT_THAT(pool.FreeListForTest(), ElementsAre(1, 3));
  EXPECT_EQ(pool.ref_count(2), 1);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, BlocksThatWereFreeBeforeTheFenceMayBeHandedOut) {
  BlockPool pool(4);
  pool.RaiseFence();

  EXPECT_THAT(Allocate(pool, 2), ElementsAre(1, 2));
  pool.CheckInvariants();
}

TEST(BlockPoolDeathTest, RefusesWhatOnlyAWrongProgramDoes) {
  BlockPool pool(4);
  std::vector<BlockId> block_ids;

  EXPECT_DEATH(pool.Free(1), "ref_count > 0");
  EXPECT_DEATH(pool.Free(kNullBlockId), "IsUsable");
  EXPECT_DEATH(pool.Touch(kNullBlockId), "IsUsable");
  EXPECT_DEATH(pool.Touch(4), "IsUsable");
  EXPECT_DEATH(pool.Free(-1), "IsUsable");
  EXPECT_DEATH(pool.ref_count(4), "IsUsable");
  EXPECT_DEATH((void)pool.Allocate(-1, block_ids), "n >= 0");
  EXPECT_DEATH(pool.LowerFence(), "is_fenced_");
  EXPECT_DEATH(BlockPool(0), "num_blocks_ >= 1");
  EXPECT_DEATH(BlockPool(3, std::vector<BlockId>{1}), "free_order.size");
  EXPECT_DEATH(BlockPool(3, std::vector<BlockId>{1, 1}), "kUsed");
  EXPECT_DEATH(BlockPool(3, std::vector<BlockId>{1, 3}), "IsUsable");
}

TEST(BlockPoolDeathTest, RefusesTwoFences) {
  BlockPool pool(4);
  pool.RaiseFence();

  EXPECT_DEATH(pool.RaiseFence(), "is_fenced_");
}

TEST(BlockPoolDeathTest, RefusesADoubleFreeOfAPendingBlock) {
  BlockPool pool(4);
  Allocate(pool, 1);
  pool.RaiseFence();
  pool.Free(1);

  EXPECT_DEATH(pool.Free(1), "ref_count > 0");
}

TEST(BlockPoolTest, CountsBlocksWithMoreThanOneReference) {
  BlockPool pool(5);
  Allocate(pool, 3);
  EXPECT_EQ(pool.num_shared_blocks(), 0);

  pool.Touch(1);
  pool.Touch(1);
  pool.Touch(2);
  EXPECT_EQ(pool.num_shared_blocks(), 2);

  pool.Free(1);
  EXPECT_EQ(pool.num_shared_blocks(), 2);
  pool.Free(1);
  EXPECT_EQ(pool.num_shared_blocks(), 1);
  pool.Free(2);
  pool.Free(2);
  EXPECT_EQ(pool.num_shared_blocks(), 0);
  pool.CheckInvariants();
}

// Pages 1 and 2 are whole. The first one lacks the null block, the last one has one block.
TEST(BlockPoolTest, EachTableOpensAWholePageAndFillsIt) {
  BlockPool pool(25, /*blocks_per_page=*/8);
  std::vector<BlockId> a;
  std::vector<BlockId> b;

  EXPECT_TRUE(pool.Allocate(3, a));
  EXPECT_TRUE(pool.Allocate(2, b));
  EXPECT_TRUE(pool.Allocate(6, a));

  EXPECT_THAT(a, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15, 1)) << "no page is whole any more";
  EXPECT_THAT(b, ElementsAre(16, 17));
  pool.CheckInvariants();
}

TEST(BlockPoolTest, ATableThatLacksItsPageGoesOnAtTheSamePlaceOfAnother) {
  BlockPool pool(32, /*blocks_per_page=*/8);
  std::vector<BlockId> a = Allocate(pool, 3);
  std::vector<BlockId> fork = {a[0], a[1]};

  EXPECT_TRUE(pool.Allocate(2, fork));

  EXPECT_THAT(fork, ElementsAre(8, 9, 18, 19));
}

TEST(BlockPoolTest, APageIsWholeWhenItsLastBlockIsFree) {
  BlockPool pool(32, /*blocks_per_page=*/8);
  Allocate(pool, 2);
  Allocate(pool, 1);
  EXPECT_EQ(pool.num_whole_pages(), 1);

  pool.Free(9);
  EXPECT_EQ(pool.num_whole_pages(), 1);
  pool.Free(8);
  EXPECT_EQ(pool.num_whole_pages(), 2);
  pool.Touch(12);
  EXPECT_EQ(pool.num_whole_pages(), 1);
  EXPECT_THAT(Allocate(pool, 1), ElementsAre(24));
  pool.CheckInvariants();
}

// A table that grows in its page comes to the page's last block last.
TEST(BlockPoolTest, WithoutWholePagesTheEndsOfPagesAreTakenFirst) {
  BlockPool pool(16, /*blocks_per_page=*/8);
  std::vector<BlockId> growing = Allocate(pool, 1);
  EXPECT_THAT(Allocate(pool, 8), ElementsAre(1, 2, 3, 4, 5, 6, 7, 15));

  EXPECT_TRUE(pool.Allocate(2, growing));

  EXPECT_THAT(growing, ElementsAre(8, 9, 10));
}

TEST(BlockPoolTest, CountsCachedBlocksWhileTheyAreFree) {
  BlockPool pool(5);
  Allocate(pool, 3);
  pool.MarkCached(1, true);
  pool.MarkCached(2, true);
  EXPECT_EQ(pool.num_free_cached_blocks(), 0);  // they are used

  pool.Free(1);
  pool.RaiseFence();
  pool.Free(2);
  EXPECT_EQ(pool.num_free_cached_blocks(), 1);  // the other is pending
  pool.LowerFence();
  EXPECT_EQ(pool.num_free_cached_blocks(), 2);
  pool.CheckInvariants();

  pool.Touch(1);
  EXPECT_EQ(pool.num_free_cached_blocks(), 1);
  pool.MarkCached(2, false);
  pool.MarkCached(2, false);
  EXPECT_EQ(pool.num_free_cached_blocks(), 0);
  pool.CheckInvariants();
}

}  // namespace
}  // namespace quire
