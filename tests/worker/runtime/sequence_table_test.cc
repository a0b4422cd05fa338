#include "worker/runtime/sequence_table.h"

#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr int32_t kNumBlocks = 20;

SequenceIntroduction Introduction(SequenceHandle handle, std::vector<BlockId> block_ids) {
  return {.handle = handle, .token_ids = {1}, .block_ids = std::move(block_ids)};
}

TEST(SequenceTableTest, SharedBlocksCountOnceAndTheNullBlockNever) {
  SequenceTable table(4, kNumBlocks);
  EXPECT_EQ(table.num_blocks(), 0);

  table.Introduce(Introduction(0, {kNullBlockId, 3, 4}));
  table.Introduce(Introduction(1, {kNullBlockId, 3, 5}));

  EXPECT_EQ(table.num_blocks(), 3);
  EXPECT_EQ(table.num_sequences(), 2);
}

TEST(SequenceTableTest, ABlockGoesWithTheLastSequenceThatNamesIt) {
  SequenceTable table(4, kNumBlocks);
  table.Introduce(Introduction(0, {3, 4}));
  table.Introduce(Introduction(1, {3}));
  const std::vector<BlockId> more = {19, 4};
  table.Append(more, table.Find(1));
  EXPECT_EQ(table.Find(1)->block_ids, (std::vector<BlockId>{3, 19, 4}));
  EXPECT_EQ(table.num_blocks(), 3);

  table.Release(0);
  EXPECT_EQ(table.num_blocks(), 3);
  table.Release(1);
  EXPECT_EQ(table.num_blocks(), 0);
}

TEST(SequenceTableTest, AHandleThatIsGivenAgainForgetsItsBlocks) {
  SequenceTable table(4, kNumBlocks);
  table.Introduce(Introduction(2, {3, 4, 5}));
  table.Introduce(Introduction(2, {5, 6}));
  EXPECT_EQ(table.num_blocks(), 2);
  EXPECT_EQ(table.num_sequences(), 1);

  table.Release(2);
  table.Introduce(Introduction(2, {7}));
  EXPECT_EQ(table.num_blocks(), 1);
}

TEST(SequenceTableTest, AShortSequenceHasNotTheMemoryOfALongOneBefore) {
  SequenceTable table(4, kNumBlocks);
  SequenceIntroduction with_much = Introduction(2, std::vector<BlockId>(1000, 3));
  with_much.token_ids.resize(100'000);
  for (const bool is_released : {true, false}) {
    table.Introduce(with_much);
    if (is_released) {
      table.Release(2);
    }
    table.Introduce(Introduction(2, {5}));

    EXPECT_LT(table.Find(2)->token_ids.capacity(), 100U);
    EXPECT_LT(table.Find(2)->block_ids.capacity(), 100U);
    EXPECT_EQ(table.num_blocks(), 1);
  }
}

}  // namespace
}  // namespace quire
