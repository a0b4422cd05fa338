#include "scheduler/sim/static_batch_engine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/random.h"

namespace quire {
namespace {

SimConfig ConfigWithSlots(int32_t num_slots) {
  SimConfig config = {.platform = *FindPlatform("a100-opt-13b"),
                      .policy = MemoryPolicy::kFasterTransformer};
  config.platform.kv_pool_bytes =
      static_cast<double>(num_slots * config.platform.model.kv_bytes_per_token());
  config.max_model_len = 64;
  return config;
}

// A second implementation, batch by batch: when a batch begins its end is known.
std::vector<Instant> PlainFinishes(const SimConfig& config, const Trace& trace, size_t most) {
  const CostModel cost(config.platform, kContiguous);
  const std::vector<SimRequest>& requests = trace.requests;
  std::vector<Instant> finished;
  Instant now = 0;
  while (finished.size() < requests.size()) {
    const size_t first = finished.size();
    now = std::max(now, requests[first].arrival);
    size_t end = first;
    int32_t prompt = 0;
    int32_t output = 0;
    for (; end < requests.size() && end < first + most && requests[end].arrival <= now; ++end) {
      prompt = std::max(prompt, requests[end].prompt_tokens);
      output = std::max(output, requests[end].output_tokens);
    }
    const auto sequences = static_cast<int32_t>(end - first) * config.group_size();
    for (int32_t i = 0; i < output; ++i) {
      const double seconds =
          cost.StepSeconds({.num_tokens = int64_t{sequences} * (i == 0 ? prompt : 1),
                            .num_context_tokens = int64_t{sequences} * (prompt + i),
                            .num_sequences = sequences});
      now += std::llround(seconds * 1e9);
    }
    finished.resize(end, now);
  }
  return finished;
}

TEST(StaticBatchEngineTest, EveryRequestFinishesAtTheVeryNanosecond) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const int32_t most = random.Between(1, 9);
    SimConfig config = ConfigWithSlots(64 * most + random.Below(64));
    Trace trace;
    Instant arrival = 0;
    for (int i = 0; i < 50; ++i) {
      arrival += random.OneIn(8) ? kNanosPerSecond : random.Below(200) * kNanosPerMilli;
      trace.requests.push_back({.arrival = arrival,
                                .prompt_tokens = random.Between(1, 32),
                                .output_tokens = random.Between(1, 32)});
    }
    if (most >= 2) {
      (random.OneIn(2) ? config.num_sequences : config.num_beams) = 2;
    }

    absl::StatusOr<SimResult> result = RunSimulation(config, trace);

    ASSERT_TRUE(result.ok()) << result.status();
    const auto most_requests = static_cast<size_t>(most / config.group_size());
    EXPECT_EQ(result->finished, PlainFinishes(config, trace, most_requests)) << "seed " << seed;
  }
}

TEST(StaticBatchEngineTest, WhoEndsEarlyIsAnsweredWithTheLongestOfItsBatch) {
  absl::StatusOr<SimResult> result = RunSimulation(
      ConfigWithSlots(128), {.requests = {{0, 4, 2}, {0, 10, 30}, {kNanosPerMilli, 1, 1}}});

  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finished[0], result->finished[1]);
  EXPECT_GT(result->finished[2], result->finished[1]);  // does not join, though it could
  EXPECT_EQ(result->num_steps, 31);
}

TEST(StaticBatchEngineTest, ABatchIsAsLargeAsWholeContextsFitThePool) {
  SimConfig config = {.platform = *FindPlatform("a100-opt-13b"),
                      .policy = MemoryPolicy::kFasterTransformer};

  EXPECT_EQ(MaxBatchRequests(config), 7);  // 15.7K slots
  config.num_sequences = 3;
  EXPECT_EQ(MaxBatchRequests(config), 2);
  config.num_sequences = 1;
  config.max_sequences = 5;
  EXPECT_EQ(MaxBatchRequests(config), 5);
  config.max_model_len = 20'000;
  EXPECT_EQ(MaxBatchRequests(config), 0);
}

TEST(StaticBatchEngineTest, SlotsOfWhoHasEndedStayTakenUntilTheBatchEnds) {
  const SimConfig config = ConfigWithSlots(128);
  StaticBatchEngine engine(config);
  engine.Arrive({0, 5, 1}, 0, 0);
  engine.Arrive({0, 3, 2}, 1, 0);
  std::vector<size_t> finished;
  EngineStep step;

  ASSERT_TRUE(engine.BeginStep(0, &step));
  EXPECT_EQ(step.work.num_tokens, 10);  // both prompts, padded to 5
  EXPECT_EQ(step.memory.stored, 8);
  EXPECT_EQ(step.memory.reserved, 3);
  engine.EndStep(1, &finished);
  ASSERT_TRUE(engine.BeginStep(1, &step));

  EXPECT_TRUE(finished.empty());
  EXPECT_EQ(step.work.num_sequences, 2);
  EXPECT_EQ(step.work.num_context_tokens, 12);
  EXPECT_EQ(step.memory.stored, 10);
  EXPECT_EQ(step.memory.reserved, 1);
  EXPECT_EQ(step.memory.internal, 117);
  EXPECT_EQ(engine.num_free_slots(), 0);
  engine.EndStep(2, &finished);
  EXPECT_EQ(finished, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(engine.num_free_slots(), 128);
}

}  // namespace
}  // namespace quire
