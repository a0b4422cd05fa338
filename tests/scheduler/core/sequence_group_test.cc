#include "scheduler/core/sequence_group.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/requests.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

TEST(SequenceGroupTest, HasASequenceForEachOutputAskedFor) {
  SequenceGroup group(MakeRequest({.id = 7, .prompt = 3, .num_sequences = 2}));

  ASSERT_EQ(group.sequences().size(), 2U);
  EXPECT_EQ(group.sequences()[1].sequence_index(), 1);
  EXPECT_EQ(group.sequences()[1].num_prompt_tokens(), 3);
  EXPECT_EQ(group.id(), RequestId(7));
  EXPECT_EQ(group.num_live_sequences(), 2);
  EXPECT_FALSE(group.is_running());
  EXPECT_FALSE(group.has_started());
}

TEST(SequenceGroupTest, IsFinishedWithItsLastSequence) {
  SequenceGroup group(MakeRequest({.num_sequences = 2}));

  group.sequences()[1].BecomeFinished();
  EXPECT_EQ(group.num_live_sequences(), 1);
  EXPECT_FALSE(group.is_finished());

  group.sequences()[0].BecomeFinished();
  EXPECT_TRUE(group.is_finished());
}

TEST(SequenceGroupTest, HasStartedOnceATokenWasComputed) {
  SequenceGroup group(MakeRequest({.prompt = 2, .num_sequences = 2}));
  Sequence& sequence = group.sequences()[1];

  sequence.BecomeRunning(0);
  EXPECT_TRUE(group.is_running());
  EXPECT_FALSE(group.has_started());

  sequence.BeginSlice(1);
  sequence.EndSlice();
  sequence.BecomeWaiting();
  EXPECT_FALSE(group.is_running());
  EXPECT_TRUE(group.has_started());
}

TEST(SequenceGroupTest, TokenIdsArePromptThenOutput) {
  Request request = MakeRequest({.prompt = 2});
  request.prompt_token_ids = {10, 11};
  SequenceGroup group(request);
  Sequence& sequence = group.sequences()[0];
  sequence.BecomeRunning(0);
  sequence.BeginSlice(2);
  sequence.EndSlice();

  sequence.Commit(12);

  EXPECT_THAT(group.TokenIdsOf(sequence), ElementsAre(10, 11, 12));
}

TEST(SequenceGroupDeathTest, RefusesARequestWithoutOutputsOrPrompt) {
  EXPECT_DEATH(SequenceGroup(MakeRequest({.num_sequences = 0})), "num_sequences >= 1");
  EXPECT_DEATH(SequenceGroup(MakeRequest({.prompt = 0})), "num_prompt_tokens >= 1");
}

TEST(SequenceGroupTest, AResumedRequestBeginsWithItsTokens) {
  Request request = MakeRequest({.prompt = 2, .num_sequences = 3});
  request.resumed = {
      {.token_ids = {7, 8}}, {.token_ids = {}}, {.token_ids = {9}, .has_ended = true}};

  SequenceGroup group(request);

  EXPECT_THAT(group.sequences()[0].output_token_ids(), ElementsAre(7, 8));
  EXPECT_EQ(group.sequences()[0].num_tokens(), 4);
  EXPECT_EQ(group.sequences()[0].gap(), 4);
  EXPECT_EQ(group.sequences()[1].num_output_tokens(), 0);
  EXPECT_TRUE(group.sequences()[2].is_finished());
  EXPECT_EQ(group.num_live_sequences(), 2);
  EXPECT_FALSE(group.has_started());
}

}  // namespace
}  // namespace quire
