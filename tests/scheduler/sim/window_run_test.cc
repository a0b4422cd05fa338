#include "scheduler/sim/window_run.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/sim/length_model.h"
#include "scheduler/sim/vattention_runs.h"

namespace quire {
namespace {

WindowRunConfig Config(BlockLayout layout, bool maps_ahead) {
  WindowRunConfig config = WindowConfigFor("a100-yi-6b", layout, kCudaPageBytes);
  config.mapper.maps_ahead = maps_ahead;
  return config;
}

TEST(ServeInWindowsTest, APrefillWaitsForItsPagesAndThenTakesItsTime) {
  const WindowRunConfig config = Config(BlockLayout::kLayerMajor, false);
  const CostModel cost(config.platform, kContiguous);

  absl::StatusOr<WindowRunResult> result =
      ServeInWindows(config, {{.prompt_tokens = 3000, .output_tokens = 1}});

  ASSERT_TRUE(result.ok()) << result.status();
  const Instant mapping = 128 * CostOfPage(kCudaPageBytes).map;  // 2,048 tokens in a page
  const double step_s = cost.StepSeconds({.num_tokens = 3000,
                                          .num_context_tokens = 3000,
                                          .num_sequences = 1,
                                          .num_attended_tokens = 3000 * 3001 / 2});
  EXPECT_EQ(result->prefill.durations,
            (std::vector<Instant>{mapping + std::llround(step_s * 1e9)}));
  EXPECT_EQ(result->prefill.waited, mapping);
  EXPECT_TRUE(result->decode.durations.empty());
}

TEST(ServeInWindowsTest, EveryTokenIsComputedOnceInBatchesThatRefill) {
  const std::vector<SimRequest> requests = {{.prompt_tokens = 100, .output_tokens = 5},
                                            {.prompt_tokens = 50, .output_tokens = 2},
                                            {.prompt_tokens = 30, .output_tokens = 3},
                                            {.prompt_tokens = 20, .output_tokens = 1}};
  WindowRunConfig config = Config(BlockLayout::kBlockMajor, true);
  config.batch = 2;

  absl::StatusOr<WindowRunResult> result = ServeInWindows(config, requests);

  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->prefill.durations.size(), 4u);
  EXPECT_EQ(result->prefill.num_tokens, 200);
  EXPECT_EQ(result->decode.num_tokens, 4 + 1 + 2 + 0);
  EXPECT_EQ(result->decode.durations.size(), 4u);  // as long as the first request
  EXPECT_EQ(result->decode.total,
            std::accumulate(
                result->decode.durations.begin(), result->decode.durations.end(), Instant{0}));
}

TEST(ServeInWindowsTest, APoolThatIsTooSmallIsAnError) {
  WindowRunConfig config = Config(BlockLayout::kLayerMajor, true);
  config.platform.kv_pool_bytes = 64 * kCudaPageBytes;

  EXPECT_TRUE(ServeInWindows(config, {{.prompt_tokens = 2048, .output_tokens = 1}}).ok());
  EXPECT_EQ(ServeInWindows(config, {{.prompt_tokens = 2049, .output_tokens = 1}}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ServeInWindowsTest, BlocksSpreadTheWaitsThatLayersHaveAtOnce) {
  WindowRunConfig layers = Config(BlockLayout::kLayerMajor, false);
  layers.batch = 4;
  WindowRunConfig blocks = layers;
  blocks.layout = BlockLayout::kBlockMajor;

  absl::StatusOr<DecodeWaits> of_layers = MeasureDecodeWaits(layers);
  absl::StatusOr<DecodeWaits> of_blocks = MeasureDecodeWaits(blocks);

  ASSERT_TRUE(of_layers.ok() && of_blocks.ok());
  EXPECT_EQ(of_layers->steps_apart, 2048);
  EXPECT_EQ(of_blocks->steps_apart, 32);
  EXPECT_NEAR(of_layers->longest_ms, 64 * of_blocks->longest_ms, 1e-9);
}

TEST(ServeInWindowsTest, MappingAheadHidesWhatAStepIsLongerThan) {
  WindowRunConfig config = Config(BlockLayout::kLayerMajor, true);
  config.batch = 4;
  absl::StatusOr<DecodeWaits> few = MeasureDecodeWaits(config);
  config.batch = 32;
  absl::StatusOr<DecodeWaits> many = MeasureDecodeWaits(config);

  ASSERT_TRUE(few.ok() && many.ok());
  EXPECT_EQ(few->longest_ms, 0);
  EXPECT_GT(many->longest_ms, 1);
}

TEST(ServeInWindowsTest, DeferredReclamationMapsLessAndWaitsLess) {
  const Trace trace = OfflineTrace({.lengths = ArxivOnlineLike()}, 24);
  WindowRunConfig config = Config(BlockLayout::kLayerMajor, true);
  config.batch = 4;
  absl::StatusOr<WindowRunResult> deferred = ServeInWindows(config, trace.requests);
  config.mapper.defers_reclamation = false;
  absl::StatusOr<WindowRunResult> at_once = ServeInWindows(config, trace.requests);

  ASSERT_TRUE(deferred.ok() && at_once.ok());
  EXPECT_LT(2 * deferred->counts.num_pages_on_path, at_once->counts.num_pages_on_path);
  EXPECT_LT(2 * deferred->counts.waited, at_once->counts.waited);
  EXPECT_EQ(deferred->counts.num_pages_unmapped, 0);
  EXPECT_GT(at_once->counts.num_pages_unmapped, 0);
}

TEST(SaturatingBatchTest, IsTheFirstWithinATenthOfTheMost) {
  EXPECT_EQ(SaturatingBatch({{1, 10, 0}, {2, 89, 0}, {4, 90, 0}, {8, 100, 0}}), 4);
}

}  // namespace
}  // namespace quire
