#include "scheduler/core/block_map.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/core_state.h"
#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr BlockMapLimits kAll = {.max_cells = 100, .max_holders = 100};

std::vector<int32_t> Column(const BlockMap& map, int32_t BlockMapCell::*column) {
  std::vector<int32_t> values;
  for (const BlockMapCell& cell : map.cells) {
    values.push_back(cell.*column);
  }
  return values;
}

std::vector<uint64_t> HoldersOfCells(const BlockMap& map) {
  std::vector<uint64_t> values;
  for (const BlockMapCell& cell : map.cells) {
    values.push_back(cell.holder.value());
  }
  return values;
}

// 8 blocks of 4 tokens.
class BlockMapTest : public CoreFixture {
 protected:
  // Requests 1 of 2 blocks, 2 of 3 blocks.
  void RunTwo() {
    Add({.id = 1, .prompt = 7});
    Add({.id = 2, .prompt = 9});
    Step();
  }
};

TEST_F(BlockMapTest, EachBlockHasItsStateAndItsHolder) {
  RunTwo();

  const BlockMap map = MakeBlockMap(state_, kAll);

  EXPECT_EQ(map.blocks_per_cell, 1);
  EXPECT_THAT(Column(map, &BlockMapCell::num_active), ElementsAre(1, 1, 1, 1, 1, 0, 0, 0));
  EXPECT_THAT(Column(map, &BlockMapCell::num_shared), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(HoldersOfCells(map), ElementsAre(1, 1, 2, 2, 2, 0, 0, 0));
  ASSERT_THAT(map.holders, SizeIs(2));
  EXPECT_EQ(map.holders[0].id, RequestId(2));
  EXPECT_EQ(map.holders[0].num_blocks, 3);
  EXPECT_EQ(map.holders[0].num_sequences, 1);
  EXPECT_EQ(map.holders[0].num_prompt_tokens, 9);
  EXPECT_EQ(map.holders[0].num_output_tokens, 1);
  EXPECT_FALSE(map.holders[0].is_prefix);
  EXPECT_EQ(map.holders[1].num_blocks, 2);
}

TEST_F(BlockMapTest, CellsStandForBlocksThatLieSideBySide) {
  RunTwo();

  const BlockMap map = MakeBlockMap(state_, {.max_cells = 3, .max_holders = 100});

  EXPECT_EQ(map.blocks_per_cell, 3);
  EXPECT_THAT(Column(map, &BlockMapCell::num_active), ElementsAre(3, 2, 0));
  EXPECT_THAT(HoldersOfCells(map), ElementsAre(1, 2, 0));
}

TEST_F(BlockMapTest, ACellIsWhoseMostOfItIs) {
  Add({.id = 1, .prompt = 3});
  Add({.id = 2, .prompt = 9});
  Step();

  const BlockMap map = MakeBlockMap(state_, {.max_cells = 2, .max_holders = 0});

  EXPECT_THAT(HoldersOfCells(map), ElementsAre(2, 0));
  EXPECT_THAT(map.holders, IsEmpty());
}

TEST_F(BlockMapTest, SharedBlocksCountOnce) {
  Add({.id = 1, .prompt = 9, .max_tokens = 4, .num_sequences = 2});
  Step();

  const BlockMap map = MakeBlockMap(state_, kAll);

  // The prompt's two full blocks, and the third, which the second sequence gets a copy of when it
  // writes to it.
  EXPECT_THAT(Column(map, &BlockMapCell::num_active), ElementsAre(1, 1, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(Column(map, &BlockMapCell::num_shared), ElementsAre(1, 1, 0, 0, 0, 0, 0, 0));
  ASSERT_THAT(map.holders, SizeIs(1));
  EXPECT_EQ(map.holders[0].num_blocks, 3);
  EXPECT_EQ(map.holders[0].num_sequences, 2);
}

TEST_F(BlockMapTest, BlocksThatWereGivenBackDuringAStepLeave) {
  RunTwo();
  ASSERT_TRUE(Plan().has_value());
  state_.FinishGroup(*state_.Find(RequestId(1)), FinishReason::kAborted);

  const BlockMap map = MakeBlockMap(state_, kAll);

  EXPECT_THAT(Column(map, &BlockMapCell::num_leaving), ElementsAre(1, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(HoldersOfCells(map), ElementsAre(0, 0, 2, 2, 2, 0, 0, 0));
  Apply(Answer(5));
  EXPECT_THAT(Column(MakeBlockMap(state_, kAll), &BlockMapCell::num_leaving),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(BlockMapTest, WithoutWorkersThereAreNoCells) {
  RunTwo();
  state_.LoseWorkers();

  const BlockMap map = MakeBlockMap(state_, kAll);

  EXPECT_THAT(map.cells, IsEmpty());
  EXPECT_THAT(map.holders, IsEmpty());
}

class CachedBlockMapTest : public BlockMapTest {
 protected:
  CachedBlockMapTest() {
    state_.config.prefix_caching = true;
    state_.config.block_hash_key = {.low = 1, .high = 2};
  }
  // A request with this prompt.
  void AddLike(uint64_t id, const std::vector<TokenId>& prompt) {
    state_.Add({.id = RequestId(id), .prompt_token_ids = prompt, .max_tokens = 1});
  }
};

TEST_F(CachedBlockMapTest, BlocksThatAreFoundStayInTheMap) {
  AddLike(1, {1, 2, 3, 4, 5, 6});
  Step();  // ends it

  const BlockMap map = MakeBlockMap(state_, kAll);

  EXPECT_THAT(Column(map, &BlockMapCell::num_cached), ElementsAre(1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(HoldersOfCells(map), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(CachedBlockMapTest, WhoeverIsServedFirstHasWhatRequestsShare) {
  AddLike(1, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  AddLike(2, {1, 2, 3, 4, 5, 6, 7, 8, 10});
  ASSERT_TRUE(Plan().has_value());

  const BlockMap map = MakeBlockMap(state_, kAll);

  EXPECT_THAT(Column(map, &BlockMapCell::num_shared), ElementsAre(1, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(HoldersOfCells(map), ElementsAre(1, 1, 1, 2, 0, 0, 0, 0));
  ASSERT_THAT(map.holders, SizeIs(2));
  EXPECT_EQ(map.holders[0].num_blocks, 3);
  EXPECT_EQ(map.holders[1].num_blocks, 1);
  Apply(Answer(5));
}

}  // namespace
}  // namespace quire
