// Blocks that the sequences of a request share, and keep sharing through preemption.
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

constexpr StepLimits kSharingLimits{.num_blocks = 65,
                                    .num_host_blocks = 64,
                                    .block_size_tokens = 4,
                                    .max_sequences = 8,
                                    .max_tokens_per_step = 400,
                                    .max_model_len = 120,
                                    .vocab_size = 1000};
constexpr Hash128 kKey = {.low = 1, .high = 2};

// A core and its worker.
class Bench {
 public:
  explicit Bench(const CoreConfig& config, const StepLimits& limits = kSharingLimits)
      : core(config), limits_(limits) {
    BeginEpoch();
  }

  void BeginEpoch() {
    worker_.emplace(limits_);
    core.BeginEpoch(1, ++group_epoch_, limits_);
  }

  // Computes a step and returns the number of blocks in use after it. REQUIRES: the core has work.
  int32_t Step() {
    std::optional<StepPlan> plan = core.PlanStep(0);
    EXPECT_TRUE(plan.has_value());
    absl::StatusOr<StepResult> result = worker_->Execute(*plan);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(core.ApplyStepResult(*result).ok());
    core.CheckInvariants();
    return core.stats().num_used_blocks;
  }

  void RunToEnd() {
    while (core.has_work()) {
      Step();
    }
  }

  SchedulerCore core;

 private:
  StepLimits limits_;
  uint64_t group_epoch_ = 0;
  std::optional<FakeWorker> worker_;
};

Request Samples(uint64_t id = 1) {
  return MakeRequest({.id = id, .prompt = 10, .max_tokens = 40, .num_sequences = 4});
}

Request Beams(uint64_t id = 1) {
  Request request = MakeRequest({.id = id, .prompt = 10, .max_tokens = 40});
  request.beam_search = {.num_beams = 4};
  request.sampling.num_logprobs = 4;
  return request;
}

class GroupSharingTest : public testing::TestWithParam<bool> {
 protected:
  static Request Group(uint64_t id = 1) { return GetParam() ? Beams(id) : Samples(id); }
};

TEST_P(GroupSharingTest, ComesBackFromRecomputation) {
  for (const bool uses_cache : {false, true}) {
    const CoreConfig config = {.prefix_caching = uses_cache, .block_hash_key = kKey};
    Bench calm(config);
    Bench disturbed(config);
    calm.core.AddRequest(Group());
    disturbed.core.AddRequest(Group());
    for (int i = 0; i < 25; ++i) {
      ASSERT_EQ(calm.Step(), disturbed.Step());
      if (i % 5 == 4) {
        disturbed.core.OnWorkersLost();
        disturbed.BeginEpoch();
      }
    }
    // Without sharing, four sequences of 34 tokens would fill 36 blocks.
    EXPECT_LT(calm.core.stats().num_used_blocks, 32);
    EXPECT_GT(disturbed.core.stats().num_recomputed_tokens, 0);
  }
}

TEST_P(GroupSharingTest, SurvivesSwapping) {
  StepLimits limits = kSharingLimits;
  limits.num_blocks = 54;  // two older requests grow into what the group has
  Bench bench({.watermark = 0.0, .preemption_mode = PreemptionMode::kSwap}, limits);
  bench.core.AddRequest(MakeRequest({.id = 1, .prompt = 75, .max_tokens = 40}));
  bench.core.AddRequest(MakeRequest({.id = 2, .prompt = 60, .max_tokens = 40}));
  bench.core.AddRequest(Group(3));
  const auto num_blocks_after = [&bench](int64_t prompt) {
    return (prompt + bench.core.stats().num_steps - 1 + 3) / 4;
  };
  int64_t num_unique = 0;
  while (bench.core.stats().num_swapped_requests == 0) {
    num_unique = bench.core.stats().num_used_blocks - num_blocks_after(75) - num_blocks_after(60);
    bench.Step();
  }
  EXPECT_GT(num_unique, 0);
  EXPECT_EQ(bench.core.stats().num_blocks_swapped_out, num_unique);
  bench.RunToEnd();
  EXPECT_EQ(bench.core.stats().num_blocks_swapped_in, bench.core.stats().num_blocks_swapped_out);
  EXPECT_EQ(bench.core.stats().num_recomputed_tokens, 0);
}

TEST_P(GroupSharingTest, IsOnlyItsOwnWhenItBypassesTheCache) {
  const CoreConfig config = {.prefix_caching = true, .block_hash_key = kKey};
  Bench bench(config);
  Request bypassing = Group();
  bypassing.bypasses_prefix_cache = true;
  bench.core.AddRequest(bypassing);
  bench.Step();
  const int32_t num_used = bench.Step();
  bypassing.id = RequestId(2);
  bench.core.AddRequest(bypassing);
  bench.Step();
  EXPECT_GE(bench.Step(), 2 * num_used);
  Request same = Group();
  same.id = RequestId(3);
  bench.core.AddRequest(same);
  bench.RunToEnd();
  EXPECT_EQ(bench.core.stats().num_prefix_hit_tokens, 0);
  EXPECT_EQ(bench.core.stats().num_prefix_queried_tokens, 10);
}

TEST_P(GroupSharingTest, OneBlockIsCopiedForEachFork) {
  Bench bench({});
  bench.core.AddRequest(Group());
  bench.Step();
  bench.Step();  // the prompt's third block has two tokens
  EXPECT_EQ(bench.core.stats().num_blocks_copied, 3);
  EXPECT_LE(bench.core.stats().num_used_blocks, 2 + 4);
}

INSTANTIATE_TEST_SUITE_P(SamplesAndBeams, GroupSharingTest, testing::Bool());

}  // namespace
}  // namespace quire
