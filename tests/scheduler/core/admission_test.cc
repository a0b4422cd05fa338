#include "scheduler/core/admission.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/math.h"
#include "common/model/sliding_window.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

// 8 blocks of 4 tokens, so 32 tokens in all.
constexpr StepLimits kAdmissionLimits{.num_blocks = 9,
                                      .block_size_tokens = 4,
                                      .max_sequences = 4,
                                      .max_tokens_per_step = 16,
                                      .max_model_len = 64,
                                      .vocab_size = 1000};
constexpr Room kWideOpen{.num_free_handles = 4, .num_free_blocks = 8};

bool Fits(const RequestSpec& spec, const StepLimits& limits = kAdmissionLimits) {
  return FitsPool(MakeRequest(spec), spec.num_sequences, limits);
}

TEST(AdmissionTest, TheContextHasRoomForOneMoreToken) {
  EXPECT_TRUE(FitsContext(63, kAdmissionLimits));
  EXPECT_FALSE(FitsContext(64, kAdmissionLimits));
}

TEST(AdmissionTest, PromptAndOutputMustFitThePool) {
  EXPECT_TRUE(Fits({.prompt = 20, .max_tokens = 12}));
  EXPECT_FALSE(Fits({.prompt = 20, .max_tokens = 13}));
}

TEST(AdmissionTest, EachSequenceRoundsUpToItsOwnBlocks) {
  EXPECT_TRUE(Fits({.prompt = 1, .max_tokens = 7, .num_sequences = 4}));
  EXPECT_FALSE(Fits({.prompt = 1, .max_tokens = 8, .num_sequences = 4}));
}

TEST(AdmissionTest, ANewRequestIsCutToTheContextAndAResumedOneIsNot) {
  constexpr int32_t kEndless = std::numeric_limits<int32_t>::max();
  Request request = MakeRequest({.prompt = 20, .max_tokens = kEndless});
  Request resumed = request;
  resumed.is_resumed = true;

  CutToContext(32, &request);
  CutToContext(32, &resumed);

  EXPECT_EQ(request.max_tokens, 12);
  EXPECT_EQ(resumed.max_tokens, kEndless);
  EXPECT_FALSE(FitsPool(resumed, 1, kAdmissionLimits));
  CutToContext(20, &request);  // no room at all: it does not fit
  EXPECT_EQ(request.max_tokens, 1);
}

TEST(AdmissionTest, MoreSequencesThanHandlesNeverFit) {
  EXPECT_TRUE(Fits({.prompt = 1, .max_tokens = 1, .num_sequences = 4}));
  EXPECT_FALSE(Fits({.prompt = 1, .max_tokens = 1, .num_sequences = 5}));
}

TEST(AdmissionTest, AdmitsWhatHasRoom) {
  SequenceGroup group(MakeRequest({.prompt = 30, .max_tokens = 1}));

  EXPECT_EQ(Admit(group, kAdmissionLimits, kWideOpen), AllocStatus::kOk);
}

TEST(AdmissionTest, AsksForTheWholePromptOfEverySequence) {
  SequenceGroup group(MakeRequest({.prompt = 9, .max_tokens = 1, .num_sequences = 2}));
  Room room = kWideOpen;

  room.num_free_blocks = 6;
  EXPECT_EQ(Admit(group, kAdmissionLimits, room), AllocStatus::kOk);
  room.num_free_blocks = 5;
  EXPECT_EQ(Admit(group, kAdmissionLimits, room), AllocStatus::kLater);
}

TEST(AdmissionTest, WatermarkBlocksCountAsGone) {
  SequenceGroup group(MakeRequest({.prompt = 16, .max_tokens = 1}));
  Room room = kWideOpen;

  room.num_watermark_blocks = 4;
  EXPECT_EQ(Admit(group, kAdmissionLimits, room), AllocStatus::kOk);
  room.num_watermark_blocks = 5;
  EXPECT_EQ(Admit(group, kAdmissionLimits, room), AllocStatus::kLater);
}

TEST(AdmissionTest, WaitsForHandlesForAllItsSequences) {
  SequenceGroup group(MakeRequest({.prompt = 1, .max_tokens = 1, .num_sequences = 2}));
  Room room = kWideOpen;

  room.num_free_handles = 2;
  EXPECT_EQ(Admit(group, kAdmissionLimits, room), AllocStatus::kOk);
  room.num_free_handles = 1;
  EXPECT_EQ(Admit(group, kAdmissionLimits, room), AllocStatus::kLater);
}

TEST(AdmissionTest, FinishedSequencesNeedNothing) {
  SequenceGroup group(MakeRequest({.prompt = 16, .max_tokens = 10, .num_sequences = 2}));
  EXPECT_EQ(Admit(group, kAdmissionLimits, kWideOpen), AllocStatus::kNever);

  group.sequences()[0].BecomeFinished();

  EXPECT_EQ(Admit(group, kAdmissionLimits, kWideOpen), AllocStatus::kOk);
}

// Workers can come back with a shorter context than a sequence was promised.
TEST(AdmissionTest, ARequestThatIsLongerThanTheContextNeverFits) {
  SequenceGroup group(MakeRequest({.prompt = 8, .max_tokens = 2}));
  StepLimits limits = kAdmissionLimits;

  limits.max_model_len = 10;
  EXPECT_EQ(Admit(group, limits, kWideOpen), AllocStatus::kOk);
  limits.max_model_len = 9;
  EXPECT_EQ(Admit(group, limits, kWideOpen), AllocStatus::kNever);
}

// All ways in which one or two sequences can be computed, step by step, and the blocks that they
// hold in each step: those from the window of the first token of a step to its last one.
class WindowBoundTest : public ::testing::Test {
 protected:
  int64_t NumHeld(int32_t begin, int32_t end) const {
    const int32_t passed =
        NumBlocksBeforeWindow(begin, limits_.sliding_window, limits_.block_size_tokens);
    return DivCeil(end, limits_.block_size_tokens) - passed;
  }

  // The most over all steps from here on, with every share of a step's tokens.
  int64_t NumHeldAtMost(const std::vector<int32_t>& computed) {
    if (auto known = at_most_.find(computed); known != at_most_.end()) {
      return known->second;
    }
    int64_t most = 0;
    const int32_t max_first = std::min(limits_.max_tokens_per_step, kNumTokens - computed[0]);
    for (int32_t first = 0; first <= max_first; ++first) {
      const bool is_alone = computed.size() == 1;
      const int32_t left = limits_.max_tokens_per_step - first;
      const int32_t max_second = is_alone ? 0 : std::min(left, kNumTokens - computed[1]);
      for (int32_t second = 0; second <= max_second; ++second) {
        if (first + second == 0) {
          continue;
        }
        std::vector<int32_t> next = computed;
        next[0] += first;
        int64_t held = NumHeld(computed[0], next[0]);
        if (!is_alone) {
          next[1] += second;
          held += NumHeld(computed[1], next[1]);
        }
        most = std::max({most, held, NumHeldAtMost(next)});
      }
    }
    return at_most_[computed] = most;
  }

  static constexpr int32_t kNumTokens = 22;
  StepLimits limits_ = kAdmissionLimits;
  std::map<std::vector<int32_t>, int64_t> at_most_;
};

TEST_F(WindowBoundTest, NobodyEverHoldsMoreAndOneSequenceHoldsAsMuch) {
  for (int32_t window = 1; window <= 9; ++window) {
    for (int32_t block_size : {1, 2, 4}) {
      for (int32_t step = 1; step <= 6; ++step) {
        limits_.sliding_window = window;
        limits_.block_size_tokens = block_size;
        limits_.max_tokens_per_step = step;
        SCOPED_TRACE(testing::Message() << window << " " << block_size << " " << step);
        at_most_.clear();
        EXPECT_EQ(NumHeldAtMost({0}), NumBlocksAtMost(1, kNumTokens, limits_));
        EXPECT_EQ(NumHeldAtMost({0}), NumBlocksInStep(kNumTokens, step, limits_));
        at_most_.clear();
        const int64_t of_two = NumHeldAtMost({0, 0});
        EXPECT_LE(of_two, NumBlocksAtMost(2, kNumTokens, limits_));
        EXPECT_GE(of_two + 1, NumBlocksAtMost(2, kNumTokens, limits_));
      }
    }
  }
}

TEST(WindowAdmissionTest, ALongSequenceFitsASmallPool) {
  StepLimits limits = kAdmissionLimits;
  limits.sliding_window = 8;
  limits.max_model_len = 100'000;
  // Beside 16 tokens of a step 7 are read: 23 tokens, 7 blocks of 4 wherever they begin.
  EXPECT_EQ(NumBlocksAtMost(1, 90'000, limits), 7);
  EXPECT_TRUE(Fits({.prompt = 90'000, .max_tokens = 9'000}, limits));
  EXPECT_FALSE(Fits({.prompt = 90'000, .max_tokens = 9'000, .num_sequences = 4}, limits));
  limits.num_blocks = 7;
  EXPECT_FALSE(Fits({.prompt = 90'000, .max_tokens = 9'000}, limits));
  EXPECT_TRUE(Fits({.prompt = 20, .max_tokens = 4}, limits)) << "all of it is less";
}

TEST(WindowAdmissionTest, AsksForWhatThePromptHoldsAtMost) {
  StepLimits limits = kAdmissionLimits;
  limits.sliding_window = 8;
  SequenceGroup group(MakeRequest({.prompt = 60, .max_tokens = 1}));
  Room room = kWideOpen;

  room.num_free_blocks = 7;
  EXPECT_EQ(Admit(group, limits, room), AllocStatus::kOk);
  room.num_free_blocks = 6;
  EXPECT_EQ(Admit(group, limits, room), AllocStatus::kLater);
}

}  // namespace
}  // namespace quire
