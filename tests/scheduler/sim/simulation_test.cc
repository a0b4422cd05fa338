#include "scheduler/sim/simulation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/sim/reserving_engine.h"
#include "tests/support/random.h"

namespace quire {
namespace {

SimConfig ConfigWithSlots(MemoryPolicy policy, int32_t num_slots) {
  SimConfig config = {.platform = *FindPlatform("a100-opt-13b"), .policy = policy};
  config.platform.kv_pool_bytes =
      static_cast<double>(num_slots * config.platform.model.kv_bytes_per_token());
  config.max_model_len = 64;
  config.max_sequences = 8;
  config.max_tokens_per_step = 96;
  config.block_size_tokens = 4;
  config.checks_invariants = true;
  return config;
}

// Short requests that arrive faster than they can be served.
Trace SmallTrace(uint64_t seed, int num_requests) {
  Random random(seed);
  Trace trace;
  Instant arrival = 0;
  for (int i = 0; i < num_requests; ++i) {
    arrival += random.Below(60) * kNanosPerMilli;
    trace.requests.push_back({.arrival = arrival,
                              .prompt_tokens = random.Between(1, 30),
                              .output_tokens = random.Between(1, 34)});
  }
  return trace;
}

class SimulationTest : public testing::TestWithParam<MemoryPolicy> {};

TEST_P(SimulationTest, EveryRequestFinishesAfterItsTokensCouldBeMade) {
  // RunSimulation itself checks that each request ends once and that all slots are freed.
  const SimConfig config = ConfigWithSlots(GetParam(), 200);
  const double shortest_step_s = 5e-3 + 26e9 / (1555e9 * 0.8);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Trace trace = SmallTrace(seed, 60);

    absl::StatusOr<SimResult> result = RunSimulation(config, trace);

    ASSERT_TRUE(result.ok()) << result.status();
    for (size_t i = 0; i < trace.requests.size(); ++i) {
      const SimRequest& request = trace.requests[i];
      const double least_s = request.output_tokens * shortest_step_s;
      EXPECT_GE(static_cast<double>(result->finished[i] - request.arrival), least_s * 1e9);
      EXPECT_LE(result->finished[i], result->end);
    }
  }
}

TEST_P(SimulationTest, TheSameTraceGivesTheSameResultTwice) {
  const SimConfig config = ConfigWithSlots(GetParam(), 200);
  const Trace trace = SmallTrace(3, 80);

  absl::StatusOr<SimResult> first = RunSimulation(config, trace);
  absl::StatusOr<SimResult> second = RunSimulation(config, trace);

  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->finished, second->finished);
  EXPECT_EQ(first->mean_normalized_latency_s, second->mean_normalized_latency_s);
  EXPECT_EQ(first->mean_batch, second->mean_batch);
}

TEST_P(SimulationTest, SharesOfMemoryAddUpToThePool) {
  absl::StatusOr<SimResult> result =
      RunSimulation(ConfigWithSlots(GetParam(), 200), SmallTrace(4, 80));

  ASSERT_TRUE(result.ok());
  const MemoryUse& memory = result->mean_memory;
  EXPECT_NEAR(memory.stored + memory.reserved + memory.internal + memory.external, 1, 1e-9);
  EXPECT_GT(memory.stored, 0);
  EXPECT_GE(memory.reserved, 0);
  EXPECT_GE(memory.internal, 0);
  EXPECT_GE(memory.external, 0);
}

TEST_P(SimulationTest, LatencyIsTheMeanOverRequestsOfTimePerOutputToken) {
  const Trace trace = SmallTrace(5, 40);

  absl::StatusOr<SimResult> result = RunSimulation(ConfigWithSlots(GetParam(), 200), trace);

  ASSERT_TRUE(result.ok());
  double sum = 0;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    sum += static_cast<double>(result->finished[i] - trace.requests[i].arrival) / 1e9 /
           trace.requests[i].output_tokens;
  }
  EXPECT_NEAR(result->mean_normalized_latency_s, sum / 40, 1e-12);
}

TEST_P(SimulationTest, ALoneRequestTakesTheSumOfItsSteps) {
  const SimConfig config = ConfigWithSlots(GetParam(), 200);
  const bool is_paged = GetParam() == MemoryPolicy::kPaged;
  const CostModel cost(config.platform, is_paged ? config.block_size_tokens : kContiguous);
  Instant end = 7;
  for (int32_t i = 0; i < 5; ++i) {
    const double step_s = cost.StepSeconds(
        {.num_tokens = i == 0 ? 20 : 1, .num_context_tokens = 20 + i, .num_sequences = 1});
    end += std::llround(step_s * 1e9);
  }

  absl::StatusOr<SimResult> result = RunSimulation(
      config, {.requests = {{.arrival = 7, .prompt_tokens = 20, .output_tokens = 5}}});

  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finished[0], end);
  EXPECT_EQ(result->num_steps, 5);
}

TEST_P(SimulationTest, ALongPromptPaysForWhatAttentionMultiplies) {
  SimConfig config = {.platform = *FindPlatform("a100-yi-6b"), .policy = GetParam()};
  config.max_model_len = 32'768;
  config.max_tokens_per_step = 32'768;
  const bool is_paged = GetParam() == MemoryPolicy::kPaged;
  const CostModel cost(config.platform, is_paged ? config.block_size_tokens : kContiguous);
  const StepWork prompt = {.num_tokens = 30'000,
                           .num_context_tokens = 30'000,
                           .num_sequences = 1,
                           .num_attended_tokens = int64_t{30'000} * 30'001 / 2};

  absl::StatusOr<SimResult> result =
      RunSimulation(config, {.requests = {{.prompt_tokens = 30'000, .output_tokens = 1}}});

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->finished[0], std::llround(cost.StepSeconds(prompt) * 1e9));
  EXPECT_GT(cost.AttentionProductSeconds(prompt.num_attended_tokens),
            cost.AttentionSeconds(prompt.num_context_tokens));
}

TEST_P(SimulationTest, OneStepOfOneRequestFillsMemoryAsThePolicySays) {
  // A prompt of 5 in a pool of 200 takes one step. The second request only ends the measured time.
  const SimConfig config = ConfigWithSlots(GetParam(), 200);
  absl::StatusOr<SimResult> result =
      RunSimulation(config, {.requests = {{0, 5, 1}, {kNanosPerSecond, 30, 30}}});

  ASSERT_TRUE(result.ok());
  const bool is_paged = GetParam() == MemoryPolicy::kPaged;
  const bool reserves_all =
      GetParam() == MemoryPolicy::kOrcaMax || GetParam() == MemoryPolicy::kFasterTransformer;
  const double internal = is_paged ? 3 : reserves_all ? 58 : 0;
  const double reserved = is_paged ? 0 : 1;
  EXPECT_NEAR(result->mean_memory.stored, 5.0 / 200, 1e-9);
  EXPECT_NEAR(result->mean_memory.reserved, reserved / 200, 1e-9);
  EXPECT_NEAR(result->mean_memory.internal, internal / 200, 1e-9);
  EXPECT_NEAR(result->mean_memory.external, (195 - internal - reserved) / 200, 1e-9);
  EXPECT_NEAR(result->mean_batch, static_cast<double>(result->finished[0]) / 1e9, 1e-9);
}

TEST_P(SimulationTest, StopsOnceTheLatencyIsSureToBeOverItsLimit) {
  SimConfig config = ConfigWithSlots(GetParam(), 200);
  const Trace trace = SmallTrace(6, 100);
  const double latency_s = RunSimulation(config, trace)->mean_normalized_latency_s;

  config.latency_limit_s = 0.9 * latency_s;
  absl::StatusOr<SimResult> over = RunSimulation(config, trace);
  config.latency_limit_s = 1.1 * latency_s;
  absl::StatusOr<SimResult> within = RunSimulation(config, trace);

  ASSERT_TRUE(over.ok() && within.ok());
  EXPECT_TRUE(over->is_over_limit);
  EXPECT_FALSE(within->is_over_limit);
  EXPECT_EQ(within->mean_normalized_latency_s, latency_s);
}

TEST_P(SimulationTest, RefusesRequestsThatCanNeverRun) {
  const SimConfig config = ConfigWithSlots(GetParam(), 200);
  const auto status_of = [&](std::vector<SimRequest> requests) {
    return RunSimulation(config, {.requests = std::move(requests)}).status();
  };

  EXPECT_TRUE(status_of({{0, 30, 34}}).ok());
  EXPECT_EQ(status_of({{0, 30, 35}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of({{0, 0, 5}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of({{0, 5, 0}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of({{5, 1, 1}, {4, 1, 1}}).code(), absl::StatusCode::kInvalidArgument);
  const SimConfig tiny = ConfigWithSlots(GetParam(), 30);
  EXPECT_FALSE(RunSimulation(tiny, {.requests = {{0, 20, 20}}}).ok());
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         SimulationTest,
                         testing::ValuesIn(kAllPolicies),
                         [](const auto& i) {
                           std::string name(NameOf(i.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(SimulationMeterTest, WhereAllArriveAtTheStartTheWholeTimeIsMeasured) {
  const SimConfig config = ConfigWithSlots(MemoryPolicy::kPaged, 200);

  absl::StatusOr<SimResult> result = RunSimulation(config, {.requests = {{0, 10, 4}, {0, 10, 4}}});

  ASSERT_TRUE(result.ok());
  EXPECT_NEAR(result->mean_batch, 2, 1e-9);
  EXPECT_GT(result->mean_memory.stored, 0);
}

TEST(PagedSimulationTest, ASmallPoolPreemptsAndStillFinishesEverything) {
  absl::StatusOr<SimResult> result =
      RunSimulation(ConfigWithSlots(MemoryPolicy::kPaged, 100), SmallTrace(1, 200));

  ASSERT_TRUE(result.ok());
  EXPECT_GT(result->num_preemptions, 0);
}

TEST(PagedSimulationTest, WhoIsSwappedIsNotComputedAgain) {
  SimConfig config = ConfigWithSlots(MemoryPolicy::kPaged, 100);
  config.preemption_mode = PreemptionMode::kSwap;
  absl::StatusOr<SimResult> swapped = RunSimulation(config, SmallTrace(1, 200));
  config.preemption_mode = PreemptionMode::kRecompute;
  absl::StatusOr<SimResult> recomputed = RunSimulation(config, SmallTrace(1, 200));

  ASSERT_TRUE(swapped.ok() && recomputed.ok());
  EXPECT_GT(swapped->num_preemptions, 0);
  EXPECT_EQ(swapped->num_swap_preemptions, swapped->num_preemptions);
  EXPECT_EQ(swapped->num_recomputed_tokens, 0);
  EXPECT_EQ(recomputed->num_swap_preemptions, 0);
  EXPECT_GT(recomputed->num_recomputed_tokens, 0);
}

TEST(PagedSimulationTest, ASlowLinkMakesSwappingSlow) {
  SimConfig config = ConfigWithSlots(MemoryPolicy::kPaged, 100);
  config.preemption_mode = PreemptionMode::kSwap;
  absl::StatusOr<SimResult> fast = RunSimulation(config, SmallTrace(1, 200));
  config.platform.gpu.host_rate /= 1000;
  absl::StatusOr<SimResult> slow = RunSimulation(config, SmallTrace(1, 200));

  ASSERT_TRUE(fast.ok() && slow.ok());
  EXPECT_GT(slow->mean_normalized_latency_s, 1.5 * fast->mean_normalized_latency_s);
}

TEST(PagedSimulationTest, ATargetBetweenTokensKeepsStepsShort) {
  SimConfig config = {.platform = *FindPlatform("a100-opt-13b")};
  const Trace trace = PoissonTrace(
      {.lengths = ShareGptLike(), .requests_per_second = 2.5, .duration_s = 600, .seed = 1});
  const absl::StatusOr<SimResult> full = RunSimulation(config, trace);
  ASSERT_TRUE(full.ok());
  config.target_inter_token = full->step_p50 * 3 / 2;
  const absl::StatusOr<SimResult> bounded = RunSimulation(config, trace);

  ASSERT_TRUE(bounded.ok());
  EXPECT_GT(full->step_p99, 2 * full->step_p50);
  EXPECT_LE(bounded->step_p99, config.target_inter_token * 11 / 10);
}

// Where copies are fast, kAuto swaps. Where they take seconds it recomputes, except for rare trials
// of a swap.
TEST(PagedSimulationTest, AutoFollowsTheLink) {
  SimConfig config = {.platform = *FindPlatform("a100-opt-13b")};
  config.preemption_mode = PreemptionMode::kAuto;
  const Trace trace = PoissonTrace(
      {.lengths = ShareGptLike(), .requests_per_second = 3, .duration_s = 600, .seed = 1});
  config.platform.gpu.host_rate *= 10;
  absl::StatusOr<SimResult> fast = RunSimulation(config, trace);
  config.platform.gpu.host_rate /= 10'000;
  absl::StatusOr<SimResult> slow = RunSimulation(config, trace);

  ASSERT_TRUE(fast.ok() && slow.ok());
  EXPECT_GT(fast->num_swap_preemptions, fast->num_preemptions * 9 / 10);
  EXPECT_GT(slow->num_preemptions, 500);
  EXPECT_GE(slow->num_swap_preemptions, 1);
  EXPECT_LE(slow->num_swap_preemptions, 1 + slow->num_preemptions / 200);
}

// A step has two hundred sequences, and products take time in proportion to their tokens. So
// recomputing costs its whole time, and a sequence that sits out a swap loses little. During a
// swap, steps have fewer tokens than any seen since the pool is full.
TEST(PagedSimulationTest, AutoSwapsShortSequencesWhereEveryTokenCosts) {
  SimConfig config = {.platform = *FindPlatform("a100-opt-13b"), .block_size_tokens = 1};
  config.preemption_mode = PreemptionMode::kAuto;

  absl::StatusOr<SimResult> result = RunSimulation(
      config,
      PoissonTrace(
          {.lengths = AlpacaLike(), .requests_per_second = 50, .duration_s = 180, .seed = 1}));

  ASSERT_TRUE(result.ok());
  EXPECT_GT(result->num_preemptions, 200);
  EXPECT_GT(result->num_swap_preemptions, result->num_preemptions * 9 / 10);
}

TEST(PagedSimulationTest, ASharedPrefixIsComputedOnceAndStoredOnce) {
  SimConfig config = ConfigWithSlots(MemoryPolicy::kPaged, 200);
  Trace trace = SmallTrace(2, 100);
  trace.shared_prefix_tokens = 24;
  for (SimRequest& request : trace.requests) {
    request.prompt_tokens = 24 + request.prompt_tokens % 4 + 1;
  }
  const double alone_s = RunSimulation(config, trace)->mean_normalized_latency_s;

  config.prefix_caching = true;
  absl::StatusOr<SimResult> shared = RunSimulation(config, trace);

  ASSERT_TRUE(shared.ok());
  EXPECT_LT(shared->mean_normalized_latency_s, 0.8 * alone_s);
}

TEST(PagedSimulationTest, BadLimitsAreRefused) {
  SimConfig config = ConfigWithSlots(MemoryPolicy::kPaged, 200);
  const Trace trace = SmallTrace(1, 2);
  for (int32_t block_size : {0, -1, 3, 1024}) {
    config.block_size_tokens = block_size;
    EXPECT_FALSE(RunSimulation(config, trace).ok()) << block_size;
  }
  config.block_size_tokens = 4;
  config.max_sequences = 0;
  EXPECT_FALSE(RunSimulation(config, trace).ok());
}

TEST(ReservedSlotsTest, ArePolicysOwn) {
  const SimRequest request = {.prompt_tokens = 100, .output_tokens = 25};

  EXPECT_EQ(ReservedSlots(MemoryPolicy::kOrcaMax, request, 2048), 2048);
  EXPECT_EQ(ReservedSlots(MemoryPolicy::kOrcaPow2, request, 2048), 132);
  EXPECT_EQ(ReservedSlots(MemoryPolicy::kOrcaOracle, request, 2048), 125);
  EXPECT_EQ(ReservedSlots(MemoryPolicy::kOrcaPow2, {0, 1000, 1025}, 2048), 2048);
}

TEST(ParseMemoryPolicyTest, KnowsItsOwnNamesOnly) {
  for (MemoryPolicy policy : kAllPolicies) {
    EXPECT_EQ(*ParseMemoryPolicy(NameOf(policy)), policy);
  }
  EXPECT_FALSE(ParseMemoryPolicy("orca").ok());
}

}  // namespace
}  // namespace quire
