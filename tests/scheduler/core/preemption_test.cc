#include "scheduler/core/preemption.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

// Three groups run: 2, 3 (two sequences, which share a block) and 1 blocks; one of the seven is
// free.
class PreemptionTest : public CoreFixture {
 protected:
  PreemptionTest() {
    StepLimits limits = limits_;
    limits.num_blocks = 8;
    BeginEpoch(limits);
    Add({.id = 1, .prompt = 5});
    Add({.id = 2, .prompt = 5, .max_tokens = 3, .num_sequences = 2});
    Add({.id = 3, .prompt = 1});
    Step();
    Step();
  }

  SequenceGroup& Group(uint64_t id) { return *state_.Find(RequestId(id)); }
  int32_t num_free() const { return state_.epoch->kv_cache.num_free_blocks(); }
};

TEST_F(PreemptionTest, TakesNothingWhileThereIsRoom) {
  EXPECT_EQ(MakeRoom(state_, Group(1), 1), RoomOutcome::kHadRoom);

  EXPECT_EQ(state_.running.size(), 3U);
  EXPECT_EQ(state_.counters.num_preemptions, 0);
}

TEST_F(PreemptionTest, TakesTheNewestFirst) {
  EXPECT_EQ(MakeRoom(state_, Group(1), 2), RoomOutcome::kPreempted);

  EXPECT_FALSE(Group(3).is_running());
  EXPECT_TRUE(Group(2).is_running());
  EXPECT_EQ(num_free(), 2);
  EXPECT_EQ(&state_.waiting.front(), &Group(3));
}

TEST_F(PreemptionTest, TakesWholeGroupsUntilThereIsRoom) {
  EXPECT_EQ(MakeRoom(state_, Group(1), 3), RoomOutcome::kPreempted);

  EXPECT_FALSE(Group(2).is_running());
  EXPECT_EQ(num_free(), 5);
  EXPECT_EQ(&state_.waiting.front(), &Group(2));
  EXPECT_EQ(state_.counters.num_preemptions, 2);
  EXPECT_EQ(state_.epoch->handles.num_to_release(), 3);
}

TEST_F(PreemptionTest, NeverTakesFromAnOlderGroup) {
  EXPECT_EQ(MakeRoom(state_, Group(2), 3), RoomOutcome::kNoRoom);

  EXPECT_TRUE(Group(1).is_running());
  EXPECT_TRUE(Group(2).is_running());
  EXPECT_FALSE(Group(3).is_running());
}

TEST_F(PreemptionTest, TheNewestGroupFindsNobody) {
  EXPECT_EQ(MakeRoom(state_, Group(3), 2), RoomOutcome::kNoRoom);

  EXPECT_EQ(state_.running.size(), 3U);
  EXPECT_EQ(state_.counters.num_preemptions, 0);
}

// The same three groups, and host memory for three blocks.
class SwapPreemptionTest : public CoreFixture {
 protected:
  SwapPreemptionTest() {
    state_.config.preemption_mode = PreemptionMode::kSwap;
    StepLimits limits = limits_;
    limits.num_blocks = 8;
    limits.num_host_blocks = 3;
    BeginEpoch(limits);
    Add({.id = 1, .prompt = 5});
    Add({.id = 2, .prompt = 5, .max_tokens = 3, .num_sequences = 2});
    Add({.id = 3, .prompt = 1});
    Step();
    Step();
  }

  SequenceGroup& Group(uint64_t id) { return *state_.Find(RequestId(id)); }

  // Orders that no plan will carry.
  void TearDown() override {
    if (!state_.step.is_active) {
      state_.step.Clear();
    }
    CoreFixture::TearDown();
  }

  StepResult Late(StepResult answer, uint64_t swaps_done) const {
    answer.swaps_done_step_id = swaps_done;
    return answer;
  }
};

TEST_F(SwapPreemptionTest, RoomComesWhenTheBlocksHaveLeft) {
  EXPECT_EQ(MakeRoom(state_, Group(1), 2), RoomOutcome::kNoRoom);
  EXPECT_TRUE(Group(3).is_swapped());
  EXPECT_EQ(MakeRoom(state_, Group(1), 2), RoomOutcome::kNoRoom);
  EXPECT_TRUE(Group(2).is_running()) << "enough is on its way";
  EXPECT_EQ(state_.counters.num_swap_preemptions, 1);

  state_.epoch->kv_cache.OnSwapsDone(state_.epoch->last_step_id + 1);

  EXPECT_EQ(MakeRoom(state_, Group(1), 2), RoomOutcome::kHadRoom);
}

TEST_F(SwapPreemptionTest, WhoDoesNotFitTheHostIsComputedAgain) {
  EXPECT_EQ(MakeRoom(state_, Group(1), 4), RoomOutcome::kPreempted);
  // Group 3 took one of the three host blocks; group 2 has three blocks.
  EXPECT_TRUE(Group(3).is_swapped());
  EXPECT_EQ(&state_.waiting.front(), &Group(2));
  EXPECT_EQ(state_.counters.num_preemptions, 2);
  EXPECT_EQ(state_.counters.num_swap_preemptions, 1);
}

TEST_F(SwapPreemptionTest, ASwappedGroupComesBackWithWhatItHadComputed) {
  ASSERT_EQ(MakeRoom(state_, Group(1), 2), RoomOutcome::kNoRoom);
  std::optional<StepPlan> plan = Plan();
  ASSERT_THAT(plan->swap_outs, ::testing::SizeIs(1));
  EXPECT_THAT(plan->introductions, ::testing::IsEmpty()) << "not in the step that swapped it out";
  Apply(Late(Answer(5), plan->header.step_id));

  plan = Plan();

  ASSERT_THAT(plan->swap_ins, ::testing::SizeIs(1));
  ASSERT_THAT(plan->introductions, ::testing::SizeIs(1));
  EXPECT_EQ(plan->introductions[0].num_computed_tokens, 2);
  EXPECT_EQ(plan->introductions[0].block_ids[0], plan->swap_ins[0].block);
  EXPECT_TRUE(Group(3).is_running());
}

// The same three groups; what nothing was measured of costs nothing.
class CheapestPreemptionTest : public PreemptionTest {
 protected:
  CheapestPreemptionTest() { state_.config.preemption_mode = PreemptionMode::kAuto; }
};

TEST_F(CheapestPreemptionTest, TakesTheGroupThatFreesMostForItsCost) {
  EXPECT_EQ(MakeRoom(state_, Group(1), 2), RoomOutcome::kPreempted);

  EXPECT_TRUE(Group(3).is_running()) << "the newest, which has one block";
  EXPECT_FALSE(Group(2).is_running());
  EXPECT_EQ(num_free(), 4);
}

TEST_F(CheapestPreemptionTest, NeverTakesFromAnOlderGroup) {
  EXPECT_EQ(MakeRoom(state_, Group(2), 3), RoomOutcome::kNoRoom);

  EXPECT_TRUE(Group(1).is_running());
  EXPECT_FALSE(Group(3).is_running());
}

TEST_F(CheapestPreemptionTest, WhoWasPreemptedThreeTimesIsTheLastChoice) {
  Group(2).CountPreemption();
  Group(2).CountPreemption();
  Group(2).CountPreemption();

  EXPECT_EQ(MakeRoom(state_, Group(1), 2), RoomOutcome::kPreempted);
  EXPECT_TRUE(Group(2).is_running());
  EXPECT_FALSE(Group(3).is_running());

  EXPECT_EQ(MakeRoom(state_, Group(1), 3), RoomOutcome::kPreempted);
  EXPECT_FALSE(Group(2).is_running());
  EXPECT_EQ(Group(2).num_preemptions(), 4);
}

TEST_F(CheapestPreemptionTest, TakesTheNewestWhenAllWerePreemptedOften) {
  for (uint64_t id : {2, 3}) {
    for (int i = 0; i < 3; ++i) {
      Group(id).CountPreemption();
    }
  }

  EXPECT_EQ(MakeRoom(state_, Group(1), 2), RoomOutcome::kPreempted);

  EXPECT_TRUE(Group(2).is_running());
  EXPECT_FALSE(Group(3).is_running());
}

}  // namespace
}  // namespace quire
