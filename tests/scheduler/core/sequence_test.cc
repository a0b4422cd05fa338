#include "scheduler/core/sequence.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

Sequence RunningSequence(int32_t num_prompt_tokens) {
  Sequence sequence(0, num_prompt_tokens);
  sequence.BecomeRunning(3);
  return sequence;
}

void Compute(Sequence& sequence, int32_t num_tokens) {
  sequence.BeginSlice(num_tokens);
  sequence.EndSlice();
}

TEST(SequenceTest, StartsWaitingWithTheWholePromptToCompute) {
  Sequence sequence(2, 5);

  EXPECT_EQ(sequence.state(), SequenceState::kWaiting);
  EXPECT_EQ(sequence.sequence_index(), 2);
  EXPECT_EQ(sequence.num_tokens(), 5);
  EXPECT_EQ(sequence.gap(), 5);
}

TEST(SequenceTest, ASliceIsComputedWhenItIsAnswered) {
  Sequence sequence = RunningSequence(5);

  sequence.BeginSlice(3);
  EXPECT_EQ(sequence.num_computed_tokens(), 0);
  EXPECT_EQ(sequence.num_scheduled_tokens(), 3);

  sequence.EndSlice();
  EXPECT_EQ(sequence.num_computed_tokens(), 3);
  EXPECT_EQ(sequence.num_scheduled_tokens(), 0);
  EXPECT_EQ(sequence.gap(), 2);
}

TEST(SequenceTest, ACommittedTokenOpensAGapOfOne) {
  Sequence sequence = RunningSequence(2);
  Compute(sequence, 2);

  sequence.Commit(42);

  EXPECT_THAT(sequence.output_token_ids(), ElementsAre(42));
  EXPECT_EQ(sequence.num_output_tokens(), 1);
  EXPECT_EQ(sequence.gap(), 1);
}

TEST(SequenceTest, PreemptionKeepsTokensAndForgetsWhatWasComputed) {
  Sequence sequence = RunningSequence(2);
  Compute(sequence, 2);
  sequence.Commit(42);
  sequence.BeginSlice(1);

  sequence.BecomeWaiting();

  EXPECT_EQ(sequence.state(), SequenceState::kWaiting);
  EXPECT_EQ(sequence.num_tokens(), 3);
  EXPECT_EQ(sequence.gap(), 3);
  EXPECT_EQ(sequence.num_scheduled_tokens(), 0);
  EXPECT_EQ(sequence.num_tokens_computed_ever(), 2);
}

TEST(SequenceTest, FinishKeepsTheOutput) {
  Sequence sequence = RunningSequence(1);
  Compute(sequence, 1);
  sequence.Commit(9);

  sequence.BecomeFinished();

  EXPECT_TRUE(sequence.is_finished());
  EXPECT_EQ(sequence.num_output_tokens(), 1);
  EXPECT_EQ(sequence.num_computed_tokens(), 0);
}

TEST(SequenceTest, AWaitingSequenceMayFinish) {
  Sequence sequence(0, 1);

  sequence.BecomeFinished();

  EXPECT_TRUE(sequence.is_finished());
}

TEST(SequenceTest, RowsThatAreNotFiniteAreCountedInARow) {
  Sequence sequence = RunningSequence(1);
  Compute(sequence, 1);

  EXPECT_EQ(sequence.CountNonFinite(), 1);
  EXPECT_EQ(sequence.CountNonFinite(), 2);
  sequence.Commit(7);
  EXPECT_EQ(sequence.CountNonFinite(), 1);
}

TEST(SequenceTest, TheCountOfBadRowsSurvivesRecomputation) {
  Sequence sequence = RunningSequence(1);
  sequence.CountNonFinite();

  sequence.BecomeWaiting();
  sequence.BecomeRunning(1);

  EXPECT_EQ(sequence.CountNonFinite(), 2);
}

TEST(SequenceDeathTest, RefusesTransitionsThatDoNotExist) {
  Sequence waiting(0, 2);
  EXPECT_DEATH(waiting.BecomeWaiting(), "kRunning");
  EXPECT_DEATH(waiting.BeginSlice(1), "kRunning");
  EXPECT_DEATH(waiting.Commit(1), "kRunning");
  EXPECT_DEATH(waiting.EndSlice(), "num_scheduled_tokens_ > 0");
  EXPECT_DEATH(Sequence(0, 0), "num_prompt_tokens >= 1");

  Sequence running = RunningSequence(2);
  EXPECT_DEATH(running.BecomeRunning(1), "kWaiting");
  EXPECT_DEATH(running.Commit(1), "gap");

  Sequence finished(0, 2);
  finished.BecomeFinished();
  EXPECT_DEATH(finished.BecomeFinished(), "kFinished");
  EXPECT_DEATH(finished.BecomeRunning(1), "kWaiting");
}

TEST(SequenceDeathTest, RefusesSlicesPastTheGap) {
  Sequence sequence = RunningSequence(2);

  EXPECT_DEATH(sequence.BeginSlice(0), "num_tokens > 0");
  EXPECT_DEATH(sequence.BeginSlice(3), "gap");
  sequence.BeginSlice(1);
  EXPECT_DEATH(sequence.BeginSlice(1), "num_scheduled_tokens_");
}

}  // namespace
}  // namespace quire
