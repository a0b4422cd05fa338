#include "scheduler/core/core_state.h"

#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

using CoreStateTest = CoreFixture;

TEST_F(CoreStateTest, FindsLiveGroupsOnly) {
  SequenceGroup& group = Add({.id = 4});

  EXPECT_EQ(state_.Find(RequestId(4)), &group);
  EXPECT_EQ(state_.Find(RequestId(5)), nullptr);
  state_.FinishGroup(group, FinishReason::kAborted);
  EXPECT_EQ(state_.Find(RequestId(4)), nullptr);
}

TEST_F(CoreStateTest, AGroupThatStartsHasAHandleForEachLiveSequence) {
  SequenceGroup& group = Add({.id = 1, .max_tokens = 4, .num_sequences = 3});
  state_.FinishSequence(group, group.sequences()[1], FinishReason::kStop);

  state_.StartFirstWaiting();

  EXPECT_EQ(state_.epoch->handles.num_in_use(), 2);
  EXPECT_THAT(state_.running, SizeIs(1));
  EXPECT_TRUE(state_.waiting.empty());
}

TEST_F(CoreStateTest, AnOlderGroupThatStartsLaterIsOlderStill) {
  SequenceGroup& one = Add({.id = 1});
  SequenceGroup& two = Add({.id = 2});
  state_.StartFirstWaiting();
  state_.StartFirstWaiting();
  Step();

  state_.ReturnToWaiting(one);
  state_.StartFirstWaiting();

  EXPECT_EQ(state_.running.front(), &one);
  EXPECT_EQ(state_.running.back(), &two);
}

TEST_F(CoreStateTest, ReturningGivesBackBlocksAndHandles) {
  SequenceGroup& group = Add({.id = 1, .prompt = 6, .max_tokens = 4, .num_sequences = 2});
  Step();
  Step();  // the second sequence shares the first block and has a copy of the second
  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 5);

  state_.ReturnToWaiting(group);

  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 8);
  EXPECT_EQ(state_.epoch->handles.num_to_release(), 2);
  EXPECT_EQ(&state_.waiting.front(), &group);
}

TEST_F(CoreStateTest, FinishingOneSequenceLeavesItsSiblings) {
  SequenceGroup& group = Add({.id = 1, .prompt = 6, .max_tokens = 4, .num_sequences = 2});
  Step();

  state_.FinishSequence(group, group.sequences()[0], FinishReason::kStop);

  EXPECT_EQ(state_.epoch->kv_cache.num_free_blocks(), 6);
  EXPECT_TRUE(group.is_running());
  EXPECT_EQ(group.num_live_sequences(), 1);
}

TEST_F(CoreStateTest, AGroupThatEndsDuringAStepOutlivesIt) {
  SequenceGroup& group = Add({.id = 1});
  ASSERT_TRUE(Plan().has_value());

  state_.FinishGroup(group, FinishReason::kAborted);

  EXPECT_THAT(state_.step.departed, SizeIs(1));
  EXPECT_TRUE(group.is_finished());
  Apply(Answer(5));
  EXPECT_THAT(state_.step.departed, IsEmpty());
}

TEST_F(CoreStateTest, LostWorkersTakeEverythingOfTheirEpochAlong) {
  Add({.id = 1, .prompt = 3});
  Add({.id = 2, .prompt = 3});
  Step();
  SequenceGroup& late = Add({.id = 3, .prompt = 3});
  ASSERT_TRUE(Plan().has_value());
  state_.FinishGroup(*state_.Find(RequestId(2)), FinishReason::kAborted);

  state_.LoseWorkers();

  EXPECT_FALSE(state_.epoch.has_value());
  EXPECT_FALSE(state_.step.is_active);
  EXPECT_THAT(state_.running, IsEmpty());
  EXPECT_EQ(state_.waiting.size(), 2);
  EXPECT_EQ(state_.waiting.front().id(), RequestId(1));
  EXPECT_EQ(state_.waiting.groups().back(), &late);
  EXPECT_EQ(state_.Find(RequestId(1))->sequences()[0].num_output_tokens(), 1);
}

TEST_F(CoreStateTest, EverySequenceOfAGroupSaysItsEnd) {
  SequenceGroup& group = Add({.id = 1, .max_tokens = 4, .num_sequences = 3});
  state_.FinishSequence(group, group.sequences()[1], FinishReason::kStop);

  state_.FinishGroup(group, FinishReason::kAborted);

  auto events = TakeEvents();
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_FALSE(std::get<SequenceFinished>(events[1]).is_last_of_request);
  EXPECT_TRUE(std::get<SequenceFinished>(events[2]).is_last_of_request);
  EXPECT_EQ(std::get<SequenceFinished>(events[2]).sequence_index, 2);
  EXPECT_EQ(state_.counters.num_requests_finished, 1);
}

}  // namespace
}  // namespace quire
