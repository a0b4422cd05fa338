// Decode by lines (DecodeKernel::kLines). paged_decode_test.cc has the same claims about kSplits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/line_decode.h"
#include "tests/kernels/cuda/line_types.h"
#include "tests/kernels/cuda/swizzled_rows.h"

namespace quire::gpu {
namespace {

constexpr int32_t kSplitTokens = 64;

// ---- The plan -----------------------------------------------------------------------------------

TEST(PlanLinesTest, SplitsAreCountedForEveryKvHeadAndGroupOfRows) {
  AttentionProblem problem = {.num_heads = 24, .num_kv_heads = 2};
  problem.sequences = {{.query_len = 1, .seq_len = 65, .key = 1},
                       {.query_len = 5, .seq_len = 64, .key = 2},
                       {.query_len = 1, .seq_len = 0, .key = 3},
                       {.query_len = 6, .seq_len = 200, .key = 4}};
  AttentionData data(problem);
  DeviceAttention device(data);
  LineDecode decode(device.params(), {.split_tokens = 64, .max_query_tokens = 6});

  ASSERT_EQ(decode.Plan(device.params(), nullptr), 0);

  // A line has 64 rows, and a query token has 12: 12, 60 and 72 rows. Splits: 2, 1, 0, 4.
  EXPECT_EQ(decode.SplitStart(),
            (std::vector<int32_t>{0, 2 * 2, 2 * 2 + 2, 2 * 2 + 2, 2 * 2 + 2 + 4 * 2 * 2}));
}

TEST(PlanLinesTest, SplitsBeforeTheWindowOfTheFirstQueryDoNotCount) {
  // With 4 queries of 200 and a window of 10, the first query reads from key 187, in split 2 of 64.
  AttentionProblem problem = {.num_heads = 1, .num_kv_heads = 1, .sliding_window = 10};
  problem.sequences = {{.query_len = 4, .seq_len = 200, .key = 1},
                       {.query_len = 1, .seq_len = 200, .key = 2}};
  AttentionData data(problem);
  DeviceAttention device(data);
  LineDecode decode(device.params(), {.split_tokens = 64, .max_query_tokens = 4});

  ASSERT_EQ(decode.Plan(device.params(), nullptr), 0);

  EXPECT_EQ(decode.SplitStart(), (std::vector<int32_t>{0, 2, 4}));
}

// ---- Types, sizes, lengths ----------------------------------------------------------------------

class DecodeLinesTypesTest : public TypesAndSizeTest {};

TEST_P(DecodeLinesTypesTest, AgreesWithTheReferenceAroundTheEndsOfBlocksAndSplits) {
  const int32_t groups[] = {1, 2, 3, 4, 7, 8, 12, 16};
  int32_t i = std::get<1>(GetParam()) / 16;
  for (int32_t block_size : {8, 16, 32, 64, 128, 256}) {
    AttentionProblem problem = Problem();
    problem.block_size_tokens = block_size;
    problem.num_kv_heads = 1 + i % 2;
    problem.num_heads = problem.num_kv_heads * groups[i++ % 8];
    problem.sequences = SequencesOf({0,
                                     1,
                                     block_size - 1,
                                     block_size,
                                     block_size + 1,
                                     kSplitTokens - 1,
                                     kSplitTokens,
                                     kSplitTokens + 1,
                                     150});
    SCOPED_TRACE(testing::Message() << "block size " << block_size << ", group "
                                    << problem.num_heads / problem.num_kv_heads);
    ExpectDecodes(problem);
  }
}

TEST_P(DecodeLinesTypesTest, EveryBlockSizeGoesWithEveryGroup) {
  for (int32_t block_size : {8, 16, 32, 64, 128}) {
    for (int32_t group = 1; group <= 16; ++group) {
      AttentionProblem problem = Problem();
      problem.block_size_tokens = block_size;
      problem.num_kv_heads = 1;
      problem.num_heads = group;
      problem.sequences = SequencesOf({21});
      SCOPED_TRACE(testing::Message() << "block size " << block_size << ", group " << group);
      ExpectDecodes(problem);
    }
  }
}

// Lines of 16, 32 and 64 rows, and two lines of 64.
TEST_P(DecodeLinesTypesTest, SeveralQueriesOfASequenceAttendToTheirOwnKeys) {
  for (int32_t query_len : {2, 4, 7, 9, 16}) {
    AttentionProblem problem = Problem();
    problem.num_kv_heads = 1;
    problem.num_heads = 7;
    problem.sequences = {{.query_len = query_len, .seq_len = 150, .key = 1},
                         {.query_len = query_len, .seq_len = query_len, .key = 2},
                         {.query_len = 1, .seq_len = 67, .key = 3},
                         {.query_len = query_len / 2, .seq_len = 64 + query_len / 4, .key = 4}};
    SCOPED_TRACE(testing::Message() << query_len << " queries");
    ExpectDecodes(problem);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecodeLinesTypesTest, AllTypesAndSizes(), NameOfTypesAndSize);

TEST(DecodeLinesTest, EveryGroupIsComputedAlsoThoseOfMoreThan64Heads) {
  for (int32_t group : {1, 2, 5, 8, 11, 16, 17, 20, 32, 33, 64, 71}) {
    SCOPED_TRACE(group);
    ExpectDecodes({.num_heads = 2 * group, .sequences = SequencesOf({70, 9})});
  }
}

TEST(DecodeLinesTest, MoreBlocksThanAreLookedUpAtOnceAreRead) {
  // The copying warp looks up 32 blocks at a time.
  for (int32_t block_size : {8, 32, 128}) {
    ExpectDecodes({.num_heads = 2,
                   .num_kv_heads = 1,
                   .block_size_tokens = block_size,
                   .sequences = SequencesOf({2300, 4200})},
                  {.split_tokens = 1280});
  }
}

TEST(DecodeLinesTest, SegmentsHaveSeveralStages) {
  for (int32_t split_tokens : {64, 128, 256, 512}) {
    SCOPED_TRACE(split_tokens);
    ExpectDecodes({.num_heads = 2, .num_kv_heads = 1, .sequences = SequencesOf({900, 320, 511})},
                  {.split_tokens = split_tokens, .num_ctas = 2});
  }
}

TEST(DecodeLinesTest, LinesAreFoundInLargeBatches) {
  std::vector<int32_t> seq_lens;
  for (int32_t i = 0; i < 1100; ++i) {
    seq_lens.push_back(i % 3 == 0 ? 0 : i % 50 == 1 ? 70 : 1 + i % 7);
  }
  ExpectDecodes({.num_heads = 1, .num_kv_heads = 1, .sequences = SequencesOf(seq_lens)},
                {.num_ctas = 40});
}

TEST(DecodeLinesTest, ABatchOfPaddingIsLeftAlone) {
  ExpectDecodes({.sequences = SequencesOf({0, 0, 0})});
}

TEST(DecodeLinesTest, StridesComeFromTheLayout) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    ExpectDecodes({.cache_dtype = cache_dtype,
                   .head_dim = 80,
                   .num_heads = 6,
                   .num_kv_heads = 3,
                   .block_size_tokens = 8,
                   .has_gaps = true,
                   .sequences = SequencesOf({100, 33})});
  }
}

// ---- Scores -------------------------------------------------------------------------------------

TEST(DecodeLinesTest, TheWindowMayBeginAnywhere) {
  // The first key is 0, 1, or inside, at the end or at the beginning of a stage, block or segment.
  for (int32_t window : {1, 2, 16, 17, 63, 64, 65, 100, 128, 149, 150, 151}) {
    for (DType cache_dtype : {DType::kF16, DType::kF8E4M3}) {
      SCOPED_TRACE(window);
      ExpectDecodes({.dtype = DType::kF16,
                     .cache_dtype = cache_dtype,
                     .num_heads = 2,
                     .num_kv_heads = 1,
                     .block_size_tokens = window % 2 == 0 ? 8 : 32,
                     .sliding_window = window,
                     .sequences = SequencesOf({150, 128, 1})});
    }
  }
}

TEST(DecodeLinesTest, EveryQueryHasItsOwnWindow) {
  for (int32_t window : {1, 3, 60, 64, 100}) {
    SCOPED_TRACE(window);
    AttentionProblem problem = {.num_heads = 4, .num_kv_heads = 2, .sliding_window = window};
    problem.block_size_tokens = 8;
    problem.sequences = {{.query_len = 9, .seq_len = 150, .key = 1},
                         {.query_len = 5, .seq_len = 66, .key = 2}};
    ExpectDecodes(problem);
    ExpectDecodes(problem, {.split_tokens = 128, .num_ctas = 1});
  }
}

TEST(DecodeLinesTest, AlibiFallsWithTheDistance) {
  AttentionProblem problem = {.num_heads = 12, .num_kv_heads = 3, .alibi = true};
  problem.sequences = {{.query_len = 1, .seq_len = 200, .key = 1},
                       {.query_len = 5, .seq_len = 90, .key = 2}};
  ExpectDecodes(problem);
}

TEST(DecodeLinesTest, WindowAndAlibiWorkTogether) {
  ExpectDecodes({.dtype = DType::kF16,
                 .cache_dtype = DType::kF16,
                 .head_dim = 128,
                 .num_heads = 20,
                 .num_kv_heads = 1,
                 .sliding_window = 90,
                 .alibi = true,
                 .sequences = SequencesOf({200, 64, 5})});
}

TEST(DecodeLinesTest, SharpSoftmaxesFindTheirKey) {
  // Maxima change from stage to stage by hundreds, so that earlier weights vanish.
  ExpectDecodes({.dtype = DType::kF16,
                 .cache_dtype = DType::kF16,
                 .query_size = 100.0F,
                 .sequences = SequencesOf({300, 64, 17})},
                {.split_tokens = 128});
}

TEST(DecodeLinesTest, ARowWhoseScoresAreAllFarBelowZeroIsNotLost) {
  ExpectDecodes({.num_heads = 16,
                 .num_kv_heads = 1,
                 .query_size = 1000.0F,
                 .sequences = SequencesOf({1, 2, 3, 4, 5, 6})});
}

TEST(DecodeLinesTest, Bf16QueriesBeyondF16sRangeReadAnE4m3Cache) {
  for (float size : {1e-30F, 1e-6F, 1e6F, 1e30F}) {
    SCOPED_TRACE(size);
    ExpectDecodes({.cache_dtype = DType::kF8E4M3,
                   .k_scale = 0.03F,
                   .scale = 0.125F / size,
                   .query_size = size,
                   .sequences = SequencesOf({100, 3})});
  }
}

TEST(DecodeLinesTest, QueriesOfZeroGiveTheMeanOfTheValues) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    ExpectDecodes(
        {.cache_dtype = cache_dtype, .query_size = 0.0F, .sequences = SequencesOf({100, 3})});
  }
}

TEST(DecodeLinesTest, ANanInOneQueryHeadStaysInItsRow) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    AttentionData data({.cache_dtype = cache_dtype, .sequences = SequencesOf({100, 80})});
    std::vector<uint16_t> expected = Decoded(data);
    constexpr size_t kRow = 2;
    data.SetQuery(kRow * 64 + 5, std::numeric_limits<float>::quiet_NaN());

    std::vector<uint16_t> out = Decoded(data);

    for (size_t i = 0; i < out.size(); ++i) {
      bool in_row = i / 64 == kRow;
      EXPECT_EQ(std::isnan(ValueOf(DType::kBF16, out[i])), in_row) << i;
      EXPECT_TRUE(in_row || out[i] == expected[i]) << i;
    }
  }
}

// ---- Bits ---------------------------------------------------------------------------------------

AttentionProblem MixedLengths(DType cache_dtype = DType::kBF16) {
  return {.cache_dtype = cache_dtype,
          .head_dim = 128,
          .num_heads = 14,
          .num_kv_heads = 2,
          .sequences = SequencesOf({1, 700, 64, 65, 0, 257, 17})};
}

TEST(DecodeLinesTest, TheNumberOfCtasDoesNotChangeTheBits) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    AttentionData data(MixedLengths(cache_dtype));

    const std::vector<uint16_t> expected = Decoded(data, {.num_ctas = 1});

    for (int32_t num_ctas : {2, 3, 7, 11, 17, 132, 264}) {
      EXPECT_EQ(Decoded(data, {.num_ctas = num_ctas}), expected) << num_ctas;
    }
  }
}

TEST(DecodeLinesTest, TheNumberOfCtasDoesNotChangeTheBitsOfLinesOf32And64Rows) {
  for (int32_t query_len : {3, 6}) {
    AttentionProblem problem = MixedLengths();
    for (AttentionSequence& sequence : problem.sequences) {
      sequence.query_len = std::min(query_len, std::max(1, sequence.seq_len));
    }
    AttentionData data(problem);

    const std::vector<uint16_t> expected = Decoded(data, {.split_tokens = 128, .num_ctas = 1});

    for (int32_t num_ctas : {2, 5, 9, 40}) {
      EXPECT_EQ(Decoded(data, {.split_tokens = 128, .num_ctas = num_ctas}), expected) << num_ctas;
    }
  }
}

TEST(DecodeLinesTest, ASequenceHasTheSameBitsAloneAndInABatch) {
  AttentionData batch(MixedLengths());
  std::vector<uint16_t> together = Decoded(batch, {.num_ctas = 5});
  for (size_t s = 0; s < batch.problem().sequences.size(); ++s) {
    AttentionProblem problem = MixedLengths();
    problem.sequences = {batch.problem().sequences[s]};
    AttentionData alone(problem);

    EXPECT_EQ(Decoded(alone, {.num_ctas = 2}), RowsOf(batch, together, s)) << s;
  }
}

TEST(DecodeLinesTest, WiderLinesOfTheBatchDoNotChangeTheBits) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (bool alibi : {false, true}) {
      AttentionProblem problem = MixedLengths(cache_dtype);
      problem.alibi = alibi;
      const AttentionData data(problem);

      const std::vector<uint16_t> expected = Decoded(data);

      for (int32_t max_query_tokens : {3, 9, 16}) {  // lines of 32 and 64 rows
        EXPECT_EQ(Decoded(data, {.max_query_tokens = max_query_tokens}), expected);
      }
    }
  }
}

TEST(DecodeLinesTest, AQueryHasTheBitsThatItHasAlone) {
  constexpr int32_t kQueries = 5;
  constexpr int32_t kSeqLen = 131;
  for (int32_t window : {0, 62}) {
    AttentionProblem problem = {.num_heads = 6, .num_kv_heads = 2, .sliding_window = window};
    problem.sequences = {{.query_len = kQueries, .seq_len = kSeqLen, .key = 7}};
    const AttentionData together(problem);
    const std::vector<uint16_t> out = Decoded(together);
    for (int32_t i = 0; i < kQueries; ++i) {
      problem.sequences = {{.seq_len = kSeqLen - kQueries + 1 + i, .key = 7}};
      const AttentionData alone(problem);
      const auto width = static_cast<int64_t>(alone.OutWidth());

      EXPECT_EQ(Decoded(alone),
                std::vector<uint16_t>(out.begin() + i * width, out.begin() + (i + 1) * width))
          << "window " << window << ", query " << i;
    }
  }
}

TEST(DecodeLinesTest, WhereTheBlocksLieDoesNotChangeTheBits) {
  AttentionProblem problem = MixedLengths();
  std::vector<uint16_t> expected = Decoded(AttentionData(problem));
  for (int32_t block_size : {8, 16, 128}) {
    for (bool has_gaps : {false, true}) {
      problem.block_seed = 99;
      problem.block_size_tokens = block_size;
      problem.has_gaps = has_gaps;

      EXPECT_EQ(Decoded(AttentionData(problem)), expected) << block_size;
    }
  }
}

TEST(DecodeLinesTest, ARepeatedCallGivesTheSameBits) {
  const AttentionData data(MixedLengths());
  DeviceAttention device(data);
  LineDecode decode(device.params(), {.num_ctas = 7});
  decode.Run(device.params(), DType::kBF16);
  const std::vector<uint16_t> expected = device.Out();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(FillBytes(device.params().out, 0xFF, expected.size() * 2, nullptr), 0);
    decode.Run(device.params(), DType::kBF16);
    EXPECT_EQ(device.Out(), expected);
  }
}

TEST(DecodeLinesTest, AReplayedGraphFollowsTheLengths) {
  AttentionProblem problem = MixedLengths();
  const AttentionData long_data(problem);
  for (AttentionSequence& sequence : problem.sequences) {
    sequence.seq_len = std::max(0, sequence.seq_len - 3);
  }
  DeviceAttention device(long_data);
  LineDecode decode(device.params(), {.num_ctas = 7});
  Stream stream = nullptr;
  Graph graph = nullptr;
  ASSERT_EQ(CreateStream(&stream), 0);
  decode.Run(device.params(), DType::kBF16, stream);
  ASSERT_EQ(Synchronize(stream), 0);
  const std::vector<uint16_t> expected = device.Out();
  ASSERT_EQ(BeginGraph(stream), 0);
  decode.Run(device.params(), DType::kBF16, stream);
  ASSERT_EQ(EndGraph(stream, &graph), 0);

  // The record was made with the lengths of the long sequences.
  auto* lengths = const_cast<int32_t*>(device.params().seq_lens);
  std::vector<int32_t> short_lengths;
  for (const AttentionSequence& sequence : problem.sequences) {
    short_lengths.push_back(sequence.seq_len);
  }
  const size_t bytes = short_lengths.size() * sizeof(int32_t);
  for (const bool is_short : {false, true, false}) {
    const std::vector<int32_t>& now = is_short ? short_lengths : long_data.seq_lens();
    ASSERT_EQ(CopyToDevice(lengths, now.data(), bytes, stream), 0);
    ASSERT_EQ(FillBytes(device.params().out, 0xFF, expected.size() * 2, stream), 0);
    ASSERT_EQ(LaunchGraph(graph, stream), 0);
    ASSERT_EQ(Synchronize(stream), 0);
    if (is_short) {
      EXPECT_NE(device.Out(), expected);
    } else {
      EXPECT_EQ(device.Out(), expected);
    }
  }
  decode.ExpectNoArrivals();
  ASSERT_EQ(DestroyGraph(graph), 0);
  ASSERT_EQ(DestroyStream(stream), 0);
}

TEST(DecodeLinesTest, OnlyTheNamedSequencesAreComputed) {
  AttentionProblem problem = {.num_heads = 6, .num_kv_heads = 2};
  problem.sequences = {{.query_len = 5, .seq_len = 40, .key = 1},
                       {.query_len = 1, .seq_len = 130, .key = 2},
                       {.query_len = 3, .seq_len = 3, .key = 3},
                       {.query_len = 1, .seq_len = 0, .key = 4},
                       {.query_len = 2, .seq_len = 20, .key = 5}};
  AttentionData data(problem);

  // No sequence is at its own place.
  std::vector<uint16_t> out = Decoded(data, {.seq_index = {1, 4, 3}});

  const std::vector<bool> computed = {
      false, false, false, false, false, true, false, false, false, false, true, true};
  ExpectClose(data, out, &computed);
}

// ---- An early start -----------------------------------------------------------------------------

// Inputs of a PrepareAttention without norms and rotation that writes the queries, and the keys and
// values of the sequences' query tokens, as AttentionData has them.
struct Preparation {
  std::vector<uint16_t> qkv;
  std::vector<int64_t> slots;
  std::vector<uint8_t> pool;  // before: the tokens' keys and values are NaN
};

// Moves a token's keys and values from the pool to its row of qkv.
void MoveToPreparation(const AttentionData& data, int64_t slot, Preparation* preparation) {
  const KvCacheLayout& layout = data.layout();
  const auto block = static_cast<BlockId>(slot / layout.block_size_tokens);
  const size_t row = preparation->slots.size() * static_cast<size_t>(data.q_row_stride());
  for (int32_t head = 0; head < 2 * layout.num_kv_heads; ++head) {
    const int32_t kv_head = head % layout.num_kv_heads;
    const int64_t at = head < layout.num_kv_heads
                           ? layout.KeyOffset(block, AttentionData::kLayer, kv_head)
                           : layout.ValueOffset(block, AttentionData::kLayer, kv_head);
    for (int32_t d = 0; d < layout.head_dim; ++d) {
      const int64_t place = at + SwizzledElement(layout, slot % layout.block_size_tokens, d);
      uint8_t* from = &preparation->pool[static_cast<size_t>(place) * sizeof(uint16_t)];
      const size_t to = row + data.OutWidth() + static_cast<size_t>(head * layout.head_dim + d);
      std::memcpy(&preparation->qkv[to], from, sizeof(uint16_t));
      from[0] = from[1] = 0xFF;
    }
  }
  preparation->slots.push_back(slot);
}

Preparation MakePreparation(const AttentionData& data) {
  Preparation preparation = {.pool = data.pool()};
  preparation.qkv.resize(data.q().size() / sizeof(uint16_t));
  std::memcpy(preparation.qkv.data(), data.q().data(), data.q().size());
  const int32_t block_size = data.layout().block_size_tokens;
  const size_t table_size = data.block_tables().size() / data.seq_lens().size();
  for (size_t s = 0; s < data.seq_lens().size(); ++s) {
    const AttentionSequence& sequence = data.problem().sequences[s];
    for (int32_t i = sequence.seq_len - sequence.query_len; i < sequence.seq_len; ++i) {
      const BlockId block =
          data.block_tables()[s * table_size + static_cast<size_t>(i / block_size)];
      MoveToPreparation(data, int64_t{block} * block_size + i % block_size, &preparation);
    }
  }
  return preparation;
}

// Before the kernel's wait the emulator shows what PrepareAttention writes as NaN.
TEST(DecodeLinesTest, AnEarlyStartSeesWhatTheOperationBeforeWrites) {
  AttentionProblem problem = {.num_heads = 4, .num_kv_heads = 2};
  problem.sequences = {{.query_len = 3, .seq_len = 129, .key = 1},
                       {.query_len = 1, .seq_len = 640, .key = 2},
                       {.query_len = 1, .seq_len = 1, .key = 3}};
  const AttentionData data(problem);
  const std::vector<uint16_t> expected = Decoded(data);
  const Preparation preparation = MakePreparation(data);
  Stream stream = nullptr;
  ASSERT_EQ(CreateStream(&stream), 0);
  for (int32_t num_ctas : {1, 2, 9}) {
    DeviceAttention device(data);
    LineDecode decode(device.params(), {.num_ctas = num_ctas, .max_query_tokens = 3});
    DeviceArray<uint16_t> qkv(preparation.qkv);
    DeviceArray<int64_t> slot_mapping(preparation.slots);
    PagedAttentionParams params = device.params();
    params.q = qkv.data();
    ASSERT_EQ(
        CopyToDevice(params.cache.base, preparation.pool.data(), preparation.pool.size(), nullptr),
        0);
    ASSERT_EQ(Synchronize(nullptr), 0);
    ASSERT_EQ(decode.Plan(params, stream), 0);
    ASSERT_EQ(PrepareAttention({.num_tokens = data.num_tokens(),
                                .num_heads = problem.num_heads,
                                .layer = AttentionData::kLayer,
                                .qkv = qkv.data(),
                                .slot_mapping = slot_mapping.data(),
                                .cache = params.cache},
                               DType::kBF16,
                               stream),
              0);
    DecodePlan plan = decode.plan();
    plan.starts_early = true;
    ASSERT_EQ(Decode(params, plan, DType::kBF16, stream), 0);
    ASSERT_EQ(Synchronize(stream), 0);

    EXPECT_EQ(device.Out(), expected) << num_ctas;
  }
  ASSERT_EQ(DestroyStream(stream), 0);
}

// ---- What there is no kernel for ----------------------------------------------------------------

TEST(DecodeLinesTest, RefusesWhatThereIsNoKernelFor) {
  AttentionData data({.sequences = SequencesOf({10})});
  DeviceAttention device(data);
  const PagedAttentionParams good = device.params();
  LineDecode decode(good, {});
  decode.Run(good, DType::kBF16);

  EXPECT_EQ(Decode(good, decode.plan(), DType::kF32, nullptr), kUnsupported);
  std::vector<PagedAttentionParams> refused(6, good);
  refused[0].cache.layout.head_dim = 72;
  refused[1].cache.layout.dtype = DType::kF16;
  refused[2].cache.layout.block_size_tokens = 24;
  refused[3].cache.layout.block_size_tokens = 4;
  refused[4].cache.layout = TokenMajorKeys({2, 2, 64, 16, DType::kBF16});
  refused[5].cache.layout.value_offset += 64;
  for (const PagedAttentionParams& params : refused) {
    EXPECT_EQ(Decode(params, decode.plan(), DType::kBF16, nullptr), kUnsupported);
  }
}

TEST(DecodeLinesTest, TheGridFillsTheDevice) {
  AttentionData data({.cache_dtype = DType::kF8E4M3, .sequences = SequencesOf({10})});
  DeviceAttention device(data);
  PagedAttentionParams params = device.params();
  int32_t num_ctas = 0;

  EXPECT_EQ(DecodeLinesGridSize(params, {}, DType::kBF16, &num_ctas), 0);
  EXPECT_GT(num_ctas, 1);
  EXPECT_EQ(DecodeLinesGridSize(params, {}, DType::kF32, &num_ctas), kUnsupported);
  params.cache.layout.head_dim = 72;
  EXPECT_EQ(DecodeLinesGridSize(params, {}, DType::kBF16, &num_ctas), kUnsupported);
}

}  // namespace
}  // namespace quire::gpu
