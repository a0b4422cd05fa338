#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

// Every test runs with each kernel.
class KernelUnderTest {
 public:
  explicit KernelUnderTest(PrefillKernel kernel, int32_t num_ctas = 0)
      : kernel_(kernel), num_ctas_(num_ctas) {}

  // Keys of a tile at a head_dim of up to 128. The tests cross the borders of tiles.
  int32_t tile_keys() const { return kernel_ == PrefillKernel::kMma ? 64 : 128; }

  // Whether the device has the kernel's products. Warpgroup products need a certain device; the
  // emulator counts as one.
  bool HasDevice() const {
    DeviceInfo info;
    EXPECT_EQ(QueryDevice(0, &info), 0);
    return kernel_ == PrefillKernel::kMma || info.compute_capability == 90;
  }

  bool HasKernelFor(const AttentionProblem& problem) const {
    const bool is_whole = problem.head_dim == 64 || problem.head_dim % 128 == 0;
    return kernel_ == PrefillKernel::kMma || (problem.cache_dtype == problem.dtype &&
                                              (is_whole || kernel_ == PrefillKernel::kPersistent));
  }

  std::vector<PrefillItem> ItemsOf(const AttentionData& data) const {
    const AttentionProblem& problem = data.problem();
    const int32_t group = problem.num_heads / problem.num_kv_heads;
    std::vector<PrefillItem> items;
    for (size_t s = 0; s < problem.sequences.size(); ++s) {
      const AttentionSequence& sequence = problem.sequences[s];
      const int32_t num_rows = sequence.seq_len > 0 ? sequence.query_len * group : 0;
      for (int32_t row = 0; row < num_rows; row += kPrefillRows) {
        items.push_back({static_cast<int32_t>(s), row});
      }
    }
    return items;
  }

  int RunItems(const PagedAttentionParams& params,
               DType activations,
               const std::vector<PrefillItem>& items) const {
    DeviceArray<PrefillItem> device_items(items);
    DeviceArray<int32_t> next_item(std::vector<int32_t>{0});
    const PrefillPlan plan = {.items = device_items.data(),
                              .num_items = static_cast<int32_t>(items.size()),
                              .kernel = kernel_,
                              .next_item = next_item.data(),
                              .num_ctas = num_ctas_};
    const int error = Prefill(params, plan, activations, nullptr);
    EXPECT_EQ(next_item.ToHost()[0], 0);
    return error;
  }

  // Runs the kernel for these items and returns its output.
  std::vector<uint16_t> Prefilled(const AttentionData& data,
                                  const std::vector<PrefillItem>& items) const {
    DeviceAttention device(data);
    EXPECT_EQ(RunItems(device.params(), data.problem().dtype, items), 0);
    return device.Out();
  }

  std::vector<uint16_t> Prefilled(const AttentionData& data) const {
    return Prefilled(data, ItemsOf(data));
  }

  // Agrees with the reference, or says that there is no kernel and leaves the output alone.
  void ExpectPrefills(const AttentionProblem& problem) const {
    AttentionData data(problem);
    if (HasKernelFor(problem)) {
      ExpectClose(data, Prefilled(data));
      return;
    }
    DeviceAttention device(data);
    EXPECT_EQ(RunItems(device.params(), problem.dtype, ItemsOf(data)), kUnsupported);
    const std::vector<bool> computed(static_cast<size_t>(data.num_tokens()), false);
    ExpectClose(data, device.Out(), &computed);
  }

 private:
  const PrefillKernel kernel_;
  const int32_t num_ctas_;  // of kPersistent
};

// The rows of one sequence.
std::vector<uint16_t> RowsOf(const AttentionData& data,
                             const std::vector<uint16_t>& out,
                             size_t sequence) {
  auto width = static_cast<int64_t>(data.OutWidth());
  return {out.begin() + data.query_start()[sequence] * width,
          out.begin() + data.query_start()[sequence + 1] * width};
}

std::string NameOfKernel(PrefillKernel kernel) {
  return kernel == PrefillKernel::kPersistent ? "Persistent"
         : kernel == PrefillKernel::kWgmma    ? "Wgmma"
                                              : "Mma";
}

class PagedPrefillTest : public KernelUnderTest, public testing::TestWithParam<PrefillKernel> {
 protected:
  PagedPrefillTest() : KernelUnderTest(GetParam()) {}

  void SetUp() override {
    if (!HasDevice()) {
      GTEST_SKIP() << "needs compute capability 9.0";
    }
  }

  // The outputs of one sequence, computed chunk tokens at a time. Later positions are not in the
  // cache yet when a chunk is computed, and blocks before its window not any more.
  std::vector<uint16_t> InChunks(AttentionProblem problem, int32_t seq_len, int32_t chunk) const {
    std::vector<uint16_t> all;
    for (int32_t done = 0; done < seq_len; done += chunk) {
      const int32_t end = std::min(done + chunk, seq_len);
      problem.sequences = {{.query_len = end - done, .seq_len = end, .key = 7}};
      const std::vector<uint16_t> out = Prefilled(AttentionData(problem));
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels,
                         PagedPrefillTest,
                         testing::Values(PrefillKernel::kMma,
                                         PrefillKernel::kWgmma,
                                         PrefillKernel::kPersistent),
                         [](const auto& kernel) { return NameOfKernel(kernel.param); });

// ---- Types, sizes, lengths ----------------------------------------------------------------------

using KernelTypesAndSize = std::tuple<PrefillKernel, std::pair<DType, DType>, int32_t>;

class PagedPrefillTypesTest : public KernelUnderTest,
                              public testing::TestWithParam<KernelTypesAndSize> {
 protected:
  PagedPrefillTypesTest() : KernelUnderTest(std::get<0>(GetParam())) {}

  void SetUp() override {
    if (!HasDevice()) {
      GTEST_SKIP() << "needs compute capability 9.0";
    }
  }

  AttentionProblem Problem() const {
    AttentionProblem problem;
    problem.dtype = std::get<1>(GetParam()).first;
    problem.cache_dtype = std::get<1>(GetParam()).second;
    problem.head_dim = std::get<2>(GetParam());
    if (problem.cache_dtype == DType::kF8E4M3) {
      problem.k_scale = 0.03F;
      problem.v_scale = 0.25F;
    }
    return problem;
  }
};

TEST_P(PagedPrefillTypesTest, AgreesWithTheReferenceWholeAndOverEarlierContext) {
  const int32_t groups[] = {1, 2, 3, 4, 7, 8, 12, 16};
  int32_t i = std::get<2>(GetParam()) / 16;
  for (int32_t block_size : {8, 16, 32, 64, 128}) {
    const int32_t group = groups[i++ % 8];
    AttentionProblem problem = Problem();
    problem.block_size_tokens = block_size;
    problem.num_kv_heads = 1 + i % 2;
    problem.num_heads = problem.num_kv_heads * group;
    // A whole prompt of two items, a chunk that crosses a tile, a single query, padding.
    const int32_t two_items = kPrefillRows / group + 2;
    problem.sequences = {{.query_len = two_items, .seq_len = two_items, .key = 1},
                         {.query_len = 5, .seq_len = tile_keys() + 3, .key = 2},
                         {.query_len = 1, .seq_len = 0, .key = 3},
                         {.query_len = 1, .seq_len = block_size + 1, .key = 4}};
    SCOPED_TRACE(testing::Message() << "block size " << block_size << ", group " << group);
    ExpectPrefills(problem);
  }
}

TEST_P(PagedPrefillTypesTest, EveryBlockSizeGoesWithEveryGroup) {
  for (int32_t block_size : {8, 16, 32, 64, 128}) {
    for (int32_t group = 1; group <= 16; ++group) {
      AttentionProblem problem = Problem();
      problem.block_size_tokens = block_size;
      problem.num_kv_heads = 1;
      problem.num_heads = group;
      problem.sequences = {{.query_len = 3, .seq_len = 21, .key = 1}};
      SCOPED_TRACE(testing::Message() << "block size " << block_size << ", group " << group);
      ExpectPrefills(problem);
    }
  }
}

TEST_P(PagedPrefillTypesTest, AgreesWithTheReferenceAroundTheEndsOfBlocksAndTiles) {
  for (int32_t block_size : {8, 16, 32, 64, 128}) {
    AttentionProblem problem = Problem();
    problem.block_size_tokens = block_size;
    problem.num_kv_heads = 1;
    problem.num_heads = 2;
    for (int32_t seq_len : {0,
                            1,
                            block_size - 1,
                            block_size,
                            block_size + 1,
                            tile_keys() - 1,
                            tile_keys(),
                            tile_keys() + 1}) {
      // The last query alone, and a chunk that ends there.
      for (int32_t query_len : {1, 9}) {
        problem.sequences.push_back({.query_len = std::min(query_len, std::max(seq_len, 1)),
                                     .seq_len = seq_len,
                                     .key = problem.sequences.size() + 1});
      }
    }
    SCOPED_TRACE(testing::Message() << "block size " << block_size);
    ExpectPrefills(problem);
  }
}

std::string NameOfCase(const testing::TestParamInfo<KernelTypesAndSize>& info) {
  auto short_name = [](DType dtype) {
    return dtype == DType::kBF16 ? "Bf16" : dtype == DType::kF16 ? "F16" : "E4m3";
  };
  auto [kernel, types, head_dim] = info.param;
  return NameOfKernel(kernel) + short_name(types.first) + "Cache" + short_name(types.second) +
         "HeadDim" + std::to_string(head_dim);
}

INSTANTIATE_TEST_SUITE_P(All,
                         PagedPrefillTypesTest,
                         testing::Combine(testing::Values(PrefillKernel::kMma),
                                          testing::Values(std::pair{DType::kBF16, DType::kBF16},
                                                          std::pair{DType::kF16, DType::kF16},
                                                          std::pair{DType::kBF16, DType::kF8E4M3},
                                                          std::pair{DType::kF16, DType::kF8E4M3}),
                                          testing::Values(64, 80, 96, 112, 128, 256)),
                         NameOfCase);

INSTANTIATE_TEST_SUITE_P(OfWholeSwizzledRows,
                         PagedPrefillTypesTest,
                         testing::Combine(testing::Values(PrefillKernel::kWgmma),
                                          testing::Values(std::pair{DType::kBF16, DType::kBF16},
                                                          std::pair{DType::kF16, DType::kF16}),
                                          testing::Values(64, 128, 256)),
                         NameOfCase);

INSTANTIATE_TEST_SUITE_P(Persistent,
                         PagedPrefillTypesTest,
                         testing::Combine(testing::Values(PrefillKernel::kPersistent),
                                          testing::Values(std::pair{DType::kBF16, DType::kBF16},
                                                          std::pair{DType::kF16, DType::kF16}),
                                          testing::Values(64, 80, 96, 112, 128, 256)),
                         NameOfCase);

TEST_P(PagedPrefillTest, EveryGroupIsComputedAlsoThoseOfMoreThan16Heads) {
  for (int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 65}) {
    SCOPED_TRACE(group);
    ExpectPrefills(
        {.num_heads = group, .num_kv_heads = 1, .sequences = {{.query_len = 5, .seq_len = 20}}});
  }
}

TEST_P(PagedPrefillTest, ItemsEndAnywhereInTheSequence) {
  // One row less than an item's, just as many, one more; with 3 heads, tokens in two items.
  for (int32_t query_len :
       {kPrefillRows - 1, kPrefillRows, kPrefillRows + 1, kPrefillRows / 2 + 1}) {
    for (int32_t num_heads : {1, 3}) {
      SCOPED_TRACE(testing::Message() << query_len << " queries of " << num_heads << " heads");
      ExpectPrefills({.num_heads = num_heads,
                      .num_kv_heads = 1,
                      .sequences = {{.query_len = query_len, .seq_len = query_len + 7}}});
    }
  }
}

TEST_P(PagedPrefillTest, ContextsEndAnywhereInATile) {
  for (int32_t seq_len : {1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    SCOPED_TRACE(seq_len);
    ExpectPrefills(
        {.num_heads = 2,
         .num_kv_heads = 1,
         .sequences = {{.query_len = 1, .seq_len = seq_len, .key = 1},
                       {.query_len = std::min(seq_len, 9), .seq_len = seq_len, .key = 2}}});
  }
}

TEST_P(PagedPrefillTest, BuffersAreFilledManyTimes) {
  for (int32_t head_dim : {64, 112, 128, 256}) {
    for (int32_t query_len : {20, 80}) {
      SCOPED_TRACE(testing::Message() << query_len << " queries of head_dim " << head_dim);
      ExpectPrefills({.head_dim = head_dim,
                      .num_heads = 1,
                      .num_kv_heads = 1,
                      .block_size_tokens = 8,
                      .sequences = {{.query_len = query_len, .seq_len = 840, .key = 1}}});
    }
  }
}

TEST_P(PagedPrefillTest, StridesComeFromTheLayout) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    ExpectPrefills({.cache_dtype = cache_dtype,
                    .head_dim = 80,
                    .num_heads = 6,
                    .num_kv_heads = 3,
                    .block_size_tokens = 8,
                    .has_gaps = true,
                    .sequences = {{.query_len = 20, .seq_len = 90, .key = 1}}});
  }
}

// ---- Scores -------------------------------------------------------------------------------------

TEST_P(PagedPrefillTest, TheWindowMayBeShorterOrLongerThanATileAndThanTheChunk) {
  for (int32_t window : {1, 2, 20, 63, 64, 65, 100, 128, 170, 171}) {
    for (DType cache_dtype : {DType::kF16, DType::kF8E4M3}) {
      SCOPED_TRACE(window);
      ExpectPrefills({.dtype = DType::kF16,
                      .cache_dtype = cache_dtype,
                      .num_heads = 2,
                      .num_kv_heads = 1,
                      .block_size_tokens = window % 2 == 0 ? 8 : 32,
                      .sliding_window = window,
                      .sequences = {{.query_len = 40, .seq_len = 170, .key = 1},
                                    {.query_len = 1, .seq_len = 129, .key = 2},
                                    {.query_len = 3, .seq_len = 3, .key = 3}}});
    }
  }
}

TEST_P(PagedPrefillTest, TheScalesOfTheCacheCount) {
  ExpectPrefills({.k_scale = 0.5F,
                  .v_scale = 3.0F,
                  .sequences = {{.query_len = 9, .seq_len = 100, .key = 1}}});
}

TEST_P(PagedPrefillTest, AlibiFallsWithTheDistance) {
  ExpectPrefills({.num_heads = 12,
                  .num_kv_heads = 3,
                  .alibi = true,
                  .sequences = {{.query_len = 20, .seq_len = 150, .key = 1}}});
}

TEST_P(PagedPrefillTest, WindowAndAlibiWorkTogether) {
  ExpectPrefills({.dtype = DType::kF16,
                  .cache_dtype = DType::kF16,
                  .head_dim = 128,
                  .num_heads = 20,
                  .num_kv_heads = 1,
                  .sliding_window = 90,
                  .alibi = true,
                  .sequences = {{.query_len = 5, .seq_len = 200, .key = 1}}});
}

TEST_P(PagedPrefillTest, SharpSoftmaxesFindTheirKey) {
  // Maxima change from tile to tile by hundreds, so that earlier weights vanish.
  ExpectPrefills({.dtype = DType::kF16,
                  .cache_dtype = DType::kF16,
                  .query_size = 100.0F,
                  .sequences = {{.query_len = 30, .seq_len = 300, .key = 1}}});
}

TEST_P(PagedPrefillTest, Bf16QueriesBeyondF16sRangeReadAnE4m3Cache) {
  for (float size : {1e-30F, 1e-6F, 1e6F, 1e30F}) {
    for (bool alibi : {false, true}) {
      SCOPED_TRACE(size);
      ExpectPrefills({.cache_dtype = DType::kF8E4M3,
                      .alibi = alibi,
                      .k_scale = 0.03F,
                      .scale = 0.125F / size,
                      .query_size = size,
                      .sequences = {{.query_len = 20, .seq_len = 70, .key = 1}}});
    }
  }
}

TEST_P(PagedPrefillTest, QueriesOfZeroGiveTheMeanOfTheValues) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    ExpectPrefills({.cache_dtype = cache_dtype,
                    .query_size = 0.0F,
                    .sequences = {{.query_len = 20, .seq_len = 100, .key = 1}}});
  }
}

// The first tokens have few keys, so all scores of a row may lie far below zero. Their exponentials
// would be smaller than 2^-126, the least normal fp32.
TEST_P(PagedPrefillTest, ARowWhoseScoresAreAllFarBelowZeroIsNotLost) {
  for (const int32_t head_dim : {64, 128, 256}) {
    ExpectPrefills({.head_dim = head_dim,
                    .num_heads = 16,
                    .num_kv_heads = 1,
                    .query_size = 1000.0F,
                    .sequences = {{.query_len = 8, .seq_len = 8, .key = 1}}});
  }
}

TEST_P(PagedPrefillTest, AScaleBelowZeroTurnsTheOrderOfTheScores) {
  AttentionProblem problem = {.sequences = {{.query_len = 20, .seq_len = 100, .key = 1}}};
  DeviceAttention device((AttentionData(problem)));
  PagedAttentionParams params = device.params();
  params.scale = -params.scale;
  problem.query_size = -1.0F;
  AttentionData negated(problem);

  EXPECT_EQ(RunItems(params, problem.dtype, ItemsOf(negated)), 0);

  ExpectClose(negated, device.Out());
}

// ---- The same bits ------------------------------------------------------------------------------

TEST_P(PagedPrefillTest, ChunksOfAnySizeGiveTheBitsOfTheWholePrompt) {
  std::vector<AttentionProblem> problems(6);
  problems[1] = {.cache_dtype = DType::kF8E4M3, .num_heads = 3, .num_kv_heads = 1};
  problems[2] = {.num_heads = 3, .num_kv_heads = 1, .sliding_window = 50};
  problems[3] = {.dtype = DType::kF16,
                 .cache_dtype = DType::kF8E4M3,
                 .head_dim = 112,
                 .num_heads = 1,
                 .num_kv_heads = 1,
                 .sliding_window = 65};
  problems[4] = {.num_heads = 1, .num_kv_heads = 1, .alibi = true};
  problems[5] = {.head_dim = 256, .num_heads = 1, .num_kv_heads = 1, .query_size = 4.0F};
  for (const AttentionProblem& problem : problems) {
    if (!HasKernelFor(problem)) {
      continue;
    }
    constexpr int32_t kSeqLen = 150;
    const std::vector<uint16_t> whole = InChunks(problem, kSeqLen, kSeqLen);

    for (int32_t chunk : {13, 64, 101}) {
      EXPECT_EQ(InChunks(problem, kSeqLen, chunk), whole)
          << "head_dim " << problem.head_dim << ", window " << problem.sliding_window << ", chunk "
          << chunk;
    }
  }
}

TEST_P(PagedPrefillTest, TokenByTokenGivesTheBitsOfTheWholePrompt) {
  const AttentionProblem problem = {.num_heads = 2, .num_kv_heads = 1};

  EXPECT_EQ(InChunks(problem, 70, 1), InChunks(problem, 70, 70));
}

AttentionProblem MixedBatch() {
  return {.num_heads = 6,
          .num_kv_heads = 2,
          .sequences = {{.query_len = 30, .seq_len = 30, .key = 1},
                        {.query_len = 1, .seq_len = 100, .key = 2},
                        {.query_len = 2, .seq_len = 0, .key = 3},
                        {.query_len = 45, .seq_len = 130, .key = 4},
                        {.query_len = 7, .seq_len = 64, .key = 5}}};
}

TEST_P(PagedPrefillTest, TheOrderOfItemsDoesNotChangeTheBits) {
  AttentionData data(MixedBatch());
  std::vector<PrefillItem> items = ItemsOf(data);
  const std::vector<uint16_t> expected = Prefilled(data, items);
  ExpectClose(data, expected);

  std::reverse(items.begin(), items.end());
  EXPECT_EQ(Prefilled(data, items), expected);
  std::rotate(items.begin(), items.begin() + 2, items.end());
  EXPECT_EQ(Prefilled(data, items), expected);
}

TEST_P(PagedPrefillTest, ASequenceHasTheSameBitsAloneAndInABatch) {
  AttentionData batch(MixedBatch());
  const std::vector<uint16_t> together = Prefilled(batch);
  for (size_t s = 0; s < batch.problem().sequences.size(); ++s) {
    AttentionProblem problem = MixedBatch();
    problem.sequences = {batch.problem().sequences[s]};

    EXPECT_EQ(Prefilled(AttentionData(problem)), RowsOf(batch, together, s)) << s;
  }
}

TEST_P(PagedPrefillTest, RowsOfAnItemDoNotDependOnWhereItBegins) {
  AttentionData data({.num_heads = 3,
                      .num_kv_heads = 1,
                      .sliding_window = 40,
                      .sequences = {{.query_len = 40, .seq_len = 120, .key = 1}}});
  const std::vector<uint16_t> expected = Prefilled(data);

  EXPECT_EQ(Prefilled(data, {{0, 0}, {0, 17}, {0, kPrefillRows}, {0, 81}, {0, 100}}), expected);
}

TEST_P(PagedPrefillTest, WhereTheBlocksLieDoesNotChangeTheBits) {
  AttentionProblem problem = MixedBatch();
  const std::vector<uint16_t> expected = Prefilled(AttentionData(problem));
  for (int32_t block_size : {8, 128}) {
    for (bool has_gaps : {false, true}) {
      problem.block_seed = 99;
      problem.block_size_tokens = block_size;
      problem.has_gaps = has_gaps;

      EXPECT_EQ(Prefilled(AttentionData(problem)), expected) << block_size;
    }
  }
}

// ---- The choice of the kernel ------------------------------------------------------------------

class PrefillChoiceTest : public testing::Test {
 protected:
  static std::vector<uint16_t> Prefilled(PrefillKernel kernel, const AttentionData& data) {
    return KernelUnderTest(kernel).Prefilled(data);
  }

  void SetUp() override {
    if (!KernelUnderTest(PrefillKernel::kWgmma).HasDevice()) {
      GTEST_SKIP() << "needs compute capability 9.0";
    }
  }
};

TEST_F(PrefillChoiceTest, TheFastestIsOnWarpgroupProductsWhereThereIsOne) {
  AttentionProblem problem = MixedBatch();
  problem.head_dim = 128;
  AttentionData data(problem);

  const std::vector<uint16_t> fastest = Prefilled(PrefillKernel::kFastest, data);

  EXPECT_EQ(fastest, Prefilled(PrefillKernel::kWgmma, data));
  EXPECT_NE(fastest, Prefilled(PrefillKernel::kMma, data));  // by rounding
}

TEST_F(PrefillChoiceTest, TheFastestIsTheGeneralOneElsewhere) {
  AttentionProblem odd_size = MixedBatch();
  odd_size.head_dim = 96;
  AttentionProblem e4m3 = MixedBatch();
  e4m3.cache_dtype = DType::kF8E4M3;
  for (const AttentionProblem& problem : {odd_size, e4m3}) {
    AttentionData data(problem);

    EXPECT_EQ(Prefilled(PrefillKernel::kFastest, data), Prefilled(PrefillKernel::kMma, data));
  }
}

TEST_F(PrefillChoiceTest, TheKernelsAgreeToRounding) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int32_t head_dim : {64, 128, 256}) {
      AttentionProblem problem = MixedBatch();
      problem.dtype = dtype;
      problem.cache_dtype = dtype;
      problem.head_dim = head_dim;
      AttentionData data(problem);
      const std::vector<uint16_t> mma = Prefilled(PrefillKernel::kMma, data);
      const std::vector<uint16_t> wgmma = Prefilled(PrefillKernel::kWgmma, data);

      double difference = 0.0;
      double size = 0.0;
      for (size_t i = 0; i < mma.size(); ++i) {
        const double a = ValueOf(dtype, mma[i]);
        const double b = ValueOf(dtype, wgmma[i]);
        ASSERT_EQ(std::isnan(a), std::isnan(b)) << i;  // rows of padding are not written
        difference += std::isnan(a) ? 0.0 : (a - b) * (a - b);
        size += std::isnan(a) ? 0.0 : a * a;
      }
      EXPECT_LT(std::sqrt(difference / size), dtype == DType::kBF16 ? 4e-3 : 6e-4) << head_dim;
    }
  }
}

// ---- What is left alone -------------------------------------------------------------------------

TEST_P(PagedPrefillTest, OnlyTheRowsOfTheItemsAreWritten) {
  AttentionProblem problem = MixedBatch();
  problem.num_heads = 4;
  AttentionData data(problem);

  // The 45 queries of sequence 3 are 90 rows a KV head, more than an item has.
  const std::vector<uint16_t> out = Prefilled(data, {{4, 0}, {3, 0}});

  std::vector<bool> computed(static_cast<size_t>(data.num_tokens()), false);
  std::fill_n(computed.begin() + data.query_start()[3], std::min(kPrefillRows / 2, 45), true);
  std::fill_n(computed.begin() + data.query_start()[4], 7, true);
  ExpectClose(data, out, &computed);
}

TEST_P(PagedPrefillTest, ItemsWithoutRowsOrContextAreLeftAlone) {
  AttentionData data({.sequences = {{.query_len = 1, .seq_len = 0, .key = 1},
                                    {.query_len = 3, .seq_len = 9, .key = 2},
                                    {.query_len = 0, .seq_len = 20, .key = 3}}});

  const std::vector<uint16_t> out = Prefilled(data, {{0, 0}, {1, 0}, {1, kPrefillRows}, {2, 0}});

  ExpectClose(data, out);
}

TEST_P(PagedPrefillTest, NoItemsMeansNoChange) {
  AttentionData data(MixedBatch());

  const std::vector<bool> computed(static_cast<size_t>(data.num_tokens()), false);
  ExpectClose(data, Prefilled(data, {}), &computed);
}

TEST_P(PagedPrefillTest, ANanInOneQueryHeadStaysInItsRow) {
  for (DType cache_dtype : {DType::kBF16, DType::kF8E4M3}) {
    AttentionData data(
        {.cache_dtype = cache_dtype, .sequences = {{.query_len = 9, .seq_len = 80, .key = 1}}});
    if (!HasKernelFor(data.problem())) {
      continue;
    }
    const std::vector<uint16_t> expected = Prefilled(data);
    constexpr int64_t kToken = 3;
    constexpr int64_t kHead = 2;
    data.SetQuery(kToken * data.q_row_stride() + kHead * 64 + 5,
                  std::numeric_limits<float>::quiet_NaN());

    const std::vector<uint16_t> out = Prefilled(data);

    for (size_t i = 0; i < out.size(); ++i) {
      const bool in_row = i / 64 == kToken * 4 + kHead;
      EXPECT_EQ(std::isnan(ValueOf(DType::kBF16, out[i])), in_row) << i;
      EXPECT_TRUE(in_row || out[i] == expected[i]) << i;
    }
  }
}

TEST_P(PagedPrefillTest, RefusesWhatThereIsNoKernelFor) {
  AttentionData data({.sequences = {{.query_len = 2, .seq_len = 10, .key = 1}}});
  DeviceAttention device(data);
  const std::vector<PrefillItem> items = ItemsOf(data);
  const PagedAttentionParams good = device.params();
  EXPECT_EQ(RunItems(good, DType::kBF16, items), 0);

  EXPECT_EQ(RunItems(good, DType::kF32, items), kUnsupported);
  std::vector<PagedAttentionParams> refused(5, good);
  refused[0].cache.layout.head_dim = 72;
  refused[1].cache.layout.dtype = DType::kF16;
  refused[2].cache.layout.block_size_tokens = 24;
  refused[3].cache.layout.block_size_tokens = 4;
  refused[4].cache.layout = TokenMajorKeys({2, 2, 64, 16, DType::kBF16});
  for (const PagedAttentionParams& params : refused) {
    EXPECT_EQ(RunItems(params, DType::kBF16, items), kUnsupported);
  }
}

}  // namespace
}  // namespace quire::gpu
