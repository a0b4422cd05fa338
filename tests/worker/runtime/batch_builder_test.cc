#include "worker/runtime/batch_builder.h"

#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

SequenceState MakeSequence(std::vector<TokenId> token_ids,
                           int32_t num_computed_tokens,
                           std::vector<BlockId> block_ids) {
  SequenceState state;
  state.num_prompt_tokens = static_cast<int32_t>(token_ids.size());
  state.token_ids = std::move(token_ids);
  state.num_computed_tokens = num_computed_tokens;
  state.block_ids = std::move(block_ids);
  return state;
}

TEST(BatchBuilderTest, LaysOutADecodeAPiecePrefillAndAWholePrefill) {
  SequenceState decode = MakeSequence({1, 2, 3, 4, 5, 6}, 5, {9, 3});
  decode.num_prompt_tokens = 5;
  SequenceState piece = MakeSequence({10, 11, 12, 13, 14, 15, 16}, 2, {7, 8});
  SequenceState whole = MakeSequence({20, 21}, 0, {5, 6});  // one block more than it needs yet
  std::vector<ScheduledSlice> slices = {{.handle = 0, .num_tokens = 1, .sequence = &decode},
                                        {.handle = 1, .num_tokens = 4, .sequence = &piece},
                                        {.handle = 2, .num_tokens = 2, .sequence = &whole}};
  Batch batch;

  BuildBatch(slices, 4, BlockLookup::kTables, &batch);

  EXPECT_EQ(batch.token_ids, (std::vector<TokenId>{6, 12, 13, 14, 15, 20, 21}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{5, 2, 3, 4, 5, 0, 1}));
  EXPECT_EQ(batch.slot_mapping, (std::vector<int64_t>{13, 30, 31, 32, 33, 20, 21}));
  EXPECT_EQ(batch.query_start, (std::vector<int32_t>{0, 1, 5, 7}));
  EXPECT_EQ(batch.seq_lens, (std::vector<int32_t>{6, 6, 2}));
  EXPECT_EQ(batch.max_blocks_per_seq, 2);
  EXPECT_EQ(batch.block_tables, (std::vector<BlockId>{9, 3, 7, 8, 5, kNullBlockId}));
  EXPECT_EQ(batch.logits_rows, (std::vector<int32_t>{0, 6}));  // the piece does not end it
  EXPECT_EQ(batch.begins_in_prompt, (std::vector<uint8_t>{0, 1, 1}));
}

TEST(BatchBuilderTest, AUsedBatchKeepsNothing) {
  SequenceState sequence = MakeSequence({1, 2, 3}, 0, {4});
  Batch batch;
  BuildBatch(
      {{.handle = 0, .num_tokens = 3, .sequence = &sequence}}, 4, BlockLookup::kTables, &batch);

  BuildBatch({}, 4, BlockLookup::kTables, &batch);

  EXPECT_EQ(batch.num_tokens(), 0);
  EXPECT_EQ(batch.num_seqs(), 0);
  EXPECT_EQ(batch.query_start, std::vector<int32_t>{0});
  EXPECT_TRUE(batch.block_tables.empty());
  EXPECT_TRUE(batch.begins_in_prompt.empty());
  EXPECT_TRUE(batch.logits_rows.empty());
}

TEST(BatchBuilderTest, SlotsOfAHugePoolDoNotOverflow) {
  SequenceState sequence = MakeSequence({1}, 0, {2'000'000'000});
  Batch batch;

  BuildBatch(
      {{.handle = 0, .num_tokens = 1, .sequence = &sequence}}, 256, BlockLookup::kTables, &batch);

  EXPECT_EQ(batch.slot_mapping, std::vector<int64_t>{512'000'000'000});
}

}  // namespace
}  // namespace quire
