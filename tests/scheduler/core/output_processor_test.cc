#include "scheduler/core/output_processor.h"

#include <limits>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class OutputProcessorTest : public CoreFixture {
 protected:
  // The refusal must name the field, and nothing may have changed.
  void ExpectRefused(const StepResult& result, const char* message) {
    absl::Status status = CheckResult(state_, result);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "STEP_RESULT");
    EXPECT_THAT(status.ToString(), HasSubstr(message));
  }

  // The answer to the step, with the row_index-th row not finite.
  StepResult AnswerWithBadRow(TokenId token_id, size_t row_index) const {
    StepResult result = Answer(token_id);
    result.sampled.at(row_index).finite = false;
    return result;
  }

  static const TokenCommitted& Token(const OutputEvent& event) {
    return std::get<TokenCommitted>(event);
  }
  static const SequenceFinished& Finished(const OutputEvent& event) {
    return std::get<SequenceFinished>(event);
  }
};

TEST_F(OutputProcessorTest, CommitsTheSampledToken) {
  Add({.id = 3, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());
  StepResult result = Answer(42);
  result.sampled[0].logprob = -1.5F;
  result.sampled[0].top_logprobs = {{42, -1.5F}, {7, -2.0F}};

  Apply(result);

  auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(Token(events[0]).request_id, RequestId(3));
  EXPECT_EQ(Token(events[0]).token_index, 0);
  EXPECT_EQ(Token(events[0]).token_id, 42);
  EXPECT_EQ(Token(events[0]).logprob, -1.5F);
  EXPECT_THAT(Token(events[0]).top_logprobs, SizeIs(2));
  EXPECT_FALSE(state_.step.is_active);
  EXPECT_EQ(state_.counters.num_tokens_committed, 1);
  EXPECT_EQ(state_.counters.num_steps, 1);
}

TEST_F(OutputProcessorTest, AChunkThatDoesNotReachTheEndCommitsNothing) {
  Add({.id = 1, .prompt = 20});
  ASSERT_TRUE(Plan().has_value());

  Apply(Answer(42));

  EXPECT_THAT(TakeEvents(), IsEmpty());
  EXPECT_EQ(state_.counters.num_prompt_tokens_computed, 16);
}

TEST_F(OutputProcessorTest, EndsAtMaxTokens) {
  Add({.id = 1, .prompt = 1, .max_tokens = 2});

  Step();
  Step();

  auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(Finished(events[2]).reason, FinishReason::kLength);
  EXPECT_EQ(Finished(events[2]).num_output_tokens, 2);
  EXPECT_TRUE(Finished(events[2]).is_last_of_request);
  EXPECT_TRUE(state_.groups.empty());
  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 8);
}

TEST_F(OutputProcessorTest, EndsWhenTheContextIsFull) {
  Add({.id = 1, .prompt = 30, .max_tokens = 100});

  while (!state_.groups.empty()) {
    Step();
  }

  EXPECT_EQ(Finished(TakeEvents().back()).num_output_tokens, 2);
}

TEST_F(OutputProcessorTest, EndsAtAStopTokenAndCommitsIt) {
  Add({.id = 1, .prompt = 1, .stop_token_ids = {8, 9}});

  Step(9);

  auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(Token(events[0]).token_id, 9);
  EXPECT_EQ(Finished(events[1]).reason, FinishReason::kStop);
}

TEST_F(OutputProcessorTest, AStopTokenCountsOnlyBehindMinTokens) {
  Add({.id = 1, .prompt = 1, .min_tokens = 1, .stop_token_ids = {9}});

  Step(9);
  EXPECT_THAT(TakeEvents(), SizeIs(1));

  Step(9);
  EXPECT_EQ(Finished(TakeEvents().back()).reason, FinishReason::kStop);
}

TEST_F(OutputProcessorTest, SequencesOfOneRequestEndOnTheirOwn) {
  Add({.id = 1, .prompt = 1, .max_tokens = 4, .num_sequences = 2, .stop_token_ids = {9}});
  ASSERT_TRUE(Plan().has_value());
  StepResult result = Answer(5);
  result.sampled[1].token_id = 9;

  Apply(result);

  auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(Finished(events[2]).sequence_index, 1);
  EXPECT_FALSE(Finished(events[2]).is_last_of_request);
  EXPECT_THAT(Plan()->slices, SizeIs(1));
}

TEST_F(OutputProcessorTest, TokensOfASequenceThatEndedMeanwhileAreDropped) {
  SequenceGroup& group = Add({.id = 1, .prompt = 1});
  ASSERT_TRUE(Plan().has_value());
  state_.FinishGroup(group, FinishReason::kAborted);

  Apply(Answer(5));

  EXPECT_THAT(TakeEvents(), SizeIs(1));
  EXPECT_EQ(state_.counters.num_tokens_committed, 0);
  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 8);
}

TEST_F(OutputProcessorTest, WhatASequenceComputedThatEndedMeanwhileIsNotFound) {
  state_.config.prefix_caching = true;
  SequenceGroup& group = Add({.id = 1, .prompt = 10, .max_tokens = 4});
  Step();
  Step();
  ASSERT_EQ(state_.epoch->kv_cache.num_cached_blocks(), 2);
  ASSERT_TRUE(Plan().has_value());  // fills the third block
  ASSERT_EQ(state_.epoch->kv_cache.num_cached_blocks(), 3);

  state_.FinishGroup(group, FinishReason::kAborted);
  Apply(Answer(5));

  EXPECT_EQ(state_.epoch->kv_cache.num_cached_blocks(), 2);
}

TEST_F(OutputProcessorTest, ABadRowIsRecomputedOnce) {
  SequenceGroup& group = Add({.id = 1, .prompt = 5});
  ASSERT_TRUE(Plan().has_value());

  Apply(AnswerWithBadRow(5, 0));

  EXPECT_THAT(TakeEvents(), IsEmpty());
  EXPECT_FALSE(group.is_running());
  EXPECT_EQ(state_.counters.num_non_finite, 1);
  EXPECT_EQ(state_.counters.num_preemptions, 0);
  Step(6);
  EXPECT_EQ(Token(TakeEvents().at(0)).token_id, 6);
  EXPECT_EQ(state_.counters.num_recomputed_tokens, 5);
}

TEST_F(OutputProcessorTest, TokensOfThePromptAndRecomputedOnesAreCounted) {
  SequenceGroup& group = Add({.id = 1, .prompt = 5, .max_tokens = 4});
  Step();
  Step();
  EXPECT_EQ(state_.counters.num_prompt_tokens_computed, 5);
  EXPECT_EQ(state_.counters.num_recomputed_tokens, 0);
  state_.ReturnToWaiting(group);

  Step();  // the prompt, a token that was computed, and one that was not

  EXPECT_EQ(state_.counters.num_prompt_tokens_computed, 5 + 5);
  EXPECT_EQ(state_.counters.num_recomputed_tokens, 6);
}

TEST_F(OutputProcessorTest, TheSecondBadRowForOneTokenEndsTheSequence) {
  Add({.id = 1, .prompt = 5});
  ASSERT_TRUE(Plan().has_value());
  Apply(AnswerWithBadRow(5, 0));
  ASSERT_TRUE(Plan().has_value());

  Apply(AnswerWithBadRow(5, 0));

  auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(Finished(events[0]).reason, FinishReason::kNonFinite);
}

TEST_F(OutputProcessorTest, BadRowsForDifferentTokensAreForgiven) {
  Add({.id = 1, .prompt = 2, .max_tokens = 4});
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(Plan().has_value());
    Apply(AnswerWithBadRow(5, 0));
    Step();
  }

  EXPECT_THAT(TakeEvents(), SizeIs(3));
  EXPECT_EQ(state_.counters.num_non_finite, 3);
}

// The other sequence of the group commits its token before the group is recomputed.
TEST_F(OutputProcessorTest, ABadRowCostsItsNeighboursNoToken) {
  Add({.id = 1, .prompt = 2, .max_tokens = 4, .num_sequences = 2});
  Step();
  TakeEvents();
  ASSERT_TRUE(Plan().has_value());

  Apply(AnswerWithBadRow(5, 0));  // of the fork, which comes first

  auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(Token(events[0]).sequence_index, 0);
}

TEST_F(OutputProcessorTest, TwoBadRowsOfOneGroupRecomputeItOnce) {
  SequenceGroup& group = Add({.id = 1, .prompt = 2, .max_tokens = 4, .num_sequences = 2});
  Step();  // the second sequence forks
  ASSERT_TRUE(Plan().has_value());
  StepResult result = AnswerWithBadRow(5, 0);
  result.sampled[1].finite = false;

  Apply(result);

  EXPECT_FALSE(group.is_running());
  EXPECT_EQ(state_.waiting.size(), 1);
}

TEST_F(OutputProcessorTest, TheTokenOfABadRowIsNotLookedAt) {
  Add({.id = 1, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());
  StepResult result = AnswerWithBadRow(-7, 0);

  EXPECT_TRUE(CheckResult(state_, result).ok());
}

TEST_F(OutputProcessorTest, ALogprobThatIsNotFiniteIsTreatedLikeItsRow) {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const auto infinity = std::numeric_limits<float>::infinity();
  Request request = MakeRequest({.id = 1, .prompt = 1, .max_tokens = 4});
  request.sampling.num_logprobs = 1;
  state_.Add(request);
  ASSERT_TRUE(Plan().has_value());
  StepResult bad_token = Answer(5);
  bad_token.sampled[0].logprob = nan;
  bad_token.sampled[0].top_logprobs = {{5, -1.0F}};
  ASSERT_TRUE(CheckResult(state_, bad_token).ok());

  Apply(bad_token);
  EXPECT_THAT(TakeEvents(), IsEmpty()) << "it is computed again";
  ASSERT_TRUE(Plan().has_value());
  StepResult bad_top = Answer(5);
  bad_top.sampled[0].top_logprobs = {{5, -infinity}};
  Apply(bad_top);

  const auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(Finished(events[0]).reason, FinishReason::kNonFinite);
  EXPECT_EQ(state_.counters.num_non_finite, 2);
}

TEST_F(OutputProcessorTest, ALogprobThatNobodyAskedForMayBeAnything) {
  Add({.id = 1, .prompt = 1, .max_tokens = 4});
  ASSERT_TRUE(Plan().has_value());
  StepResult result = Answer(5);
  result.sampled[0].logprob = std::numeric_limits<float>::quiet_NaN();

  Apply(result);

  EXPECT_THAT(TakeEvents(), SizeIs(1));
}

TEST_F(OutputProcessorTest, RefusesAnAnswerWhenNothingWasAsked) {
  ExpectRefused(StepResult{}, "no step is waiting for a result");
}

TEST_F(OutputProcessorTest, RefusesAnAnswerToAnotherStep) {
  Add({.id = 1, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());

  for (int32_t field = 0; field < 3; ++field) {
    StepResult result = Answer(5);
    uint64_t* fields[] = {
        &result.header.scheduler_incarnation, &result.header.group_epoch, &result.header.step_id};
    ++*fields[field];
    ExpectRefused(result, "header: must match the step that was sent");
  }
}

TEST_F(OutputProcessorTest, RefusesAnAnswerToAnotherPlan) {
  Add({.id = 1, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());
  StepResult result = Answer(5);

  ++result.plan_digest;

  ExpectRefused(result, "plan_digest");
}

TEST_F(OutputProcessorTest, RefusesTooFewOrTooManyTokens) {
  Add({.id = 1, .prompt = 2});
  Add({.id = 2, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());

  StepResult result = Answer(5);
  result.sampled.pop_back();
  ExpectRefused(result, "got 1, expected 2");

  result = Answer(5);
  result.sampled.push_back(result.sampled[0]);
  ExpectRefused(result, "got 3, expected 2");
}

TEST_F(OutputProcessorTest, RefusesTokensInAnotherOrder) {
  Add({.id = 1, .prompt = 2});
  Add({.id = 2, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());
  StepResult result = Answer(5);

  std::swap(result.sampled[0], result.sampled[1]);

  ExpectRefused(result, "sampled.handle");
}

TEST_F(OutputProcessorTest, RefusesTokensOutsideTheVocabulary) {
  Add({.id = 1, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());

  for (TokenId token_id : {-1, 1000, std::numeric_limits<TokenId>::max()}) {
    ExpectRefused(Answer(token_id), "sampled.token_id");
  }
  EXPECT_TRUE(CheckResult(state_, Answer(999)).ok());
}

TEST_F(OutputProcessorTest, RefusesLogprobsOutsideTheVocabulary) {
  Add({.id = 1, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());

  StepResult result = Answer(5);
  result.sampled[0].top_logprobs = {{1000, 0.0F}};
  ExpectRefused(result, "sampled.top_logprobs: token id");

  result.sampled[0].top_logprobs.assign(kMaxLogprobs + 1, {5, 0.0F});
  ExpectRefused(result, "sampled.top_logprobs: too many");
}

TEST_F(OutputProcessorTest, ARefusedAnswerCanBeFollowedByTheRightOne) {
  Add({.id = 1, .prompt = 2});
  ASSERT_TRUE(Plan().has_value());
  ExpectRefused(Answer(-1), "sampled.token_id");

  Apply(Answer(5));

  EXPECT_THAT(TakeEvents(), SizeIs(1));
}

}  // namespace
}  // namespace quire
