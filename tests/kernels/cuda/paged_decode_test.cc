#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

constexpr int32_t kSplitTokens = 64;

struct DecodeOptions {
  int32_t split_tokens = kSplitTokens;
  int32_t num_ctas = 3;
  std::vector<int32_t> seq_index;  // empty: all sequences, in order
};

int32_t CountSplits(int32_t seq_len, int32_t split_tokens, int32_t window) {
  int32_t splits = 0;
  int32_t first_key = window > 0 ? std::max(0, seq_len - window) : 0;
  for (int32_t begin = 0; begin < seq_len; begin += split_tokens) {
    splits += begin + split_tokens > first_key ? 1 : 0;
  }
  return splits;
}

std::vector<int32_t> PlanOf(const std::vector<int32_t>& seq_lens,
                            int32_t split_tokens,
                            int32_t window,
                            const std::vector<int32_t>& seq_index = {}) {
  DeviceArray<int32_t> lens(seq_lens);
  DeviceArray<int32_t> index(seq_index);
  auto num_decodes = static_cast<int32_t>(seq_index.empty() ? seq_lens.size() : seq_index.size());
  DeviceArray<int32_t> split_start(num_decodes + 1);
  EXPECT_EQ(PlanDecode({.sliding_window = window, .seq_lens = lens.data()},
                       {.seq_index = seq_index.empty() ? nullptr : index.data(),
                        .num_decodes = num_decodes,
                        .split_tokens = split_tokens},
                       split_start.data(),
                       nullptr),
            0);
  return split_start.ToHost();
}

// Runs the kernels and returns their output. The partials have room for exactly the splits of the
// plan.
std::vector<uint16_t> Decoded(const AttentionData& data, const DecodeOptions& options = {}) {
  const AttentionProblem& problem = data.problem();
  const std::vector<int32_t> splits =
      PlanOf(data.seq_lens(), options.split_tokens, problem.sliding_window, options.seq_index);
  DeviceAttention device(data);
  DeviceArray<int32_t> split_start(splits);
  DeviceArray<int32_t> seq_index(options.seq_index);
  int64_t partial_rows = int64_t{splits.back()} * problem.num_heads;
  DeviceArray<float> partial_out(partial_rows * problem.head_dim);
  DeviceArray<float> partial_state(partial_rows * 2);

  const DecodePlan plan = {.seq_index = options.seq_index.empty() ? nullptr : seq_index.data(),
                           .num_decodes = static_cast<int32_t>(splits.size()) - 1,
                           .split_tokens = options.split_tokens,
                           .split_start = split_start.data(),
                           .partial_out = partial_out.data(),
                           .partial_state = partial_state.data(),
                           .num_ctas = options.num_ctas};
  EXPECT_EQ(Decode(device.params(), plan, problem.dtype, nullptr), 0);
  return device.Out();
}

void ExpectDecodes(const AttentionProblem& problem, const DecodeOptions& options = {}) {
  AttentionData data(problem);
  ExpectClose(data, Decoded(data, options));
}

std::vector<AttentionSequence> SequencesOf(const std::vector<int32_t>& seq_lens) {
  std::vector<AttentionSequence> sequences;
  for (int32_t seq_len : seq_lens) {
    sequences.push_back({.seq_len = seq_len, .key = sequences.size() + 1});
  }
  return sequences;
}

// The rows of one sequence.
std::vector<uint16_t> RowsOf(const AttentionData& data,
                             const std::vector<uint16_t>& out,
                             size_t sequence) {
  auto width = static_cast<int64_t>(data.OutWidth());
  return {out.begin() + data.query_start()[sequence] * width,
          out.begin() + data.query_start()[sequence + 1] * width};
}

// ---- The plan -----------------------------------------------------------------------------------

TEST(PlanDecodeTest, SplitsAreCountedFromTheLength) {
  EXPECT_EQ(PlanOf({1, 64, 65, 0, 200, 128}, 64, 0), (std::vector<int32_t>{0, 1, 2, 4, 4, 8, 10}));
}

TEST(PlanDecodeTest, SplitsBeforeTheWindowDoNotCount) {
  // Windows of 65 keys: [135, 199], [63, 127], [64, 128], [0, 9].
  EXPECT_EQ(PlanOf({200, 128, 129, 10}, 64, 65), (std::vector<int32_t>{0, 2, 4, 6, 7}));
}

TEST(PlanDecodeTest, OnlyTheNamedSequencesArePlanned) {
  EXPECT_EQ(PlanOf({1, 999, 65, 0, 200}, 64, 0, {4, 2}), (std::vector<int32_t>{0, 4, 6}));
}

TEST(PlanDecodeTest, AnEmptyBatchHasNoSplits) {
  EXPECT_EQ(PlanOf({0, 0}, 64, 0), (std::vector<int32_t>{0, 0, 0}));
}

TEST(PlanDecodeTest, MoreSequencesThanThreadsArePlanned) {
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> expected = {0};
  for (int32_t i = 0; i < 600; ++i) {
    seq_lens.push_back(i * 37 % 1000);
    expected.push_back(expected.back() + CountSplits(seq_lens.back(), 128, 300));
  }

  EXPECT_EQ(PlanOf(seq_lens, 128, 300), expected);
}

// ---- Types, sizes, lengths ----------------------------------------------------------------------

using TypesAndSize = std::tuple<std::pair<DType, DType>, int32_t>;

class PagedDecodeTypesTest : public testing::TestWithParam<TypesAndSize> {
 protected:
  AttentionProblem Problem() const {
    AttentionProblem problem;
    problem.dtype = std::get<0>(GetParam()).first;
    problem.cache_dtype = std::get<0>(GetParam()).second;
    problem.head_dim = std::get<1>(GetParam());
    if (problem.cache_dtype == DType::kF8E4M3) {
      problem.k_scale = 0.03F;
      problem.v_scale = 0.25F;
    }
    return problem;
  }
};

TEST_P(PagedDecodeTypesTest, AgreesWithTheReferenceAroundTheEndsOfBlocksAndSplits) {
  const int32_t groups[] = {1, 2, 3, 4, 7, 8, 12, 16};
  int32_t i = std::get<1>(GetParam()) / 16;
  for (int32_t block_size : {8, 16, 32, 64, 128}) {
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

TEST_P(PagedDecodeTypesTest, EveryBlockSizeGoesWithEveryGroup) {
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

std::string NameOfTypesAndSize(const testing::TestParamInfo<TypesAndSize>& info) {
  auto short_name = [](DType dtype) {
    return dtype == DType::kBF16 ? "Bf16" : dtype == DType::kF16 ? "F16" : "E4m3";
  };
  auto [types, head_dim] = info.param;
  return std::string(short_name(types.first)) + "Cache" + short_name(types.second) + "HeadDim" +
         std::to_string(head_dim);
}

INSTANTIATE_TEST_SUITE_P(All,
                         PagedDecodeTypesTest,
                         testing::Combine(testing::Values(std::pair{DType::kBF16, DType::kBF16},
                                                          std::pair{DType::kF16, DType::kF16},
                                                          std::pair{DType::kBF16, DType::kF8E4M3},
                                                          std::pair{DType::kF16, DType::kF8E4M3}),
                                          testing::Values(64, 80, 96, 112, 128, 256)),
                         NameOfTypesAndSize);

TEST(PagedDecodeTest, EveryGroupIsComputedAlsoThoseOfMoreThan16Heads) {
  for (int32_t group : {1, 2, 3, 5, 8, 11, 15, 16, 17, 20, 32}) {
    SCOPED_TRACE(group);
    ExpectDecodes({.num_heads = 2 * group, .sequences = SequencesOf({70, 9})});
  }
}

TEST(PagedDecodeTest, SplitsLongerThanWhatIsLookedUpAtOnceAreRead) {
  // A warp looks up the blocks of 1024 positions at a time.
  for (int32_t block_size : {8, 32}) {
    ExpectDecodes({.num_heads = 2,
                   .num_kv_heads = 1,
                   .block_size_tokens = block_size,
                   .sequences = SequencesOf({2300})},
                  {.split_tokens = 1280});
  }
}

TEST(PagedDecodeTest, ManySplitsAreMergedInOneSequence) {
  ExpectDecodes({.num_heads = 2, .num_kv_heads = 1, .sequences = SequencesOf({900, 64 * 5})});
}

TEST(PagedDecodeTest, ItemsAreFoundInLargeBatches) {
  std::vector<int32_t> seq_lens;
  for (int32_t i = 0; i < 1100; ++i) {
    seq_lens.push_back(i % 3 == 0 ? 0 : i % 50 == 1 ? 70 : 1 + i % 7);
  }
  ExpectDecodes({.num_heads = 1, .num_kv_heads = 1, .sequences = SequencesOf(seq_lens)});
}

TEST(PagedDecodeTest, ABatchOfPaddingIsLeftAlone) {
  ExpectDecodes({.sequences = SequencesOf({0, 0, 0})});
}

TEST(PagedDecodeTest, StridesComeFromTheLayout) {
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

TEST(PagedDecodeTest, TheWindowMayBeginAnywhere) {
  // The first key is 0, 1, or inside, at the end or at the beginning of a tile, a block or a split.
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

TEST(PagedDecodeTest, AlibiFallsWithTheDistance) {
  ExpectDecodes(
      {.num_heads = 12, .num_kv_heads = 3, .alibi = true, .sequences = SequencesOf({200, 5})});
}

TEST(PagedDecodeTest, WindowAndAlibiWorkTogether) {
  ExpectDecodes({.dtype = DType::kF16,
                 .cache_dtype = DType::kF16,
                 .head_dim = 128,
                 .num_heads = 20,
                 .num_kv_heads = 1,
                 .sliding_window = 90,
                 .alibi = true,
                 .sequences = SequencesOf({200, 64, 5})});
}

TEST(PagedDecodeTest, SharpSoftmaxesFindTheirKey) {
  // Maxima change from tile to tile by hundreds, so that earlier weights vanish.
  ExpectDecodes({.dtype = DType::kF16,
                 .cache_dtype = DType::kF16,
                 .query_size = 100.0F,
                 .sequences = SequencesOf({300, 64, 17})});
}

TEST(PagedDecodeTest, ARowWhoseScoresAreAllFarBelowZeroIsNotLost) {
  ExpectDecodes({.num_heads = 16,
                 .num_kv_heads = 1,
                 .query_size = 1000.0F,
                 .sequences = SequencesOf({1, 2, 3, 4, 5, 6})});
}

TEST(PagedDecodeTest, Bf16QueriesBeyondF16sRangeReadAnE4m3Cache) {
  for (float size : {1e-30F, 1e-6F, 1e6F, 1e30F}) {
    SCOPED_TRACE(size);
    ExpectDecodes({.cache_dtype = DType::kF8E4M3,
                   .k_scale = 0.03F,
                   .scale = 0.125F / size,
                   .query_size = size,
                   .sequences = SequencesOf({100, 3})});
  }
}

TEST(PagedDecodeTest, QueriesOfZeroGiveTheMeanOfTheValues) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    ExpectDecodes(
        {.cache_dtype = cache_dtype, .query_size = 0.0F, .sequences = SequencesOf({100, 3})});
  }
}

// ---- Batches ------------------------------------------------------------------------------------

AttentionProblem MixedLengths() {
  return {.head_dim = 128,
          .num_heads = 7,
          .num_kv_heads = 1,
          .sequences = SequencesOf({1, 300, 64, 65, 0, 257, 17})};
}

TEST(PagedDecodeTest, TheNumberOfCtasDoesNotChangeTheBits) {
  AttentionData data(MixedLengths());

  std::vector<uint16_t> expected = Decoded(data, {.num_ctas = 1});

  for (int32_t num_ctas : {2, 5, 40}) {
    EXPECT_EQ(Decoded(data, {.num_ctas = num_ctas}), expected) << num_ctas;
  }
}

TEST(PagedDecodeTest, ASequenceHasTheSameBitsAloneAndInABatch) {
  AttentionData batch(MixedLengths());
  std::vector<uint16_t> together = Decoded(batch);
  for (size_t s = 0; s < batch.problem().sequences.size(); ++s) {
    AttentionProblem problem = MixedLengths();
    problem.sequences = {batch.problem().sequences[s]};
    AttentionData alone(problem);

    EXPECT_EQ(Decoded(alone, {.num_ctas = 2}), RowsOf(batch, together, s)) << s;
  }
}

TEST(PagedDecodeTest, WhereTheBlocksLieDoesNotChangeTheBits) {
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

TEST(PagedDecodeTest, DecodesOfAMixedBatchAreComputedAndPrefillsLeftAlone) {
  AttentionProblem problem = {.num_heads = 6, .num_kv_heads = 2};
  problem.sequences = {{.query_len = 5, .seq_len = 40, .key = 1},
                       {.query_len = 1, .seq_len = 130, .key = 2},
                       {.query_len = 3, .seq_len = 3, .key = 3},
                       {.query_len = 1, .seq_len = 0, .key = 4},
                       {.query_len = 1, .seq_len = 20, .key = 5}};
  AttentionData data(problem);

  // No sequence is at its own place.
  std::vector<uint16_t> out = Decoded(data, {.seq_index = {1, 4, 3}});

  const std::vector<bool> computed = {
      false, false, false, false, false, true, false, false, false, false, true};
  ExpectClose(data, out, &computed);
}

TEST(PagedDecodeTest, ANanInOneQueryHeadStaysInItsRow) {
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

TEST(PagedDecodeTest, SequencesOfOneSplitNeedNoPartials) {
  AttentionData data({.sequences = SequencesOf({128, 100})});
  DeviceAttention device(data);
  DeviceArray<int32_t> split_start({0, 1, 2});

  ASSERT_EQ(
      Decode(
          device.params(),
          {.num_decodes = 2, .split_tokens = 128, .split_start = split_start.data(), .num_ctas = 1},
          data.problem().dtype,
          nullptr),
      0);

  ExpectClose(data, device.Out());
}

// ---- What there is no kernel for ----------------------------------------------------------------

TEST(PagedDecodeTest, RefusesWhatThereIsNoKernelFor) {
  AttentionData data({.sequences = SequencesOf({10})});
  DeviceAttention device(data);
  DeviceArray<int32_t> split_start({0, 1});
  const DecodePlan plan = {.num_decodes = 1, .split_start = split_start.data(), .num_ctas = 1};
  const PagedAttentionParams good = device.params();
  EXPECT_EQ(Decode(good, plan, DType::kBF16, nullptr), 0);

  EXPECT_EQ(Decode(good, plan, DType::kF32, nullptr), kUnsupported);
  std::vector<PagedAttentionParams> refused(5, good);
  refused[0].cache.layout.head_dim = 72;
  refused[1].cache.layout.dtype = DType::kF16;
  refused[2].cache.layout.block_size_tokens = 24;
  refused[3].cache.layout.block_size_tokens = 4;
  refused[4].cache.layout = TokenMajorKeys({2, 2, 64, 16, DType::kBF16});
  for (const PagedAttentionParams& params : refused) {
    EXPECT_EQ(Decode(params, plan, DType::kBF16, nullptr), kUnsupported);
  }
}

TEST(PagedDecodeTest, TheGridFillsTheDevice) {
  int32_t num_ctas = 0;

  EXPECT_EQ(DecodeGridSize(DType::kBF16, DType::kF8E4M3, 128, &num_ctas), 0);
  EXPECT_GT(num_ctas, 1);
  EXPECT_EQ(DecodeGridSize(DType::kF32, DType::kF32, 128, &num_ctas), kUnsupported);
  EXPECT_EQ(DecodeGridSize(DType::kBF16, DType::kBF16, 72, &num_ctas), kUnsupported);
}

}  // namespace
}  // namespace quire::gpu
