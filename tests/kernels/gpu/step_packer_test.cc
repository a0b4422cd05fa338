#include "kernels/gpu/step_packer.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/random.h"

namespace quire {
namespace {

using testing::ElementsAre;

constexpr int32_t kGroup = 4;
constexpr int32_t kSplitTokens = 256;
constexpr int32_t kColumns = 3;
constexpr StepShape kShape = {
    .num_heads = 2 * kGroup, .num_kv_heads = 2, .head_dim = 64, .split_tokens = kSplitTokens};
const int64_t kSplitBytes = PartialBytes({.num_splits = 1}, kShape);

// Decodes by lines, of up to 16 tokens.
StepShape Lines() {
  StepShape shape = kShape;
  shape.lines = {.num_ctas = 3, .half_tile_floats = 100, .max_query_tokens = 16};
  return shape;
}

// The host arrays of a step: a sequence brings query_len tokens and has seq_len with them.
struct Step {
  std::vector<TokenId> token_ids;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<int32_t> query_start = {0};
  std::vector<int32_t> seq_lens;
  std::vector<BlockId> tables;
  std::vector<int64_t> first_places;  // in place of the tables, where there are any
  std::vector<int32_t> logits_rows;

  void Add(int32_t query_len, int32_t seq_len, bool is_sampled) {
    for (int32_t i = 0; i < query_len; ++i) {
      token_ids.push_back(static_cast<TokenId>(100 + token_ids.size()));
      positions.push_back(seq_len - query_len + i);
      slots.push_back(1000 + static_cast<int64_t>(slots.size()));
    }
    query_start.push_back(static_cast<int32_t>(token_ids.size()));
    seq_lens.push_back(seq_len);
    for (int32_t column = 0; column < kColumns; ++column) {
      tables.push_back(static_cast<BlockId>(10 * seq_lens.size()) + column);
    }
    if (is_sampled) {
      logits_rows.push_back(static_cast<int32_t>(token_ids.size()) - 1);
    }
  }

  StepInputs View() const {
    return {.num_tokens = static_cast<int32_t>(token_ids.size()),
            .num_seqs = static_cast<int32_t>(seq_lens.size()),
            .num_logits = static_cast<int32_t>(logits_rows.size()),
            .max_blocks_per_seq = kColumns,
            .token_ids = token_ids.data(),
            .positions = positions.data(),
            .slot_mapping = slots.data(),
            .query_start = query_start.data(),
            .seq_lens = seq_lens.data(),
            .block_tables = first_places.empty() ? tables.data() : nullptr,
            .first_places = first_places.empty() ? nullptr : first_places.data(),
            .logits_rows = logits_rows.data()};
  }
};

// Packs into its own memory, so that the pointers of the result can be followed.
class StepPackerTest : public testing::Test {
 protected:
  PackedStep Pack(const Step& step,
                  bool pad_decodes = true,
                  int64_t max_partial_bytes = 100 * kSplitBytes,
                  const StepShape& shape = kShape) {
    StepPacker packer(shape, pad_decodes);
    memory_.assign(static_cast<size_t>(packer.Plan(step.View(), max_partial_bytes)),
                   std::byte{0xFF});
    return packer.Write(step.View(), memory_.data(), memory_.data());
  }

  template <typename T>
  static std::vector<T> List(const T* values, int32_t count) {
    return {values, values + count};
  }

 private:
  std::vector<std::byte> memory_;
};

TEST_F(StepPackerTest, DecodesArePaddedToABucketWithRowsThatTakePartInNothing) {
  Step step;
  step.Add(1, 300, true);
  step.Add(1, 5, true);
  step.Add(1, 256, true);

  const PackedStep packed = Pack(step);

  EXPECT_TRUE(packed.is_decode_only);
  EXPECT_EQ(packed.inputs.num_seqs, 4);
  EXPECT_EQ(packed.inputs.max_blocks_per_seq, kColumns);
  EXPECT_EQ(packed.num_decodes, 4);
  EXPECT_EQ(packed.num_items, 0);
  EXPECT_EQ(packed.decode_seq_index, nullptr);
  EXPECT_TRUE(packed.is_replayable);
  EXPECT_THAT(packed.groups, ElementsAre(DecodeGroup{.first = 0, .count = 4}));
  const StepInputs& inputs = packed.inputs;
  EXPECT_EQ(inputs.num_tokens, 4);
  EXPECT_THAT(List(inputs.token_ids, 4), ElementsAre(100, 101, 102, 0));
  EXPECT_THAT(List(inputs.positions, 4), ElementsAre(299, 4, 255, 0));
  EXPECT_THAT(List(inputs.slot_mapping, 4), ElementsAre(1000, 1001, 1002, -1));
  EXPECT_THAT(List(inputs.seq_lens, 4), ElementsAre(300, 5, 256, 0));
  EXPECT_THAT(List(inputs.query_start, 5), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(List(inputs.logits_rows, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(List(inputs.block_tables, 12),
              ElementsAre(10, 11, 12, 20, 21, 22, 30, 31, 32, 0, 0, 0));
}

TEST_F(StepPackerTest, WindowsComeInPlaceOfTables) {
  Step step;
  step.Add(1, 300, true);
  step.Add(1, 5, true);
  step.Add(1, 256, true);
  EXPECT_EQ(Pack(step).inputs.first_places, nullptr);
  step.first_places = {64, 0, int64_t{1} << 25};

  const PackedStep packed = Pack(step);

  EXPECT_THAT(List(packed.inputs.first_places, 4), ElementsAre(64, 0, int64_t{1} << 25, 0));
}

TEST_F(StepPackerTest, AMixedStepGivesDecodesAndPrefillsTheirOwnKernels) {
  Step step;
  step.Add(40, 40, true);    // 160 rows: two items
  step.Add(1, 700, true);    // a decode of three splits
  step.Add(32, 132, false);  // 128 rows: one item, not sampled

  const PackedStep packed = Pack(step);

  EXPECT_FALSE(packed.is_decode_only);
  EXPECT_EQ(packed.inputs.num_tokens, 73);
  EXPECT_EQ(packed.inputs.max_blocks_per_seq, kColumns);
  EXPECT_THAT(List(packed.decode_seq_index, packed.num_decodes), ElementsAre(1));
  EXPECT_THAT(packed.groups, ElementsAre(DecodeGroup{.first = 0, .count = 1}));
  std::vector<std::pair<int32_t, int32_t>> items;
  for (const gpu::PrefillItem& item : List(packed.items, packed.num_items)) {
    items.emplace_back(item.sequence, item.first_row);
  }
  // The longest context first: sequence 2 has 100 tokens before its first row.
  EXPECT_THAT(items, ElementsAre(std::pair(2, 0), std::pair(0, 128), std::pair(0, 0)));
  EXPECT_THAT(List(packed.inputs.logits_rows, packed.inputs.num_logits), ElementsAre(39, 40));
}

TEST_F(StepPackerTest, ADecodeThatIsNotSampledKeepsTheStepFromBeingRepeated) {
  Step step;
  step.Add(1, 8, true);
  step.Add(1, 9, false);

  EXPECT_FALSE(Pack(step).is_decode_only);
}

TEST_F(StepPackerTest, WithoutPaddingTheArraysAreThoseGiven) {
  Step step;
  step.Add(1, 8, true);
  step.Add(1, 9, true);
  step.Add(1, 10, true);

  const PackedStep packed = Pack(step, /*pad_decodes=*/false);

  EXPECT_FALSE(packed.is_decode_only);
  EXPECT_EQ(packed.inputs.num_seqs, 3);
  EXPECT_THAT(List(packed.decode_seq_index, packed.num_decodes), ElementsAre(0, 1, 2));
  EXPECT_THAT(List(packed.inputs.seq_lens, 3), ElementsAre(8, 9, 10));
}

// Splits: 2, 1, 1, 3 and none for padding. At most three of a group have memory.
TEST_F(StepPackerTest, DecodesAreCutIntoGroupsWhosePartialResultsFit) {
  Step step;
  step.Add(1, 300, true);
  step.Add(1, 5, true);
  step.Add(1, 256, true);
  step.Add(1, 700, true);
  step.Add(1, 1, true);

  const PackedStep packed = Pack(step, /*pad_decodes=*/true, 3 * kSplitBytes);

  EXPECT_TRUE(packed.is_decode_only);
  EXPECT_FALSE(packed.is_replayable) << "its groups depend on lengths";
  EXPECT_THAT(packed.groups,
              ElementsAre(DecodeGroup{.first = 0, .count = 2},
                          DecodeGroup{.first = 2, .count = 1},
                          DecodeGroup{.first = 3, .count = 1},
                          DecodeGroup{.first = 4, .count = 4}));
  EXPECT_THAT(List(packed.decode_seq_index, packed.num_decodes),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

// A KV head has 4 query heads, so that 16 tokens have 64 rows. Decodes of one token come first.
TEST_F(StepPackerTest, ByLinesShortQueriesDecodeInAGroupOfTheirOwn) {
  Step step;
  step.Add(16, 600, true);
  step.Add(1, 300, true);
  step.Add(17, 40, true);
  step.Add(2, 2, false);
  step.Add(1, 5, true);

  const PackedStep packed = Pack(step, true, int64_t{1} << 20, Lines());

  EXPECT_THAT(List(packed.decode_seq_index, packed.num_decodes), ElementsAre(1, 4, 0, 3));
  EXPECT_THAT(packed.groups,
              ElementsAre(DecodeGroup{.first = 0, .count = 2},
                          DecodeGroup{.first = 2, .count = 2, .max_query_tokens = 16}));
  ASSERT_EQ(packed.num_items, 1);
  EXPECT_EQ(packed.items[0].sequence, 2);
  EXPECT_FALSE(packed.is_replayable);
}

TEST_F(StepPackerTest, ByLinesShortQueriesWithoutMemoryForPartialResultsArePrefilled) {
  Step step;
  step.Add(16, 600, true);
  step.Add(16, 256, true);  // one split, which is never shared
  step.Add(1, 9000, true);

  const PackedStep packed = Pack(step, true, /*max_partial_bytes=*/1, Lines());

  EXPECT_THAT(List(packed.decode_seq_index, packed.num_decodes), ElementsAre(2, 1));
  EXPECT_EQ(packed.num_items, 1);
  EXPECT_EQ(packed.items[0].sequence, 0);
}

TEST_F(StepPackerTest, ASingleTokenOfAPromptIsPrefilledIfBitsArePromised) {
  Step step;
  step.Add(1, 300, true);
  step.Add(1, 300, true);
  StepInputs host = step.View();
  const uint8_t begins_in_prompt[] = {0, 1};
  host.begins_in_prompt = begins_in_prompt;
  for (const bool prefills : {false, true}) {
    StepShape shape = Lines();
    shape.prefills_single_tokens = prefills;
    StepPacker packer(shape, /*pad_decodes=*/true);
    std::vector<std::byte> memory(static_cast<size_t>(packer.Plan(host, 1 << 20)));

    const PackedStep packed = packer.Write(host, memory.data(), memory.data());

    EXPECT_EQ(packed.num_decodes, prefills ? 1 : 2);
    EXPECT_EQ(packed.num_items, prefills ? 1 : 0);
    EXPECT_EQ(packed.is_decode_only, !prefills);
  }
}

// A graph holds the addresses. Only the table's moves with its width.
TEST_F(StepPackerTest, ArraysOfABucketHaveTheSamePlacesWhateverTheWidthOfTheTables) {
  Step step;
  step.Add(1, 300, true);
  step.Add(1, 5, true);
  StepInputs narrow = step.View();
  narrow.max_blocks_per_seq = 1;
  StepPacker packer(kShape, /*pad_decodes=*/true);
  std::vector<std::byte> memory(4096);
  packer.Plan(narrow, kSplitBytes, /*num_extra_bytes=*/40);
  const PackedStep first = packer.Write(narrow, memory.data(), memory.data());
  packer.Plan(step.View(), kSplitBytes, /*num_extra_bytes=*/40);

  const PackedStep second = packer.Write(step.View(), memory.data(), memory.data());

  EXPECT_EQ(first.inputs.token_ids, second.inputs.token_ids);
  EXPECT_EQ(first.inputs.logits_rows, second.inputs.logits_rows);
  EXPECT_EQ(first.inputs.query_start, second.inputs.query_start);
  EXPECT_EQ(first.extra, second.extra);
  EXPECT_EQ(second.extra_at_destination, second.extra);
  EXPECT_GE(reinterpret_cast<const std::byte*>(second.inputs.block_tables), second.extra + 40);
}

// Every step within the bounds fits into the memory that they ask for.
TEST_F(StepPackerTest, StepsWithinTheBoundsNeedNoMoreThanTheBoundsSay) {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    Step step;
    const int32_t num_seqs = 1 + random.Below(40);
    const bool decodes = random.Below(3) == 0;
    for (int32_t seq = 0; seq < num_seqs; ++seq) {
      const int32_t query_len = decodes || random.Below(2) == 0 ? 1 : 1 + random.Below(90);
      step.Add(query_len, query_len + random.Below(2000), decodes || random.Below(4) > 0);
    }
    if (random.Below(3) == 0) {
      step.first_places.assign(static_cast<size_t>(num_seqs), 64);
    }
    const StepInputs host = step.View();
    const StepBounds bounds = {.max_tokens = host.num_tokens,
                               .max_seqs = num_seqs,
                               .max_context_tokens = 2090,
                               .max_blocks_per_seq = kColumns};
    const StepShape shape = random.Below(2) == 0 ? kShape : Lines();
    StepPacker packer(shape, /*pad_decodes=*/random.Below(4) > 0);
    const int64_t max_bytes = (1 + random.Below(20)) * kSplitBytes;

    const int64_t bytes = packer.Plan(host, max_bytes);

    ASSERT_LE(bytes, StepPacker::MaxBytes(bounds, kGroup));
    std::vector<std::byte> memory(static_cast<size_t>(bytes));
    const PackedStep packed = packer.Write(host, memory.data(), memory.data());
    int32_t num_decodes = 0;
    for (const DecodeGroup& group : packed.groups) {
      ASSERT_EQ(group.first, num_decodes);
      num_decodes += group.count;
      DecodeWork work;
      for (int32_t i = group.first; i < num_decodes; ++i) {
        const int32_t seq = packed.decode_seq_index == nullptr ? i : packed.decode_seq_index[i];
        const int32_t query_len =
            seq < num_seqs ? host.query_start[seq + 1] - host.query_start[seq] : 1;
        work = seq < num_seqs ? Join(work, WorkOf(host.seq_lens[seq], query_len, shape)) : work;
      }
      ASSERT_EQ(work.query_tokens, group.max_query_tokens);
      ASSERT_TRUE(PartialBytes(work, shape) <= max_bytes ||
                  (group.count == 1 && group.max_query_tokens == 1));
    }
    ASSERT_EQ(num_decodes, packed.num_decodes);
    ASSERT_LE(num_decodes + static_cast<int64_t>(packed.groups.size()),
              StepPacker::MaxSplitStarts(bounds));
  }
}

TEST(DecodeBucketTest, GrowsFinelyAtFirstAndCoarselyLater) {
  const std::vector<std::pair<int32_t, int32_t>> expected = {{1, 1},
                                                             {2, 2},
                                                             {3, 4},
                                                             {5, 8},
                                                             {8, 8},
                                                             {9, 16},
                                                             {17, 24},
                                                             {64, 64},
                                                             {65, 80},
                                                             {256, 256},
                                                             {257, 288},
                                                             {512, 512}};
  for (const auto& [num_seqs, bucket] : expected) {
    EXPECT_EQ(DecodeBucket(num_seqs), bucket) << num_seqs;
  }
}

TEST(DecodeBucketTest, PadsNoMoreThanStepInputsSay) {
  for (int32_t num_seqs = 1; num_seqs <= 4096; ++num_seqs) {
    EXPECT_GE(DecodeBucket(num_seqs), num_seqs);
    EXPECT_LE(DecodeBucket(num_seqs), num_seqs + kMaxPaddingRows);
  }
}

}  // namespace
}  // namespace quire
