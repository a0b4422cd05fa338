// How many tokens prompts get beside sequences that decode.
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

#include "scheduler/core/deadline_admission.h"
#include "scheduler/core/step_bound.h"
#include "tests/scheduler/core/core_fixture.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

class InterTokenTest : public CoreFixture {
 protected:
  InterTokenTest() {
    limits_.num_blocks = 257;
    limits_.max_tokens_per_step = 256;
    limits_.max_model_len = 512;
    BeginEpoch(limits_);
  }

  // Observes a step of so many tokens that took this long.
  void Learn(int64_t num_tokens, double micros) {
    state_.epoch->preemption_cost.ObserveStep({.num_tokens = num_tokens, .micros = micros});
  }
  // 1 ms, and 0.1 ms a token.
  void LearnLinearCost() {
    for (const int64_t num_tokens : {1, 16, 64, 256}) {
      Learn(num_tokens, 1000.0 + 100.0 * static_cast<double>(num_tokens));
    }
  }

  // The same, and one step of each size longer. Such a step counts an eighth.
  void LearnUnevenCost() {
    LearnLinearCost();
    for (const int64_t num_tokens : {16, 64, 256}) {
      Learn(num_tokens, 1800.0 + 100.0 * static_cast<double>(num_tokens));
    }
  }

  // Request 1 decodes from now on.
  void StartDecoding() {
    Add({.id = 1, .prompt = 8, .max_tokens = 200});
    Step();
  }
};

TEST_F(InterTokenTest, PromptsBesideOneThatDecodesTakeWhatTheTargetLeaves) {
  state_.config.target_inter_token = 6 * kNanosPerMilli;
  StartDecoding();
  LearnLinearCost();
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 49}}));  // 50 tokens take 6 ms
}

TEST_F(InterTokenTest, WhereStepsDifferPromptsLeaveTwoMeanDeviations) {
  state_.config.target_inter_token = 6 * kNanosPerMilli;
  StartDecoding();
  LearnUnevenCost();
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 46}}));  // 49 take 6 ms, and 47 with what is left
}

TEST_F(InterTokenTest, AutoIsThreeTimesTheMeanOfStepsWithoutPrompts) {
  state_.config.target_inter_token = kAutoInterToken;
  StartDecoding();
  LearnUnevenCost();
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 21}}));  // 22 take 3.3 ms
}

TEST_F(InterTokenTest, SeveralPromptsShareWhatIsLeftInTheirOrder) {
  state_.config.target_inter_token = 6 * kNanosPerMilli;
  StartDecoding();
  LearnLinearCost();
  Add({.id = 2, .prompt = 30});
  Add({.id = 3, .prompt = 100});
  Add({.id = 4, .prompt = 100});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 30}, {3, 19}}));
}

TEST_F(InterTokenTest, WhileNobodyDecodesAPromptTakesTheStep) {
  state_.config.target_inter_token = 6 * kNanosPerMilli;
  LearnLinearCost();
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{2, 256}}));
}

TEST_F(InterTokenTest, WithoutATargetAPromptTakesWhatTheStepHasRoomFor) {
  StartDecoding();
  LearnLinearCost();
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 255}}));
}

TEST_F(InterTokenTest, WhileNoTimeIsKnownAPromptTakesWhatTheStepHasRoomFor) {
  state_.config.target_inter_token = 1;
  StartDecoding();
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 255}}));
}

TEST_F(InterTokenTest, ATargetThatCannotBeHadLeavesPromptsAFewTokens) {
  state_.config.target_inter_token = 1;
  StartDecoding();
  LearnLinearCost();
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, kLeastPromptTokens}}));
}

TEST_F(InterTokenTest, ADeadlineThatTheTargetLeavesNoTimeForIsNotExpectedToBeMet) {
  StartDecoding();
  LearnLinearCost();
  for (size_t i = 0; i < OutputLengths::kFewestLengths; ++i) {
    state_.completion.OnEnd(1, 1000, /*is_whole=*/true);
  }
  // 32 ms for its tokens, and two steps more; 20 steps more where each has 16 of them.
  Request request = MakeRequest({.id = 2, .prompt = 320, .max_tokens = 100});
  request.deadline = state_.now + 40 * kNanosPerMilli;

  EXPECT_EQ(AdmitByDeadline(state_, request), DeadlineEstimate::kNone);
  state_.config.target_inter_token = 1;
  EXPECT_EQ(AdmitByDeadline(state_, request), DeadlineEstimate::kUnreachable);
}

TEST_F(InterTokenTest, AutoLetsStepsTakeThreeTimesWhatDecodingTakes) {
  state_.config.target_inter_token = kAutoInterToken;
  StartDecoding();
  Learn(1, 4000);
  Learn(64, 12000);
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 63}}));
}

TEST_F(InterTokenTest, AutoIsNotMisledByAStepThatHung) {
  state_.config.target_inter_token = kAutoInterToken;
  StartDecoding();
  Learn(1, 2e6);
  Learn(64, 12000);
  Add({.id = 2, .prompt = 300});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 191}}));
}

TEST_F(InterTokenTest, NewerRequestsDoNotStartBesideAPromptThatIsCut) {
  state_.config.target_inter_token = 6 * kNanosPerMilli;
  StartDecoding();
  LearnLinearCost();
  Add({.id = 2, .prompt = 300});
  Add({.id = 3, .prompt = 1});

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {2, 49}}));
  EXPECT_FALSE(state_.Find(RequestId(3))->is_running());
}

TEST_F(InterTokenTest, WhoComesBackFromTheHostLeavesACutPromptItsBlocks) {
  limits_.num_blocks = 1 + 90;
  limits_.num_host_blocks = 20;
  BeginEpoch(limits_);
  state_.config.target_inter_token = 6 * kNanosPerMilli;
  LearnLinearCost();
  Add({.id = 1, .prompt = 11, .max_tokens = 200});
  Step();
  Add({.id = 2, .prompt = 40, .max_tokens = 200});
  Step();
  Add({.id = 3, .prompt = 300});
  Step();
  ASSERT_TRUE(state_.SwapOut(*state_.Find(RequestId(2))));
  for (int i = 0; i < 4; ++i) {
    Step();  // request 1 takes one of the blocks that were just enough for all
  }
  ASSERT_GE(state_.epoch->kv_cache.num_free_blocks() + state_.epoch->kv_cache.num_leaving_blocks(),
            11);
  state_.epoch->kv_cache.OnSwapsDone(state_.epoch->last_step_id);

  EXPECT_EQ(TokensOfStep(), (Tokens{{1, 1}, {3, 49}}));
}

}  // namespace
}  // namespace quire
