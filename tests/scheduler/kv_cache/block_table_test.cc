#include "scheduler/kv_cache/block_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/kv_cache/kv_cache_manager.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

class BlockTableTest : public ::testing::Test {
 protected:
  KvCacheManager manager_{BlockPool(9), 4};
  BlockTable table_;
};

TEST_F(BlockTableTest, StartsEmpty) {
  EXPECT_TRUE(table_.empty());
  EXPECT_EQ(table_.num_blocks(), 0);
  EXPECT_EQ(table_.num_tokens(), 0);
}

TEST_F(BlockTableTest, MapsLogicalToPhysicalBlocks) {
  ASSERT_TRUE(manager_.Append(table_, 9).has_value());

  EXPECT_THAT(table_.block_ids(), ElementsAre(1, 2, 3));
  EXPECT_EQ(table_[0], 1);
  EXPECT_EQ(table_[2], 3);
}

TEST_F(BlockTableTest, CountsTheFilledPositionsOfEachBlock) {
  ASSERT_TRUE(manager_.Append(table_, 9).has_value());

  EXPECT_EQ(table_.NumFilled(0, 4), 4);
  EXPECT_EQ(table_.NumFilled(1, 4), 4);
  EXPECT_EQ(table_.NumFilled(2, 4), 1);
}

TEST_F(BlockTableTest, AbandonForgetsWithoutGivingBack) {
  ASSERT_TRUE(manager_.Append(table_, 9).has_value());

  table_.Abandon();

  EXPECT_TRUE(table_.empty());
  EXPECT_EQ(table_.num_tokens(), 0);
  EXPECT_EQ(manager_.pool().num_used_blocks(), 3);
}

using BlockTableDeathTest = BlockTableTest;

TEST_F(BlockTableDeathTest, RefusesAnIndexBehindTheEnd) {
  ASSERT_TRUE(manager_.Append(table_, 4).has_value());

  EXPECT_DEATH(table_[1], "logical_block_index");
  EXPECT_DEATH(table_[-1], "logical_block_index");
  EXPECT_DEATH((void)table_.NumFilled(1, 4), "logical_block_index");
}

}  // namespace
}  // namespace quire
