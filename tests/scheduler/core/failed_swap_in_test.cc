// Blocks that do not come back from host memory: a request that lacks one is recomputed, and the
// other requests' answers do not change.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "scheduler/core/scheduler_core.h"
#include "tests/scheduler/core/core_fixture.h"
#include "tests/support/fake_worker.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

RequestSpec OneSequence() { return {.id = 2, .prompt = 7, .max_tokens = 3}; }
RequestSpec TwoSequences() { return {.id = 2, .prompt = 6, .max_tokens = 2, .num_sequences = 2}; }

// Request 1 runs. Request 2 was swapped out with two blocks, the second of which is partly filled.
// The unanswered plan brings it back.
class FailedSwapInTest : public CoreFixture {
 protected:
  void BringBack(const RequestSpec& second) {
    state_.config.preemption_mode = PreemptionMode::kSwap;
    state_.config.prefix_caching = true;
    StepLimits limits = limits_;
    limits.num_blocks = 6;
    limits.num_host_blocks = 4;
    BeginEpoch(limits);
    Add({.id = 1, .prompt = 5, .max_tokens = 6});
    Add(second);
    Step();
    ASSERT_TRUE(state_.SwapOut(Group(2)));
    std::optional<StepPlan> plan = Plan();
    ASSERT_THAT(plan->swap_outs, SizeIs(2));
    ASSERT_THAT(plan->swap_ins, IsEmpty());
    swapped_out_in_ = plan->header.step_id;
    StepResult answer = Answer(5);
    answer.swaps_done_step_id = swapped_out_in_;
    Apply(answer);
    TakeEvents();
    plan = Plan();
    ASSERT_THAT(plan->swap_ins, SizeIs(2));
    swap_ins_ = plan->swap_ins;
    copies_ = plan->copies;
  }

  StepResult AnswerWithout(std::vector<BlockId> failed_swap_ins) const {
    StepResult answer = Answer(5);
    answer.failed_swap_ins = std::move(failed_swap_ins);
    answer.swaps_done_step_id = answer.header.step_id;
    return answer;
  }

  std::vector<RequestId> TakeCommitted() {
    std::vector<RequestId> ids;
    for (const OutputEvent& event : TakeEvents()) {
      if (const auto* token = std::get_if<TokenCommitted>(&event)) {
        ids.push_back(token->request_id);
      }
    }
    return ids;
  }

  SequenceGroup& Group(uint64_t id) { return *state_.Find(RequestId(id)); }

  uint64_t swapped_out_in_ = 0;
  std::vector<BlockSwapIn> swap_ins_;
  std::vector<BlockCopy> copies_;
};

TEST_F(FailedSwapInTest, TheOrderNamesTheStepThatSwappedOut) {
  BringBack(OneSequence());

  EXPECT_EQ(swap_ins_[0].generation, swapped_out_in_);
  EXPECT_EQ(swap_ins_[1].generation, swapped_out_in_);
}

TEST_F(FailedSwapInTest, WhoLacksABlockIsRecomputedAndTheOthersGoOn) {
  BringBack(OneSequence());

  Apply(AnswerWithout({swap_ins_[1].block}));

  EXPECT_THAT(TakeCommitted(), ElementsAre(RequestId(1)));
  ASSERT_EQ(state_.waiting.size(), 1);
  EXPECT_EQ(&state_.waiting.front(), &Group(2));
  EXPECT_EQ(state_.epoch->kv_cache.pool().num_used_blocks(), 2) << "those of request 1";
  EXPECT_EQ(state_.counters.num_failed_swap_ins, 1);
  EXPECT_EQ(state_.counters.num_preemptions, 0) << "nobody needed its blocks";
  CheckInvariants(state_);
  const std::optional<StepPlan> plan = Plan();
  ASSERT_THAT(plan->introductions, SizeIs(1));
  EXPECT_THAT(plan->introductions[0].token_ids, SizeIs(8)) << "the token of before is known";
}

TEST_F(FailedSwapInTest, ABlockThatFillsUpInThatStepIsNotFound) {
  BringBack(OneSequence());
  const Sequence& sequence = Group(2).sequences()[0];
  ASSERT_EQ(sequence.num_computed_tokens() + sequence.num_scheduled_tokens(), 8);

  EXPECT_FALSE(state_.epoch->kv_cache.HashOf(sequence.table[1]).has_value());
}

// Two sequences share the last block. One takes a copy of it when they come back. The other one has
// ended when the answer says that the block was lost.
TEST_F(FailedSwapInTest, ACopyOfALostBlockIsLostToo) {
  BringBack(TwoSequences());
  ASSERT_THAT(copies_, SizeIs(1));
  ASSERT_EQ(copies_[0].src, swap_ins_[1].block);
  Sequence& holder = *std::ranges::find_if(Group(2).sequences(), [this](const Sequence& each) {
    return each.table.block_ids().back() == copies_[0].src;
  });
  state_.FinishSequence(Group(2), holder, FinishReason::kStop);

  Apply(AnswerWithout({copies_[0].src}));

  EXPECT_THAT(TakeCommitted(), ElementsAre(RequestId(1)));
  ASSERT_EQ(state_.waiting.size(), 1);
  EXPECT_EQ(&state_.waiting.front(), &Group(2));
}

TEST_F(FailedSwapInTest, RefusesFailuresOfWhatWasNotOrdered) {
  BringBack(OneSequence());
  const BlockId first = swap_ins_[0].block;
  const BlockId second = swap_ins_[1].block;
  const BlockId other = Group(1).sequences()[0].table[0];
  for (const std::vector<BlockId>& wrong : std::vector<std::vector<BlockId>>{
           {other}, {first, other}, {second, first}, {first, first}, {kNullBlockId}, {-1}}) {
    EXPECT_EQ(ReasonOf(CheckResult(state_, AnswerWithout(wrong))), "STEP_RESULT");
  }
  EXPECT_TRUE(CheckResult(state_, AnswerWithout({first, second})).ok());
}

// Runs the core with a worker whose tokens depend on every block. Six requests compete for a pool
// that is too small for all of them, and swap-ins fail.
class FailedSwapInRunTest : public ::testing::TestWithParam<bool> {
 protected:
  using Answers = std::map<std::pair<RequestId, int32_t>, std::vector<TokenId>>;

  // One of every fail_one_in swap-ins fails; 0: none fails.
  static Answers Run(bool is_beam_search, int64_t fail_one_in, CoreStats* stats) {
    constexpr StepLimits kLimits{.num_blocks = 40,
                                 .num_host_blocks = 64,
                                 .block_size_tokens = 4,
                                 .max_sequences = 12,
                                 .max_tokens_per_step = 64,
                                 .max_model_len = 100,
                                 .vocab_size = 1000};
    SchedulerCore core({.watermark = 0.0,
                        .preemption_mode = PreemptionMode::kSwap,
                        .prefix_caching = true,
                        .block_hash_key = {.low = 1, .high = 2}});
    FakeWorker worker(kLimits, /*swap_delay_steps=*/1);
    core.BeginEpoch(1, 1, kLimits);
    for (uint64_t id = 1; id <= 6; ++id) {
      Request request = MakeRequest({.id = id, .prompt = 20, .max_tokens = 30});
      if (is_beam_search) {
        request.beam_search = {.num_beams = 3};
        request.sampling.num_logprobs = 3;
      } else {
        request.num_sequences = 3;
      }
      EXPECT_EQ(core.AddRequest(std::move(request)), AddOutcome::kQueued);
    }
    Answers answers;
    int64_t num_swap_ins = 0;
    while (core.has_work()) {
      const std::optional<StepPlan> plan = core.PlanStep(0);
      for (const BlockSwapIn& swap : plan->swap_ins) {
        if (fail_one_in > 0 && ++num_swap_ins % fail_one_in == 0) {
          worker.FailSwapIn(swap.host_block);
        }
      }
      const absl::StatusOr<StepResult> result = worker.Execute(*plan);
      EXPECT_TRUE(result.ok() && core.ApplyStepResult(*result).ok()) << result.status();
      core.CheckInvariants();
      for (const OutputEvent& event : core.TakeEvents()) {
        if (const auto* token = std::get_if<TokenCommitted>(&event)) {
          answers[{token->request_id, token->sequence_index}].push_back(token->token_id);
        }
      }
    }
    *stats = core.stats();
    return answers;
  }
};

TEST_P(FailedSwapInRunTest, AnswersAreThoseOfSwapInsThatDoNotFail) {
  CoreStats calm;
  const Answers expected = Run(GetParam(), 0, &calm);
  EXPECT_EQ(calm.num_failed_swap_ins, 0);
  EXPECT_EQ(calm.num_recomputed_tokens, 0);
  for (const int64_t fail_one_in : {1, 2, 7}) {
    CoreStats stats;
    EXPECT_EQ(Run(GetParam(), fail_one_in, &stats), expected) << "one in " << fail_one_in;
    EXPECT_GT(stats.num_failed_swap_ins, 0);
    EXPECT_GT(stats.num_recomputed_tokens, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, FailedSwapInRunTest, testing::Bool(), [](const auto& tested) {
  return tested.param ? "Beams" : "Samples";
});

}  // namespace
}  // namespace quire
