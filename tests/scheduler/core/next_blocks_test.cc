#include "scheduler/core/next_blocks.h"

#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "tests/scheduler/core/core_fixture.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

using testing::ElementsAre;

// 8 blocks of 4 tokens, 4 handles, 16 tokens a step.
class NextBlocksTest : public CoreFixture {
 protected:
  NextBlocksTest() {
    StepLimits limits = limits_;
    limits.wants_next_blocks = true;
    BeginEpoch(limits);
  }

  // Plans and answers a step. Returns the next block that each slice names, or 0.
  std::vector<BlockId> Hints() {
    const StepPlan plan = Plan().value();
    std::vector<BlockId> hints;
    for (const SequenceSlice& slice : plan.slices) {
      hints.push_back(slice.next_block_id.value_or(kNullBlockId));
    }
    Apply(Answer(5));
    return hints;
  }
};

TEST_F(NextBlocksTest, WhoseBlocksAreFullGetsTheNextFreeOne) {
  Add({.id = 1, .prompt = 3});

  EXPECT_THAT(Hints(), ElementsAre(0)) << "3 of 4 places are filled";
  EXPECT_THAT(Hints(), ElementsAre(2)) << "4 of 4";
  const StepPlan plan = Plan().value();

  EXPECT_THAT(plan.slices[0].new_block_ids, ElementsAre(2));
  EXPECT_EQ(plan.slices[0].next_block_id, std::nullopt);
}

TEST_F(NextBlocksTest, NobodyIsToldWhoDoesNotWantIt) {
  limits_.wants_next_blocks = false;
  BeginEpoch(limits_);
  Add({.id = 1, .prompt = 4});

  EXPECT_THAT(Hints(), ElementsAre(0));
}

TEST_F(NextBlocksTest, APromptInPartsGetsOneWithItsLastPartOnly) {
  Add({.id = 1, .prompt = 20});

  EXPECT_THAT(Hints(), ElementsAre(0)) << "16 of 20 tokens: it goes on with 4 at once";
  EXPECT_THAT(Hints(), ElementsAre(6));
}

TEST_F(NextBlocksTest, WhoEndsByItsLengthGetsNone) {
  Add({.id = 1, .prompt = 4, .max_tokens = 1});
  Add({.id = 2, .prompt = 4, .max_tokens = 2});

  EXPECT_THAT(Hints(), ElementsAre(0, 3));
}

TEST_F(NextBlocksTest, WhereFreeBlocksEndHintsEnd) {
  for (const uint64_t id : {1, 2, 3}) {
    Add({.id = id, .prompt = 4, .max_tokens = 9});
  }
  BlockTable table;
  ASSERT_TRUE(state_.epoch->kv_cache.Append(table, 3 * 4).has_value());

  EXPECT_THAT(Hints(), ElementsAre(7, 8, 0));

  state_.epoch->kv_cache.Free(table);
}

// 60 blocks of 4 tokens, 4 handles.
class SpareWindowTest : public CoreFixture {
 protected:
  SpareWindowTest() {
    StepLimits limits = limits_;
    limits.num_blocks = 61;
    limits.max_model_len = 100;
    limits.wants_next_blocks = true;
    BeginEpoch(limits);
  }

  static std::vector<BlockId> Range(BlockId first, int32_t count) {
    std::vector<BlockId> block_ids(static_cast<size_t>(count));
    std::iota(block_ids.begin(), block_ids.end(), first);
    return block_ids;
  }
};

TEST_F(SpareWindowTest, NamesWhatTheNextSequenceGets) {
  Add({.id = 1, .prompt = 6});
  const SpareWindow spare = Plan().value().spare;
  EXPECT_EQ(spare, (SpareWindow{.handle = 1, .block_ids = Range(3, 16)}));
  Apply(Answer(5));

  Add({.id = 2, .prompt = 7});
  const StepPlan plan = Plan().value();

  EXPECT_EQ(plan.introductions[0].handle, spare.handle);
  EXPECT_THAT(plan.slices[1].new_block_ids, ElementsAre(3, 4));
  EXPECT_EQ(plan.spare, (SpareWindow{.handle = 2, .block_ids = Range(5, 16)}));
  Apply(Answer(5));
}

TEST_F(SpareWindowTest, StaysTheSameWhileSequencesGrowAndEnd) {
  Add({.id = 1, .prompt = 3, .max_tokens = 20});
  Add({.id = 2, .prompt = 3, .max_tokens = 6});
  const SpareWindow first = Plan().value().spare;
  Apply(Answer(5));
  int32_t num_grown = 0;
  for (int32_t i = 1; i < 20; ++i) {
    const StepPlan plan = Plan().value();
    EXPECT_EQ(plan.spare, first) << i;
    for (const SequenceSlice& slice : plan.slices) {
      num_grown += static_cast<int32_t>(slice.new_block_ids.size());
    }
    Apply(Answer(5));
  }
  EXPECT_EQ(num_grown, 6);
}

TEST_F(SpareWindowTest, EndsWhereFreeBlocksEnd) {
  Add({.id = 1, .prompt = 4});
  BlockTable table;
  ASSERT_TRUE(state_.epoch->kv_cache.Append(table, 56 * 4).has_value());

  EXPECT_THAT(Plan().value().spare.block_ids, ElementsAre(58, 59, 60));

  Apply(Answer(5));
  state_.epoch->kv_cache.Free(table);
}

TEST_F(SpareWindowTest, NeedsAFreeHandle) {
  Add({.id = 1, .prompt = 4, .num_sequences = 4});

  EXPECT_EQ(Plan().value().spare, SpareWindow{});

  Apply(Answer(5));
}

TEST_F(SpareWindowTest, IsNotNamedToWhoDoesNotWantIt) {
  limits_.wants_next_blocks = false;
  BeginEpoch(limits_);
  Add({.id = 1, .prompt = 4});

  EXPECT_EQ(Plan().value().spare, SpareWindow{});

  Apply(Answer(5));
}

// The ranks decide, not the order of this plan: the urgent request is the last in it.
TEST(NextBlocksOrderTest, WhoIsServedFirstNextTimeGetsTheFirst) {
  StepLimits limits{.num_blocks = 9, .block_size_tokens = 4, .max_model_len = 32, .vocab_size = 97};
  limits.wants_next_blocks = true;
  SchedulerCore core({.scheduling_policy = SchedulingPolicyKind::kPriority});
  FakeWorker worker(limits);
  core.BeginEpoch(1, 1, limits);
  const auto step = [&] {
    StepPlan plan = core.PlanStep(0).value();
    EXPECT_TRUE(core.ApplyStepResult(worker.Execute(plan).value()).ok());
    return plan;
  };
  core.AddRequest(MakeRequest({.id = 1, .prompt = 3}, limits.vocab_size));
  step();
  Request urgent = MakeRequest({.id = 2, .prompt = 4}, limits.vocab_size);
  urgent.priority = -100;
  core.AddRequest(urgent);

  const StepPlan plan = step();

  EXPECT_EQ(plan.slices[0].next_block_id, 4) << "the patient one";
  EXPECT_EQ(plan.slices[1].next_block_id, 3);
  const StepPlan next = step();
  EXPECT_THAT(next.slices[0].new_block_ids, ElementsAre(3));
  EXPECT_EQ(next.slices[0].handle, plan.slices[1].handle);
}

struct Load {
  const char* name;
  CoreConfig config;
  StepLimits limits;
  int32_t num_sequences = 1;
};

// Counts the blocks that slices append, and the blocks that earlier plans named. An appended block
// is foreseen if the step before had named it for the same sequence.
class DecodeRun {
 public:
  explicit DecodeRun(const Load& load)
      : core_(load.config), worker_(load.limits), vocab_size_(load.limits.vocab_size) {
    core_.BeginEpoch(1, 1, load.limits);
  }

  void Add(const RequestSpec& spec) {
    ASSERT_EQ(core_.AddRequest(MakeRequest(spec, vocab_size_)), AddOutcome::kQueued);
  }

  // Returns false if the core has no work.
  bool Step() {
    std::optional<StepPlan> plan = core_.PlanStep(0);
    if (!plan.has_value()) {
      return false;
    }
    const std::map<SequenceHandle, BlockId> named = std::exchange(named_, {});
    num_hints_ += static_cast<int32_t>(named.size());
    for (const SequenceSlice& slice : plan->slices) {
      for (const BlockId block : slice.new_block_ids) {
        const auto next = named.find(slice.handle);
        ++num_appended_;
        num_foreseen_ += next != named.end() && next->second == block ? 1 : 0;
      }
      if (slice.next_block_id.has_value()) {
        named_[slice.handle] = *slice.next_block_id;
      }
    }
    const StepResult result = worker_.Execute(*plan).value();
    EXPECT_TRUE(core_.ApplyStepResult(result).ok());
    core_.TakeEvents();
    return true;
  }

  // Starts the counts anew.
  void Count() { num_appended_ = num_foreseen_ = num_hints_ = 0; }
  int32_t num_appended() const { return num_appended_; }
  int32_t num_foreseen() const { return num_foreseen_; }
  int32_t num_hints() const { return num_hints_; }

 private:
  SchedulerCore core_;
  FakeWorker worker_;
  int32_t vocab_size_;
  std::map<SequenceHandle, BlockId> named_;  // by the last plan
  int32_t num_appended_ = 0;
  int32_t num_foreseen_ = 0;
  int32_t num_hints_ = 0;
};

StepLimits Limits(int32_t sliding_window = 0, int32_t blocks_per_page = 1) {
  return {.num_blocks = 1200,  // nobody is preempted

          .block_size_tokens = 4,
          .max_sequences = 64,
          .max_tokens_per_step = 512,
          .max_model_len = 200,
          .vocab_size = 97,
          .sliding_window = sliding_window,
          .wants_next_blocks = true,
          .blocks_per_page = blocks_per_page};
}

class SteadyDecodeTest : public testing::TestWithParam<Load> {};

// The requests have different lengths and end one after the other. The pool was used before, so its
// free list is out of order and has cached blocks.
TEST_P(SteadyDecodeTest, EveryBlockWasNamedTheStepBefore) {
  const Load& load = GetParam();
  DecodeRun run(load);
  for (uint64_t id = 1; id <= 10; ++id) {
    const auto i = static_cast<int32_t>(id);
    run.Add({.id = id, .prompt = 3 * i, .max_tokens = 30 - i});
  }
  while (run.Step()) {
  }
  for (uint64_t id = 11; id <= 30; ++id) {
    const auto i = static_cast<int32_t>(id);
    run.Add(
        {.id = id, .prompt = 1 + i % 7, .max_tokens = 20 + i, .num_sequences = load.num_sequences});
  }
  run.Step();
  run.Step();  // forks have their own blocks now
  run.Count();

  while (run.Step()) {
  }

  EXPECT_GT(run.num_appended(), 150);
  EXPECT_EQ(run.num_foreseen(), run.num_appended());
  EXPECT_EQ(run.num_hints(), run.num_appended());
}

INSTANTIATE_TEST_SUITE_P(
    Loads,
    SteadyDecodeTest,
    testing::Values(
        Load{"plain", {.prefix_caching = false}, Limits()},
        Load{"cached", {.prefix_caching = true}, Limits()},
        Load{"fair_share", {.scheduling_policy = SchedulingPolicyKind::kFairShare}, Limits()},
        Load{"window", {.prefix_caching = true}, Limits(/*sliding_window=*/10)},
        Load{"pages", {.prefix_caching = true}, Limits(0, /*blocks_per_page=*/8)},
        Load{"window_pages", {.prefix_caching = true}, Limits(10, /*blocks_per_page=*/2)},
        Load{"groups", {.prefix_caching = true}, Limits(), /*num_sequences=*/3}),
    [](const auto& load) { return load.param.name; });

}  // namespace
}  // namespace quire
