#include "scheduler/core/overtaking.h"

#include <cstdint>

#include "gtest/gtest.h"

#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

class OvertakingTest : public CoreFixture {
 protected:
  OvertakingTest() {
    limits_.num_blocks = 1 + 400;
    limits_.max_sequences = 16;
    limits_.max_tokens_per_step = 64;
    limits_.max_model_len = 1024;
    BeginEpoch(limits_);
  }

  // Request 1, of which 236 tokens of 300 are left.
  void StartLongPrompt() {
    Add({.id = 1, .prompt = 300});
    Step();
  }
};

TEST_F(OvertakingTest, AShortPromptDoesNotWaitForALongOne) {
  StartLongPrompt();
  Add({.id = 2, .prompt = 10});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 54}, {2, 10}}));
  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 63}, {2, 1}}));  // it decodes meanwhile
}

TEST_F(OvertakingTest, ThoseThatPassGetHalfOfAStepAndGoOnInTheNext) {
  StartLongPrompt();
  Add({.id = 2, .prompt = 20});
  Add({.id = 3, .prompt = 40});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 32}, {2, 20}, {3, 12}}));
  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 35}, {2, 1}, {3, 28}}));
}

TEST_F(OvertakingTest, APromptOfMoreThanAQuarterOfWhatIsLeftWaits) {
  StartLongPrompt();
  Add({.id = 2, .prompt = 60});
  Add({.id = 3, .prompt = 10});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 54}, {3, 10}}));
}

TEST_F(OvertakingTest, NobodyPassesAPromptThatFitsTheStep) {
  Add({.id = 1, .prompt = 100});
  Step();
  Add({.id = 2, .prompt = 40});
  Add({.id = 3, .prompt = 5});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 36}, {2, 28}}));
}

TEST_F(OvertakingTest, NobodyPassesWhoHasPassed) {
  Add({.id = 1, .prompt = 1000});
  Step();
  Add({.id = 2, .prompt = 200});
  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 32}, {2, 32}}));
  state_.FinishGroup(*state_.Find(RequestId(1)), FinishReason::kAborted);
  Add({.id = 3, .prompt = 5});

  EXPECT_EQ(TokensOfStep(), (Tokens{{2, 64}}));
}

TEST_F(OvertakingTest, WhoIsPassedKeepsItsBlocks) {
  limits_.num_blocks = 1 + 75 + 50 + 2;  // for 300 tokens, for 200 and for 8
  BeginEpoch(limits_);
  StartLongPrompt();
  Add({.id = 2, .prompt = 200});
  Add({.id = 3, .prompt = 9});
  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 64}}));
  Add({.id = 4, .prompt = 8});  // nor does anybody pass request 3, which waits for room

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 64}}));
  state_.FinishGroup(*state_.Find(RequestId(3)), FinishReason::kAborted);
  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 56}, {4, 8}}));
}

TEST_F(OvertakingTest, WhoIsPassedKeepsItsHandles) {
  limits_.max_sequences = 5;
  BeginEpoch(limits_);
  StartLongPrompt();
  Add({.id = 2, .prompt = 100, .num_sequences = 4});
  Add({.id = 3, .prompt = 8});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 64}}));
}

TEST_F(OvertakingTest, SequencesThatDecodeLeaveHalfOfAStepToPrompts) {
  limits_.max_tokens_per_step = 8;
  BeginEpoch(limits_);
  for (uint64_t id = 1; id <= 3; ++id) {
    Add({.id = id, .prompt = 1});
  }
  Step();
  Add({.id = 4, .prompt = 300});
  Step();
  Add({.id = 5, .prompt = 1});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 1}, {3, 1}, {4, 5}}));
}

TEST_F(OvertakingTest, TheyLeaveHalfOfWhatAStepMayHaveUnderATarget) {
  state_.config.target_inter_token = kNanosPerMilli;
  for (uint64_t id = 1; id <= 8; ++id) {
    Add({.id = id, .prompt = 1});
  }
  Step();
  state_.epoch->preemption_cost.ObserveStep({.num_tokens = 16, .micros = 1000});
  Add({.id = 9, .prompt = 300});
  Step();
  Add({.id = 10, .prompt = 4});

  const Tokens num_tokens = TokensOfStep();
  EXPECT_EQ(num_tokens.at(9), 16);
  EXPECT_EQ(num_tokens.count(10), 0U);
}

class OvertakingModeTest : public OvertakingTest,
                           public ::testing::WithParamInterface<PreemptionMode> {};

INSTANTIATE_TEST_SUITE_P(Modes,
                         OvertakingModeTest,
                         ::testing::Values(PreemptionMode::kRecompute, PreemptionMode::kAuto));

// Room was there when the short one passed; its output has grown into it since.
TEST_P(OvertakingModeTest, WhoHasPassedGivesWayToWhomItPassed) {
  limits_.num_blocks = 1 + 75 + 50 + 2;  // for 300 tokens, for 200 and for 8
  BeginEpoch(limits_);
  state_.config.preemption_mode = GetParam();
  Add({.id = 1, .prompt = 300, .max_tokens = 200});
  Step();
  Add({.id = 2, .prompt = 200, .max_tokens = 200});
  Add({.id = 3, .prompt = 8, .max_tokens = 200});
  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 56}, {3, 8}}));
  for (int i = 0; i < 8; ++i) {
    Step();
  }

  EXPECT_TRUE(state_.Find(RequestId(2))->is_running());
  EXPECT_FALSE(state_.Find(RequestId(3))->is_running());
}

TEST_F(OvertakingTest, OtherPoliciesSayThemselvesWhoGoesFirst) {
  StartLongPrompt();
  state_.config.scheduling_policy = SchedulingPolicyKind::kPriority;
  Add({.id = 2, .prompt = 10});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 64}}));
}

}  // namespace
}  // namespace quire
