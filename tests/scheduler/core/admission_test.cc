#include "scheduler/core/admission.h"

#include <limits>

#include "gtest/gtest.h"

#include "tests/support/requests.h"

namespace quire {
namespace {

// 8 blocks of 4 tokens, so 32 tokens in all.
constexpr StepLimits kLimits{.num_blocks = 9,
                             .block_size_tokens = 4,
                             .max_sequences = 4,
                             .max_tokens_per_step = 16,
                             .max_model_len = 64,
                             .vocab_size = 1000};
constexpr Room kWideOpen{.num_free_handles = 4, .num_free_blocks = 8};

bool Fits(const RequestSpec& spec, const StepLimits& limits = kLimits) {
  return FitsPool(MakeRequest(spec), spec.num_sequences, limits);
}

TEST(AdmissionTest, TheContextHasRoomForOneMoreToken) {
  EXPECT_TRUE(FitsContext(63, kLimits));
  EXPECT_FALSE(FitsContext(64, kLimits));
}

TEST(AdmissionTest, PromptAndOutputMustFitThePool) {
  EXPECT_TRUE(Fits({.prompt = 20, .max_tokens = 12}));
  EXPECT_FALSE(Fits({.prompt = 20, .max_tokens = 13}));
}

TEST(AdmissionTest, EachSequenceRoundsUpToItsOwnBlocks) {
  EXPECT_TRUE(Fits({.prompt = 1, .max_tokens = 7, .num_sequences = 4}));
  EXPECT_FALSE(Fits({.prompt = 1, .max_tokens = 8, .num_sequences = 4}));
}

TEST(AdmissionTest, OutputIsBoundedByTheContext) {
  StepLimits limits = kLimits;
  limits.max_model_len = 32;

  EXPECT_TRUE(Fits({.prompt = 20, .max_tokens = std::numeric_limits<int32_t>::max()}, limits));
}

TEST(AdmissionTest, MoreSequencesThanHandlesNeverFit) {
  EXPECT_TRUE(Fits({.prompt = 1, .max_tokens = 1, .num_sequences = 4}));
  EXPECT_FALSE(Fits({.prompt = 1, .max_tokens = 1, .num_sequences = 5}));
}

TEST(AdmissionTest, AdmitsWhatHasRoom) {
  SequenceGroup group(MakeRequest({.prompt = 30, .max_tokens = 1}));

  EXPECT_EQ(Admit(group, kLimits, kWideOpen), AllocStatus::kOk);
}

TEST(AdmissionTest, AsksForTheWholePromptOfEverySequence) {
  SequenceGroup group(MakeRequest({.prompt = 9, .max_tokens = 1, .num_sequences = 2}));
  Room room = kWideOpen;

  room.num_free_blocks = 6;
  EXPECT_EQ(Admit(group, kLimits, room), AllocStatus::kOk);
  room.num_free_blocks = 5;
  EXPECT_EQ(Admit(group, kLimits, room), AllocStatus::kLater);
}

TEST(AdmissionTest, WatermarkBlocksCountAsGone) {
  SequenceGroup group(MakeRequest({.prompt = 16, .max_tokens = 1}));
  Room room = kWideOpen;

  room.num_watermark_blocks = 4;
  EXPECT_EQ(Admit(group, kLimits, room), AllocStatus::kOk);
  room.num_watermark_blocks = 5;
  EXPECT_EQ(Admit(group, kLimits, room), AllocStatus::kLater);
}

TEST(AdmissionTest, WaitsForHandlesForAllItsSequences) {
  SequenceGroup group(MakeRequest({.prompt = 1, .max_tokens = 1, .num_sequences = 2}));
  Room room = kWideOpen;

  room.num_free_handles = 2;
  EXPECT_EQ(Admit(group, kLimits, room), AllocStatus::kOk);
  room.num_free_handles = 1;
  EXPECT_EQ(Admit(group, kLimits, room), AllocStatus::kLater);
}

TEST(AdmissionTest, FinishedSequencesNeedNothing) {
  SequenceGroup group(MakeRequest({.prompt = 16, .max_tokens = 10, .num_sequences = 2}));
  EXPECT_EQ(Admit(group, kLimits, kWideOpen), AllocStatus::kNever);

  group.sequences()[0].BecomeFinished();

  EXPECT_EQ(Admit(group, kLimits, kWideOpen), AllocStatus::kOk);
}

// Workers can come back with a shorter context than a sequence already has.
TEST(AdmissionTest, ASequenceThatFillsTheContextNeverFits) {
  SequenceGroup group(MakeRequest({.prompt = 8, .max_tokens = 1}));
  StepLimits limits = kLimits;
  limits.max_model_len = 8;

  EXPECT_EQ(Admit(group, limits, kWideOpen), AllocStatus::kNever);
}

}  // namespace
}  // namespace quire
