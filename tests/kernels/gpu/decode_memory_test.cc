#include "kernels/gpu/decode_memory.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/gpu/decode_plans.h"
#include "kernels/gpu/gpu_library.h"
#include "kernels/gpu/step_needs.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr StepShape kShape = {
    .num_heads = 8, .num_kv_heads = 2, .head_dim = 64, .split_tokens = 256};

StepShape Lines(int32_t num_ctas) {
  StepShape shape = kShape;
  shape.lines = {.num_ctas = num_ctas, .half_tile_floats = 100, .max_query_tokens = 16};
  return shape;
}

TEST(DecodeMemoryTest, AWindowBoundsTheSplitsOfADecode) {
  StepShape shape = kShape;
  EXPECT_EQ(WorkOf(0, 1, shape).num_splits, 0);
  EXPECT_EQ(WorkOf(257, 1, shape).num_splits, 2);
  EXPECT_EQ(WorkOf(100'000, 1, shape).num_splits, 391);
  shape.sliding_window = 256;
  EXPECT_EQ(WorkOf(257, 1, shape).num_splits, 2);
  EXPECT_EQ(WorkOf(100'000, 1, shape).num_splits, 2) << "a window that begins inside of a split";
  EXPECT_EQ(WorkOf(100'000, 2, shape).num_splits, 3) << "the second token has another window";
}

TEST(DecodeMemoryTest, BySplitsEachHeadOfASplitHasAResult) {
  EXPECT_EQ(PartialBytes(WorkOf(700, 1, kShape), kShape), 3 * 8 * (64 + 2) * kFloat);
}

TEST(DecodeMemoryTest, ByLinesEveryKvHeadAndGroupOfRowsIsALine) {
  StepShape shape = Lines(3);
  EXPECT_EQ(WorkOf(700, 1, shape), (DecodeWork{.num_splits = 3 * 2, .longest = 3}));
  EXPECT_EQ(WorkOf(700, 16, shape),
            (DecodeWork{.num_splits = 3 * 2, .longest = 3, .query_tokens = 16}));
  shape.head_dim = 256;  // a line has 16 rows
  EXPECT_EQ(WorkOf(700, 16, shape).num_splits, 3 * 2 * 4);
}

// The division of kernels/cuda/line_parts.cuh and the places of line_results.cuh.
int64_t MostPartialsOfACta(const std::vector<int64_t>& splits_of_lines, int64_t num_ctas) {
  int64_t total = 0;
  for (const int64_t splits : splits_of_lines) {
    total += splits;
  }
  const int64_t num_runs = std::min(total, num_ctas);
  int64_t most = 0;
  for (int64_t run = 0; run < num_runs; ++run) {
    const int64_t begin = run * total / num_runs;
    const int64_t end = (run + 1) * total / num_runs;
    int64_t line_begin = 0;
    for (const int64_t splits : splits_of_lines) {
      const int64_t line_end = line_begin + splits;
      const int64_t inside = std::min(end, line_end) - std::max(begin, line_begin);
      if (inside > 0 && inside < splits) {
        most = std::max(most, line_begin < begin ? 1 + inside : 1);
      }
      line_begin = line_end;
    }
  }
  return most;
}

// The worker's grids may be smaller than the largest one. Each CTA has an equal share of the bytes.
TEST(DecodeMemoryTest, ByLinesEveryGridHasRoomForItsPartialResults) {
  Random random(3);
  for (int round = 0; round < 3000; ++round) {
    const int32_t num_ctas = 1 + random.Below(40);
    const StepShape shape = Lines(num_ctas);
    DecodeWork work;
    std::vector<int64_t> splits_of_lines;
    const int32_t num_seqs = 1 + random.Below(12);
    const int32_t most_splits = 1 + random.Below(60);
    for (int32_t seq = 0; seq < num_seqs; ++seq) {
      const int32_t context = 1 + random.Below(256 * most_splits);
      const DecodeWork one = WorkOf(context, 1, shape);
      splits_of_lines.insert(splits_of_lines.end(), size_t{2}, one.longest);
      work = Join(work, one);
    }
    const int64_t partials = PartialBytes(work, shape) / (LinePartialFloats(1, shape) * kFloat);
    for (const int32_t grid : {num_ctas, 1 + random.Below(num_ctas)}) {
      ASSERT_GE(partials / grid, MostPartialsOfACta(splits_of_lines, grid))
          << round << ": " << grid << " of " << num_ctas;
    }
  }
}

// An H200 has 264 CTAs of 16 rows; a partial result of 8 rows has 1088 floats. 512 sequences share
// a prefix of 128k tokens, so that their contexts are larger than any pool.
TEST(DecodeMemoryTest, AnEightBillionModelNeedsLittleForLongContexts) {
  const StepShape shape = {.num_heads = 32,
                           .num_kv_heads = 8,
                           .head_dim = 128,
                           .split_tokens = 256,
                           .max_partial_bytes = int64_t{64} << 20,
                           .lines = {.num_ctas = 264, .half_tile_floats = 1088}};
  const StepBounds bounds = {.max_tokens = 8192, .max_seqs = 512, .max_context_tokens = 1 << 17};

  EXPECT_LE(NeedsOf(bounds, shape).partial_bytes, int64_t{64} << 20);
  EXPECT_LE(PartialBytes(WorkOf(1 << 17, 1, shape), shape), int64_t{24} << 20) << "of one sequence";
  // Any number of sequences of 12k tokens decodes in one group.
  DecodeWork work = WorkOf(12 << 10, 1, shape);
  work.num_splits *= 100'000;
  EXPECT_LE(PartialBytes(work, shape), NeedsOf(bounds, shape).partial_bytes);
}

TEST(DecodeMemoryTest, NoMoreIsReservedThanTheBoundsNeedOrOneSequenceNeeds) {
  const StepBounds bounds = {.max_tokens = 512, .max_seqs = 512, .max_context_tokens = 1 << 17};
  for (StepShape shape : {kShape, Lines(264)}) {
    const DecodeWork one = WorkOf(bounds.max_context_tokens, 1, shape);
    DecodeWork all = WorkOf(bounds.max_context_tokens, shape.lines.max_query_tokens, shape);
    all.num_splits *= bounds.max_seqs;

    shape.max_partial_bytes = int64_t{1} << 40;
    EXPECT_EQ(MaxPartialBytes(bounds, shape), PartialBytes(all, shape));
    shape.max_partial_bytes = int64_t{1} << 27;
    EXPECT_EQ(MaxPartialBytes(bounds, shape), int64_t{1} << 27);
    shape.max_partial_bytes = 1;
    EXPECT_EQ(MaxPartialBytes(bounds, shape), PartialBytes(one, shape)) << "cannot be divided";
  }
}

// ---- The kernels' own counts --------------------------------------------------------------------

TEST(FindLinesTest, TheFloatsOfAPartialResultAreThoseOfTheKernel) {
  const auto library = GpuLibrary::Open("emu", 0);
  ASSERT_TRUE(library.ok()) << library.status();
  for (const int32_t head_dim : {64, 80, 96, 112, 128, 256}) {
    for (const int32_t group : {1, 4, 7, 12, 16, 71}) {
      StepShape shape = {.num_heads = 2 * group, .num_kv_heads = 2, .head_dim = head_dim};
      const KvCacheLayout layout = SwizzledRows({1, 2, head_dim, 16, DType::kF8E4M3});

      shape.lines = FindLines(library->api(), shape, DType::kBF16, std::span(&layout, 1), 16);

      EXPECT_EQ(shape.lines.max_query_tokens, std::clamp(64 / group, 1, 16));
      EXPECT_GT(shape.lines.num_ctas, 0);
      for (int32_t tokens = 1; tokens <= shape.lines.max_query_tokens; ++tokens) {
        EXPECT_EQ(LinePartialFloats(tokens, shape),
                  library->api().decode_partial_floats(
                      {.num_heads = shape.num_heads, .cache = {.layout = layout}},
                      {.num_ctas = 1, .max_query_tokens = tokens, .partials_per_cta = 1}))
            << head_dim << " " << group << " " << tokens;
      }
    }
  }
}

TEST(FindLinesTest, WithoutAKernelForALayoutDecodesRunBySplits) {
  const auto library = GpuLibrary::Open("emu", 0);
  ASSERT_TRUE(library.ok()) << library.status();
  const std::vector<KvCacheLayout> layouts = {SwizzledRows({1, 2, 64, 16, DType::kBF16}),
                                              TokenMajorKeys({1, 2, 64, 16, DType::kBF16})};
  EXPECT_GT(
      FindLines(library->api(), kShape, DType::kBF16, std::span(layouts).first(1), 16).num_ctas, 0);
  EXPECT_EQ(FindLines(library->api(), kShape, DType::kBF16, layouts, 16).num_ctas, 0);
}

TEST(SplitTokensTest, DependOnTheQueryHeadsOfAKvHeadAlone) {
  EXPECT_EQ(SplitTokens(4, true), 256);
  EXPECT_EQ(SplitTokens(10, true), 256);
  EXPECT_EQ(SplitTokens(11, true), 512);
  EXPECT_EQ(SplitTokens(4, false), 512);
  EXPECT_EQ(SplitTokens(16, false), 1024);
}

// A window is a second mapping of the pool, which shows a running grid no new values.
TEST(DecodePlansTest, ADecodeThatReadsWindowsStartsAfterItsKeysAreWritten) {
  const auto library = GpuLibrary::Open("emu", 0);
  ASSERT_TRUE(library.ok()) << library.status();
  gpu::GpuApi api = library->api();
  api.plan_decode = [](const PagedAttentionParams&, const gpu::DecodePlan&, int32_t*, gpu::Stream) {
    return 0;
  };
  StepMemory memory(api);
  memory.SetWindows({0});
  ASSERT_TRUE(memory.Reserve({.split_start_bytes = 64}).ok());
  DecodePlans plans(api, nullptr, memory);
  plans.SetModel(kShape, DType::kBF16);
  PackedStep step;
  step.groups = {{.first = 0, .count = 1}};
  PagedAttentionParams params;
  params.cache.layout.dtype = DType::kBF16;
  const int64_t places[] = {0};

  EXPECT_FALSE(plans.PlanOf(step, 0, params, true).starts_early) << "behind the plan";
  EXPECT_TRUE(plans.PlanOf(step, 0, params, true).starts_early);
  params.first_places = places;
  EXPECT_FALSE(plans.PlanOf(step, 0, params, true).starts_early);
}

}  // namespace
}  // namespace quire
