#include "scheduler/core/preemption.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

// Three groups run: 2, 4 (in two sequences) and 1 blocks; one of the eight is free.
class PreemptionTest : public CoreFixture {
 protected:
  PreemptionTest() {
    Add({.id = 1, .prompt = 5});
    Add({.id = 2, .prompt = 5, .max_tokens = 3, .num_sequences = 2});
    Add({.id = 3, .prompt = 1});
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
  EXPECT_EQ(num_free(), 6);
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

}  // namespace
}  // namespace quire
