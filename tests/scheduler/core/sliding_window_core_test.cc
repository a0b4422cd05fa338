// The core with a model that has a sliding window. Blocks before the window are freed while their
// sequence runs, and the tokens are those of a run that keeps all blocks.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/admission.h"
#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

using Outputs = std::map<std::pair<uint64_t, int32_t>, std::vector<TokenId>>;

// Drives one core and one worker from the first step to the last.
class WindowRun {
 public:
  WindowRun(const CoreConfig& config, const StepLimits& limits)
      : limits_(limits), core_(config), worker_(limits, /*swap_delay_steps=*/1) {
    core_.BeginEpoch(1, 1, limits);
  }

  void Add(const RequestSpec& spec) {
    ASSERT_EQ(core_.AddRequest(MakeRequest(spec, limits_.vocab_size)), AddOutcome::kQueued);
    specs_[spec.id] = spec;
  }

  // Returns false if the core has no work.
  bool Step() {
    std::optional<StepPlan> plan = core_.PlanStep(0);
    if (!plan.has_value()) {
      return false;
    }
    const int32_t num_used = core_.stats().num_used_blocks;
    num_used_max_ = std::max(num_used_max_, num_used);
    if (plan->slices.size() == 1 && plan->slices[0].num_tokens == 1) {
      num_used_decoding_max_ = std::max(num_used_decoding_max_, num_used);
    }
    for (const SequenceIntroduction& introduction : plan->introductions) {
      num_null_blocks_ += static_cast<int32_t>(
          std::count(introduction.block_ids.begin(), introduction.block_ids.end(), kNullBlockId));
    }
    auto result = worker_.Execute(*plan);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(core_.ApplyStepResult(*result).ok());
    core_.CheckInvariants();
    for (const OutputEvent& event : core_.TakeEvents()) {
      if (const auto* token = std::get_if<TokenCommitted>(&event)) {
        outputs_[{token->request_id.value(), token->sequence_index}].push_back(token->token_id);
      }
    }
    return true;
  }

  const Outputs& RunToEnd() {
    while (Step()) {
    }
    return outputs_;
  }

  // The tokens of every sequence if no block were ever freed, computed from its history alone.
  Outputs Expected() const {
    Outputs expected;
    for (const auto& [id, spec] : specs_) {
      for (int32_t index = 0; index < spec.num_sequences; ++index) {
        std::vector<TokenId> history = MakeRequest(spec, limits_.vocab_size).prompt_token_ids;
        std::vector<TokenId>& output = expected[{id, index}];
        for (int32_t i = 0; i < spec.max_tokens; ++i) {
          history.push_back(
              ExpectedToken(history, spec.id, index, limits_.vocab_size, limits_.sliding_window));
          output.push_back(history.back());
        }
      }
    }
    return expected;
  }

  CoreStats stats() const { return core_.stats(); }
  int32_t num_used_max() const { return num_used_max_; }
  int32_t num_used_decoding_max() const { return num_used_decoding_max_; }
  int32_t num_null_blocks() const { return num_null_blocks_; }

 private:
  StepLimits limits_;
  SchedulerCore core_;
  FakeWorker worker_;
  std::map<uint64_t, RequestSpec> specs_;
  Outputs outputs_;
  int32_t num_used_max_ = 0;
  int32_t num_used_decoding_max_ = 0;
  int32_t num_null_blocks_ = 0;  // in introductions
};

// 6 blocks of 4 tokens: just enough for one sequence behind a window of 8.
constexpr StepLimits kSmallPool{.num_blocks = 7,
                                .block_size_tokens = 4,
                                .max_sequences = 4,
                                .max_tokens_per_step = 13,
                                .max_model_len = 400,
                                .vocab_size = 1000,
                                .sliding_window = 8};

TEST(SlidingWindowCoreTest, APromptLongerThanThePoolRunsInIt) {
  WindowRun run(CoreConfig{}, kSmallPool);
  run.Add({.id = 1, .prompt = 301, .max_tokens = 60});

  EXPECT_EQ(run.RunToEnd(), run.Expected());

  EXPECT_EQ(run.num_used_max(), 6);
  EXPECT_EQ(run.stats().num_free_blocks, 6);
  EXPECT_EQ(run.stats().num_preemptions, 0);
}

TEST(SlidingWindowCoreTest, LongPromptsAndGroupsShareASmallPoolToTheirEnd) {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    for (const bool prefix_caching : {false, true}) {
      StepLimits limits = kSmallPool;
      limits.num_blocks = 15;
      limits.num_host_blocks = 20;
      limits.max_sequences = 12;
      WindowRun run({.preemption_mode = mode, .prefix_caching = prefix_caching}, limits);
      run.Add({.id = 1, .prompt = 90, .max_tokens = 50});
      run.Add({.id = 2, .prompt = 3, .max_tokens = 60, .num_sequences = 3});
      for (uint64_t id = 3; id < 9; ++id) {
        run.Add({.id = id, .prompt = 2, .max_tokens = 70});
      }
      run.Add({.id = 9, .prompt = 120, .max_tokens = 40});
      run.Add({.id = 10, .prompt = 40, .max_tokens = 90, .num_sequences = 3});

      EXPECT_EQ(run.RunToEnd(), run.Expected());

      EXPECT_GT(run.stats().num_preemptions, 0);
      EXPECT_EQ(run.stats().num_free_blocks, 14);
      EXPECT_EQ(run.stats().num_used_host_blocks, 0);
      if (mode == PreemptionMode::kSwap) {
        EXPECT_GT(run.stats().num_swap_preemptions, 0);
        EXPECT_GT(run.num_null_blocks(), 0) << "who comes back names no block that it gave back";
      }
    }
  }
}

TEST(SlidingWindowCoreTest, AHitBehindTheWindowNeedsNoBlockBeforeIt) {
  WindowRun run({.prefix_caching = true}, kSmallPool);
  run.Add({.id = 1, .prompt = 301, .max_tokens = 3});
  run.RunToEnd();
  ASSERT_LE(run.stats().num_cached_blocks, 6) << "of the 75 that the prompt filled";

  run.Add({.id = 1001, .prompt = 301, .max_tokens = 3});  // by MakeRequest's rule the same prompt

  EXPECT_EQ(run.RunToEnd(), run.Expected());
  EXPECT_EQ(run.stats().num_prefix_hit_tokens, 300);
}

// The figure of ARCHITECTURE.md: 4,096 tokens, blocks of 16, 512 tokens a step.
TEST(SlidingWindowCoreTest, BlocksOfALongRunWithAndWithoutAWindow) {
  StepLimits limits{.num_blocks = 300,
                    .block_size_tokens = 16,
                    .max_sequences = 4,
                    .max_tokens_per_step = 512,
                    .max_model_len = 5000,
                    .vocab_size = 1000};
  const RequestSpec spec = {.id = 1, .prompt = 3968, .max_tokens = 128};

  WindowRun without(CoreConfig{}, limits);
  without.Add(spec);
  without.RunToEnd();
  EXPECT_EQ(without.num_used_max(), 256);

  limits.sliding_window = 256;
  WindowRun with(CoreConfig{}, limits);
  with.Add(spec);
  EXPECT_EQ(with.RunToEnd(), with.Expected());
  EXPECT_EQ(with.num_used_max(), 48);
  EXPECT_EQ(with.num_used_decoding_max(), 17);
  EXPECT_EQ(NumBlocksAtMost(1, 4096, limits), 49);
}

}  // namespace
}  // namespace quire
