#include "scheduler/core/step_planner.h"

#include <optional>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using StepPlannerTest = CoreFixture;

TEST_F(StepPlannerTest, HasNoPlanWithoutRequests) {
  EXPECT_EQ(Plan(), std::nullopt);
  EXPECT_FALSE(state_.step.is_active);
  EXPECT_EQ(state_.epoch->last_step_id, 0U);
}

TEST_F(StepPlannerTest, NumbersTheStepsOfItsEpoch) {
  Add({.id = 1, .prompt = 1});

  EXPECT_EQ(Plan()->header, (StepHeader{1, 1, 1}));
  Apply(Answer(5));
  EXPECT_EQ(Plan()->header, (StepHeader{1, 1, 2}));
}

TEST_F(StepPlannerTest, IntroducesASequenceWithAllThatDecidesItsTokens) {
  SequenceGroup& group = Add({.id = 9, .prompt = 3, .min_tokens = 2});

  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->introductions, SizeIs(1));
  EXPECT_EQ(plan->introductions[0].token_ids, group.request().prompt_token_ids);
  EXPECT_EQ(plan->introductions[0].num_prompt_tokens, 3);
  EXPECT_EQ(plan->introductions[0].num_computed_tokens, 0);
  EXPECT_THAT(plan->introductions[0].block_ids, IsEmpty());
  EXPECT_EQ(plan->introductions[0].sampling, group.request().sampling);
  ASSERT_THAT(plan->slices, SizeIs(1));
  EXPECT_EQ(plan->slices[0].handle, plan->introductions[0].handle);
}

TEST_F(StepPlannerTest, IntroducesASequenceOnce) {
  Add({.id = 1, .prompt = 3});
  Step();

  std::optional<StepPlan> plan = Plan();

  EXPECT_THAT(plan->introductions, IsEmpty());
  ASSERT_THAT(plan->slices, SizeIs(1));
  EXPECT_EQ(plan->slices[0].num_tokens, 1);
}

TEST_F(StepPlannerTest, CutsAPromptToTheBudget) {
  Add({.id = 1, .prompt = 20});

  std::optional<StepPlan> plan = Plan();

  EXPECT_EQ(plan->slices[0].num_tokens, 16);
  EXPECT_THAT(plan->slices[0].new_block_ids, ElementsAre(1, 2, 3, 4));
  EXPECT_FALSE(state_.step.slices[0].samples);
  EXPECT_EQ(state_.step.num_sampled, 0U);
  Apply(Answer(5));
  EXPECT_EQ(Plan()->slices[0].num_tokens, 4);
  EXPECT_EQ(state_.step.num_sampled, 1U);
}

TEST_F(StepPlannerTest, RunningGroupsComeBeforeWaitingOnes) {
  Add({.id = 1, .prompt = 3});
  Step();
  Add({.id = 2, .prompt = 20});

  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->slices, SizeIs(2));
  EXPECT_EQ(plan->slices[0].num_tokens, 1);
  EXPECT_EQ(plan->slices[1].num_tokens, 15);
}

TEST_F(StepPlannerTest, NobodyIsAdmittedOnASpentBudget) {
  Add({.id = 1, .prompt = 16});
  Add({.id = 2, .prompt = 1});

  EXPECT_THAT(Plan()->introductions, SizeIs(1));
}

// Request 1 holds four of the six blocks that it was admitted for. The planner must keep the other
// two for it.
TEST_F(StepPlannerTest, BlocksThatALongPromptWasAdmittedForAreNotGivenAway) {
  Add({.id = 1, .prompt = 24, .max_tokens = 1});
  Add({.id = 2, .prompt = 12, .max_tokens = 1});
  Step();

  std::optional<StepPlan> plan = Plan();

  EXPECT_THAT(plan->introductions, IsEmpty());
  EXPECT_THAT(plan->slices, SizeIs(1));
}

// A preempted request never fits beside the one that took its blocks. So the rule shows only if an
// older request waits: request 1, whose row was not finite.
TEST_F(StepPlannerTest, NothingIsAdmittedInAStepThatPreempted) {
  BeginEpoch({.num_blocks = 6,
              .block_size_tokens = 4,
              .max_sequences = 5,
              .max_tokens_per_step = 64,
              .max_model_len = 32,
              .vocab_size = 1000});
  Add({.id = 1, .prompt = 3, .max_tokens = 4});
  Add({.id = 2, .prompt = 4, .max_tokens = 4, .num_sequences = 2});
  Add({.id = 3, .prompt = 12, .max_tokens = 4});
  ASSERT_TRUE(Plan().has_value());
  StepResult result = Answer(5);
  result.sampled[0].finite = false;
  Apply(result);

  std::optional<StepPlan> plan = Plan();

  // Request 2 needed two blocks and one was free. The preemption of request 3 freed three, so two
  // are free again.
  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 2);
  EXPECT_EQ(state_.counters.num_preemptions, 1);
  ASSERT_THAT(plan->introductions, SizeIs(1)) << "a fork of request 2";
  EXPECT_EQ(plan->introductions[0].sequence_index, 1);
  EXPECT_THAT(plan->slices, SizeIs(2));
}

TEST_F(StepPlannerTest, NothingIsAdmittedPastAGroupThatFoundNoRoom) {
  BeginEpoch({.num_blocks = 5,
              .block_size_tokens = 4,
              .max_sequences = 4,
              .max_tokens_per_step = 64,
              .max_model_len = 32,
              .vocab_size = 1000});
  Add({.id = 1, .prompt = 5, .max_tokens = 4});
  Add({.id = 2, .prompt = 4, .max_tokens = 4, .num_sequences = 2});
  Step();
  Add({.id = 3, .prompt = 1, .max_tokens = 1});

  std::optional<StepPlan> plan = Plan();

  // Request 2 needs two blocks and one is free. Request 3 must not take it.
  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 1);
  EXPECT_THAT(plan->introductions, IsEmpty());
  EXPECT_THAT(plan->slices, SizeIs(1));
  EXPECT_THAT(plan->releases, IsEmpty());
}

TEST_F(StepPlannerTest, AHandleIsReleasedInTheNextPlanAndReusedAfterThat) {
  Add({.id = 1, .prompt = 1, .max_tokens = 1});
  Step();
  Add({.id = 2, .prompt = 1, .max_tokens = 5});

  std::optional<StepPlan> plan = Plan();

  EXPECT_THAT(plan->releases, ElementsAre(0));
  EXPECT_EQ(plan->introductions.at(0).handle, 1U);
  Apply(Answer(5));
  Add({.id = 3, .prompt = 1, .max_tokens = 1});
  Add({.id = 4, .prompt = 1, .max_tokens = 1});

  plan = Plan();

  EXPECT_EQ(plan->introductions.at(0).handle, 2U) << "the next one before and after the release";
  EXPECT_EQ(plan->introductions.at(1).handle, 0U);
}

TEST_F(StepPlannerTest, ReleasesAloneAreKeptWhileNobodyWaits) {
  Add({.id = 1, .prompt = 1, .max_tokens = 1});
  Step();

  EXPECT_EQ(Plan(), std::nullopt);
  EXPECT_EQ(state_.epoch->handles.num_to_release(), 1);
  EXPECT_EQ(state_.epoch->last_step_id, 1U);
}

TEST_F(StepPlannerTest, ReleasesAloneAreSentWhenSomebodyWaitsForThem) {
  Add({.id = 1, .prompt = 1, .max_tokens = 1, .num_sequences = 4});
  Step();
  Add({.id = 2, .prompt = 1, .max_tokens = 1});

  std::optional<StepPlan> plan = Plan();

  EXPECT_THAT(plan->slices, IsEmpty());
  EXPECT_THAT(plan->releases, ElementsAre(0, 1, 2, 3));
  Apply(Answer(5));
  EXPECT_THAT(Plan()->introductions, SizeIs(1));
}

TEST_F(StepPlannerTest, TheDigestIsThatOfTheWholePlan) {
  Add({.id = 1, .prompt = 1, .max_tokens = 1});

  std::optional<StepPlan> plan = Plan();

  EXPECT_EQ(state_.step.plan_digest, DigestOf(*plan));
}

// Admission refuses such a group earlier; the planner does not rely on it.
TEST_F(StepPlannerTest, AGroupThatCanNeverFitEndsInsteadOfBlockingTheQueue) {
  Add({.id = 1, .prompt = 33, .max_tokens = 1});
  Add({.id = 2, .prompt = 1, .max_tokens = 1});

  std::optional<StepPlan> plan = Plan();

  EXPECT_THAT(plan->introductions, SizeIs(1));
  auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(std::get<SequenceFinished>(events[0]).reason, FinishReason::kNoCapacity);
}

using StepPlannerDeathTest = CoreFixture;

TEST_F(StepPlannerDeathTest, RefusesASecondPlan) {
  Add({.id = 1, .prompt = 1});
  ASSERT_TRUE(Plan().has_value());

  EXPECT_DEATH(Plan(), "is_active");
}

// A group of 12 tokens was computed and preempted, in the mode that chooses the cheapest way.
class SlicedRecomputeTest : public CoreFixture {
 protected:
  SlicedRecomputeTest() {
    state_.config.preemption_mode = PreemptionMode::kAuto;
    Add({.id = 1, .prompt = 12});
    Step();
    state_.ReturnToWaiting(*state_.Find(RequestId(1)));
  }

  void Learn(int64_t num_tokens, double micros) {
    state_.epoch->preemption_cost.ObserveStep({.num_tokens = num_tokens, .micros = micros});
  }
};

TEST_F(SlicedRecomputeTest, TakesASixteenthWhereNothingIsSpare) {
  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->slices, SizeIs(1));
  EXPECT_EQ(plan->slices[0].num_tokens, 1);
  EXPECT_FALSE(state_.step.slices[0].samples);
}

TEST_F(SlicedRecomputeTest, TakesWhatAStepHasToSpare) {
  for (int i = 0; i < 100; ++i) {
    Learn(1, 1000);
    Learn(8, 1000);
  }

  EXPECT_EQ(Plan()->slices[0].num_tokens, 8);
  Apply(Answer(5));
  EXPECT_EQ(Plan()->slices[0].num_tokens, 13 - 8) << "the last slice ends with the new token";
}

TEST_F(SlicedRecomputeTest, BlocksThatItWillTakeAreNotGivenAway) {
  Add({.id = 2, .prompt = 17});
  ASSERT_THAT(Plan()->slices, SizeIs(1)) << "4 of 8 blocks are for group 1, group 2 needs 5";
  Apply(Answer(5));

  Add({.id = 3, .prompt = 1});

  EXPECT_THAT(Plan()->slices, SizeIs(1)) << "nobody overtakes";
}

TEST_F(SlicedRecomputeTest, GroupsOfSeveralSequencesAreComputedAtOnce) {
  state_.FinishGroup(*state_.Find(RequestId(1)), FinishReason::kAborted);
  Add({.id = 2, .prompt = 9, .max_tokens = 3, .num_sequences = 2});
  Step();
  Step();
  state_.ReturnToWaiting(*state_.Find(RequestId(2)));
  BlockTable other;  // takes all blocks, so that the group does not find its own again
  ASSERT_TRUE(state_.epoch->kv_cache.Append(other, 32).has_value());
  state_.epoch->kv_cache.Free(other);

  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->slices, SizeIs(2));
  EXPECT_EQ(plan->slices[0].num_tokens, 11);
  EXPECT_EQ(plan->introductions[1].num_computed_tokens, 8);
}

// Blocks of 4 tokens. Every prompt begins like the prompt of request 1, as far as it is long.
class PrefixPlannerTest : public CoreFixture {
 protected:
  PrefixPlannerTest() { state_.config.prefix_caching = true; }

  SequenceGroup& AddLikeFirst(const RequestSpec& spec, const Request& request = {}) {
    const Request like = MakeRequest({.id = 1, .prompt = spec.prompt});
    Request made = MakeRequest(spec);
    made.prompt_token_ids = like.prompt_token_ids;
    made.cache_salt = request.cache_salt;
    made.bypasses_prefix_cache = request.bypasses_prefix_cache;
    state_.Add(std::move(made));
    return *state_.Find(RequestId(spec.id));
  }
};

TEST_F(PrefixPlannerTest, BeginsWithTheFullBlocksOfAnother) {
  Add({.id = 1, .prompt = 10});
  Step();
  AddLikeFirst({.id = 2, .prompt = 10});

  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->introductions, SizeIs(1));
  EXPECT_EQ(plan->introductions[0].num_computed_tokens, 8);
  EXPECT_THAT(plan->introductions[0].block_ids, ElementsAre(1, 2));
  ASSERT_THAT(plan->slices, SizeIs(2));
  EXPECT_EQ(plan->slices[1].num_tokens, 2);
  EXPECT_THAT(plan->slices[1].new_block_ids, SizeIs(1));
  EXPECT_EQ(state_.counters.num_prefix_queried_tokens, 20);
  EXPECT_EQ(state_.counters.num_prefix_hit_tokens, 8);
}

// The last token's logits are needed, and no cache has them.
TEST_F(PrefixPlannerTest, ComputesTheLastTokenWhateverIsCached) {
  Add({.id = 1, .prompt = 8});
  Step();
  AddLikeFirst({.id = 2, .prompt = 8});

  std::optional<StepPlan> plan = Plan();

  EXPECT_EQ(plan->introductions[0].num_computed_tokens, 4);
  EXPECT_EQ(plan->slices[1].num_tokens, 4);
}

TEST_F(PrefixPlannerTest, RequestsOfOneStepShare) {
  Add({.id = 1, .prompt = 9});
  AddLikeFirst({.id = 2, .prompt = 9});

  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->slices, SizeIs(2));
  EXPECT_EQ(plan->slices[0].num_tokens, 9);
  EXPECT_EQ(plan->introductions[1].num_computed_tokens, 8);
  EXPECT_EQ(plan->slices[1].num_tokens, 1);
  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 8 - 3 - 1);
}

// Holds with and without a prefix cache. Blocks have 4 tokens. Eight of the eleven tokens before
// the last are in full blocks, which are shared. The other three are in a block that the fork
// copies.
TEST_F(StepPlannerTest, SequencesOfOneRequestForkFromTheFirst) {
  Add({.id = 1, .prompt = 12, .max_tokens = 3, .num_sequences = 2});

  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->slices, SizeIs(1));
  EXPECT_EQ(plan->slices[0].num_tokens, 12);
  Apply(Answer(5));

  plan = Plan();

  ASSERT_THAT(plan->introductions, SizeIs(1));
  EXPECT_EQ(plan->introductions[0].sequence_index, 1);
  EXPECT_EQ(plan->introductions[0].num_computed_tokens, 11);
  EXPECT_THAT(plan->copies, ElementsAre(BlockCopy{.src = 3, .dst = 4}));
  EXPECT_THAT(plan->introductions[0].block_ids, ElementsAre(1, 2, 4));
  ASSERT_THAT(plan->slices, SizeIs(2));
  EXPECT_EQ(plan->slices[0].num_tokens, 1);
  EXPECT_EQ(plan->slices[0].handle, plan->introductions[0].handle);
  EXPECT_EQ(state_.counters.num_blocks_copied, 1);
}

TEST_F(StepPlannerTest, AForkNeedsNoCopyWhereABlockEnds) {
  Add({.id = 1, .prompt = 9, .max_tokens = 3, .num_sequences = 2});
  Step();

  std::optional<StepPlan> plan = Plan();

  EXPECT_THAT(plan->copies, IsEmpty());
  EXPECT_THAT(plan->introductions[0].block_ids, ElementsAre(1, 2));
  EXPECT_THAT(plan->slices[0].new_block_ids, SizeIs(1));
}

// The first sequence has ended when the last one forks, so only the forks share its blocks.
TEST_F(StepPlannerTest, ForksOutliveTheSequenceTheyForkFrom) {
  Add({.id = 1, .prompt = 6, .max_tokens = 1, .num_sequences = 3});
  Step();
  ASSERT_THAT(TakeEvents(), SizeIs(2)) << "a token and the end of the first";

  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->slices, SizeIs(2));
  EXPECT_EQ(plan->slices[0].num_tokens, 1);
  EXPECT_THAT(plan->copies, SizeIs(1)) << "the last one keeps the block";
}

TEST_F(StepPlannerTest, TheLastForkNeedsNoRoomForACopy) {
  Add({.id = 1, .prompt = 6, .max_tokens = 1, .num_sequences = 3});
  Step();  // the first has ended, two are to write to its last block
  KvCacheManager& kv_cache = state_.epoch->kv_cache;
  BlockTable others;  // all blocks but one
  ASSERT_TRUE(kv_cache.Append(others, (kv_cache.num_free_blocks() - 1) * 4).has_value());

  std::optional<StepPlan> plan = Plan();

  kv_cache.Free(others);
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(plan->slices, SizeIs(2));
}

TEST_F(PrefixPlannerTest, OtherSaltsShareNothing) {
  Add({.id = 1, .prompt = 10});
  Step();
  AddLikeFirst({.id = 2, .prompt = 10}, {.cache_salt = "other"});
  EXPECT_EQ(Plan()->introductions[0].num_computed_tokens, 0);
}

TEST_F(PrefixPlannerTest, WhoBypassesTheCacheNeitherTakesNorLeavesBlocks) {
  AddLikeFirst({.id = 1, .prompt = 10}, {.bypasses_prefix_cache = true});
  Step();
  EXPECT_EQ(state_.epoch->kv_cache.num_cached_blocks(), 0);
  AddLikeFirst({.id = 2, .prompt = 10});
  Step();
  EXPECT_EQ(state_.epoch->kv_cache.num_cached_blocks(), 2);
  AddLikeFirst({.id = 3, .prompt = 5}, {.bypasses_prefix_cache = true});
  EXPECT_EQ(Plan()->introductions[0].num_computed_tokens, 0);
}

TEST_F(PrefixPlannerTest, OutputIsFoundToo) {
  Add({.id = 1, .prompt = 3, .max_tokens = 2});
  Step(7);
  Step(8);  // ends; tokens 0 to 3 are computed, the fourth is the first of the output
  Request again = MakeRequest({.id = 2, .prompt = 3});
  again.prompt_token_ids = MakeRequest({.id = 1, .prompt = 3}).prompt_token_ids;
  again.prompt_token_ids.insert(again.prompt_token_ids.end(), {7, 8});
  state_.Add(again);
  EXPECT_EQ(Plan()->introductions[0].num_computed_tokens, 4);
}

// Blocks that other requests hold need not be free. Four blocks are free; the second request is
// three blocks long, and two of them are cached.
TEST_F(PrefixPlannerTest, SharedBlocksCountOnceForAdmission) {
  BeginEpoch({.num_blocks = 6,
              .block_size_tokens = 4,
              .max_sequences = 4,
              .max_tokens_per_step = 64,
              .max_model_len = 32,
              .vocab_size = 1000});
  Add({.id = 1, .prompt = 12, .max_tokens = 4});
  Step();
  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 2);
  AddLikeFirst({.id = 2, .prompt = 11, .max_tokens = 1});

  std::optional<StepPlan> plan = Plan();

  ASSERT_THAT(plan->introductions, SizeIs(1));
  EXPECT_EQ(plan->introductions[0].num_computed_tokens, 8);
}

TEST_F(PrefixPlannerTest, NobodyBuildsOnRowsThatWereNotFinite) {
  Add({.id = 1, .prompt = 10});
  ASSERT_TRUE(Plan().has_value());
  EXPECT_EQ(state_.epoch->kv_cache.num_cached_blocks(), 2);
  StepResult result = Answer(5);
  result.sampled[0].finite = false;
  Apply(result);
  EXPECT_EQ(state_.epoch->kv_cache.num_cached_blocks(), 0);
}

TEST_F(PrefixPlannerTest, APreemptedGroupFindsItsBlocksAgain) {
  SequenceGroup& group = Add({.id = 1, .prompt = 10});
  Step();
  state_.ReturnToWaiting(group);
  std::optional<StepPlan> plan = Plan();
  EXPECT_EQ(plan->introductions[0].num_computed_tokens, 8);
  EXPECT_EQ(plan->slices[0].num_tokens, 3);
}

}  // namespace
}  // namespace quire
