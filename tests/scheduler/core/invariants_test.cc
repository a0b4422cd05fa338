// A check that never fires proves nothing: each test breaks the state in one way and expects the
// check to say so.
#include "scheduler/core/invariants.h"

#include "gtest/gtest.h"

#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

class InvariantsDeathTest : public CoreFixture {
 protected:
  InvariantsDeathTest() {
    Add({.id = 1, .prompt = 5, .max_tokens = 3});
    Step();
    Add({.id = 2, .prompt = 30, .max_tokens = 1, .deadline = 100});
  }

  Sequence& RunningSequence() { return state_.running[0]->sequences()[0]; }
};

TEST_F(InvariantsDeathTest, HoldInOrder) { CheckInvariants(state_); }

TEST_F(InvariantsDeathTest, MissASequenceWithoutItsBlocks) {
  EXPECT_DEATH(
      {
        RunningSequence().table.Abandon();
        CheckInvariants(state_);
      },
      "table.num_tokens");
}

TEST_F(InvariantsDeathTest, MissABlockThatNobodyHolds) {
  EXPECT_DEATH(
      {
        BlockTable lost;
        (void)state_.epoch->kv_cache.Append(lost, 1);
        CheckInvariants(state_);
      },
      "num_stored_tokens");
}

TEST_F(InvariantsDeathTest, MissAHandleThatNobodyHas) {
  EXPECT_DEATH(
      {
        state_.epoch->handles.Take();
        CheckInvariants(state_);
      },
      "num_in_use");
}

TEST_F(InvariantsDeathTest, MissARunningHandleThatIsReleased) {
  EXPECT_DEATH(
      {
        state_.epoch->handles.GiveBack(RunningSequence().handle());
        CheckInvariants(state_);
      },
      "is_in_use");
}

TEST_F(InvariantsDeathTest, MissAGroupInNoQueue) {
  EXPECT_DEATH(
      {
        state_.waiting.PopFront();
        CheckInvariants(state_);
      },
      "groups.size");
}

TEST_F(InvariantsDeathTest, MissAFinishedGroupThatStays) {
  EXPECT_DEATH(
      {
        state_.waiting.front().sequences()[0].BecomeFinished();
        CheckInvariants(state_);
      },
      "is_finished");
}

TEST_F(InvariantsDeathTest, MissATimerOfNobody) {
  EXPECT_DEATH(
      {
        state_.deadlines.Add(MakeRequest({.id = 9, .deadline = 5}));
        CheckInvariants(state_);
      },
      "deadlines.size");
}

TEST_F(InvariantsDeathTest, MissAFenceWithoutAStep) {
  EXPECT_DEATH(
      {
        state_.epoch->kv_cache.OnStepPlanned();
        CheckInvariants(state_);
      },
      "is_fenced");
}

TEST_F(InvariantsDeathTest, MissAStepThatIsNotTheLast) {
  ASSERT_TRUE(Plan().has_value());
  EXPECT_DEATH(
      {
        ++state_.epoch->last_step_id;
        CheckInvariants(state_);
      },
      "step_id");
}

TEST_F(InvariantsDeathTest, MissAWriteIntoASharedBlock) {
  ASSERT_TRUE(Plan().has_value());
  EXPECT_DEATH(
      {
        BlockTable fork;
        state_.epoch->kv_cache.Fork(
            RunningSequence().table, RunningSequence().table.num_tokens(), fork);
        CheckInvariants(state_);
      },
      "num_stored_tokens|ref_count");
}

TEST_F(InvariantsDeathTest, MissAnOvertaking) {
  EXPECT_DEATH(
      {
        Add({.id = 3, .prompt = 1, .max_tokens = 1});
        SequenceGroup& second = state_.waiting.front();
        state_.waiting.PopFront();
        state_.StartFirstWaiting();
        state_.waiting.Return(second);
        CheckInvariants(state_);
      },
      "has_started");
}

TEST_F(InvariantsDeathTest, MissASequenceBeyondItsEnd) {
  EXPECT_DEATH(
      {
        for (int32_t i = 0; i < 2; ++i) {
          (void)state_.epoch->kv_cache.Append(RunningSequence().table, 1);
          RunningSequence().BeginSlice(1);
          RunningSequence().EndSlice();
          RunningSequence().Commit(5);
        }
        CheckInvariants(state_);
      },
      "max_tokens");
}

TEST_F(InvariantsDeathTest, MissARunningGroupWithoutWorkers) {
  EXPECT_DEATH(
      {
        state_.epoch.reset();
        CheckInvariants(state_);
      },
      "running.empty");
}

}  // namespace
}  // namespace quire
