#include "common/step/step_plan_check.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int32_t kMinInt = std::numeric_limits<int32_t>::min();

constexpr StepLimits kLimits = {.num_blocks = 32,
                                .num_host_blocks = 6,
                                .block_size_tokens = 4,
                                .max_sequences = 4,
                                .max_tokens_per_step = 16,
                                .max_model_len = 24,
                                .vocab_size = 100};

// A worker that knows two sequences:
//   handle 0: 6 tokens, 5 computed, blocks 1 and 2: a decode is due, in block 2
//   handle 1: 8 tokens, 2 computed, block 3: a prefill in pieces
// and that block 14 was swapped out to, host block 1.
class StepPlanCheckTest : public testing::Test {
 protected:
  StepPlanCheckTest() : checker_(kLimits) {
    known_[0] = {.num_known_tokens = 6, .num_computed_tokens = 5, .block_ids = blocks_0_};
    known_[1] = {.num_known_tokens = 8, .num_computed_tokens = 2, .block_ids = blocks_1_};
    StepPlan plan;
    plan.swap_outs = {{.block = 14, .host_block = 1}};
    EXPECT_TRUE(Check(plan).ok());
  }

  absl::Status Check(const StepPlan& plan) {
    return checker_.Check(plan, [this](SequenceHandle handle) {
      auto found = known_.find(handle);
      return found == known_.end() ? std::nullopt : std::optional<KnownSequence>(found->second);
    });
  }

  // A plan with one of everything that is allowed.
  static StepPlan GoodPlan() {
    StepPlan plan;
    plan.swap_outs = {{.block = 16, .host_block = 5}};
    plan.swap_ins = {{.block = 15, .host_block = 1}};
    plan.copies = {{.src = 10, .dst = 11}};
    plan.introductions = {{.handle = 2,
                           .token_ids = {5, 6, 7, 8, 9},
                           .num_prompt_tokens = 5,
                           .num_computed_tokens = 4,
                           .block_ids = {11},
                           .sequence_index = 0,
                           .sampling = {}}};
    plan.slices = {{.handle = 0, .num_tokens = 1, .new_block_ids = {}},
                   {.handle = 1, .num_tokens = 6, .new_block_ids = {4}},
                   {.handle = 2, .num_tokens = 1, .new_block_ids = {12}}};
    plan.releases = {0};
    return plan;
  }

  StepPlanChecker checker_;
  std::vector<BlockId> blocks_0_ = {1, 2};
  std::vector<BlockId> blocks_1_ = {3};
  std::map<SequenceHandle, KnownSequence> known_;
};

TEST_F(StepPlanCheckTest, AcceptsAGoodPlanAgainAndAgain) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Check(GoodPlan()).ok()) << Check(GoodPlan());
  }
}

TEST_F(StepPlanCheckTest, AcceptsAnEmptyStep) { EXPECT_TRUE(Check(StepPlan{}).ok()); }

struct BadPlan {
  std::string name;
  std::string reason;
  std::function<void(StepPlan&)> spoil;
};

TEST_F(StepPlanCheckTest, RefusesEveryWrongPlanWithItsReason) {
  const std::vector<BadPlan> cases = {
      // X08
      {"copy from the null block", "BLOCK_RANGE", [](auto& p) { p.copies[0].src = 0; }},
      {"copy to the null block", "BLOCK_RANGE", [](auto& p) { p.copies[0].dst = 0; }},
      {"copy from a negative block", "BLOCK_RANGE", [](auto& p) { p.copies[0].src = -1; }},
      {"copy to past the pool", "BLOCK_RANGE", [](auto& p) { p.copies[0].dst = 32; }},
      {"least block id", "BLOCK_RANGE", [](auto& p) { p.copies[0].dst = kMinInt; }},
      {"new block is the null block",
       "BLOCK_RANGE",
       [](auto& p) { p.slices[1].new_block_ids = {0}; }},
      {"new block past the pool", "BLOCK_RANGE", [](auto& p) { p.slices[1].new_block_ids = {32}; }},
      {"new block far past the pool",
       "BLOCK_RANGE",
       [](auto& p) { p.slices[1].new_block_ids = {kMaxInt}; }},
      {"negative new block", "BLOCK_RANGE", [](auto& p) { p.slices[1].new_block_ids = {-7}; }},
      {"introduced table past the pool",
       "BLOCK_RANGE",
       [](auto& p) { p.introductions[0].block_ids = {32}; }},
      // X09
      {"copy onto itself", "BLOCK_CONFLICT", [](auto& p) { p.copies[0].dst = 10; }},
      {"two copies to one target",
       "BLOCK_CONFLICT",
       [](auto& p) { p.copies.push_back({.src = 13, .dst = 11}); }},
      {"a target that is a later source",
       "BLOCK_CONFLICT",
       [](auto& p) { p.copies.push_back({.src = 11, .dst = 13}); }},
      {"a target that is an earlier source",
       "BLOCK_CONFLICT",
       [](auto& p) { p.copies.push_back({.src = 13, .dst = 10}); }},
      {"new block written by two slices",
       "BLOCK_CONFLICT",
       [](auto& p) { p.slices[2].new_block_ids = {4}; }},
      {"new block is written by its owner",
       "BLOCK_CONFLICT",
       [](auto& p) { p.slices[1].new_block_ids = {2}; }},
      {"shared partial block written by two",
       "BLOCK_CONFLICT",
       [](auto& p) {
         p.introductions[0].block_ids = {11, 2};  // block 2 is sequence 0's, and both append
         p.slices[2].new_block_ids = {};
       }},
      {"block twice in a table",
       "BLOCK_CONFLICT",
       [](auto& p) { p.slices[1].new_block_ids = {3}; }},
      {"block twice in an introduced table",
       "BLOCK_CONFLICT",
       [](auto& p) {
         p.introductions[0].block_ids = {11, 11};
       }},
      {"copy onto a block that arrives", "BLOCK_CONFLICT", [](auto& p) { p.copies[0].dst = 15; }},
      {"copy onto a block that leaves", "BLOCK_CONFLICT", [](auto& p) { p.copies[0].dst = 16; }},
      // Swaps
      {"swap out the null block", "BLOCK_RANGE", [](auto& p) { p.swap_outs[0].block = 0; }},
      {"swap out past the pool", "BLOCK_RANGE", [](auto& p) { p.swap_outs[0].block = 32; }},
      {"swap out to past the host pool",
       "BLOCK_RANGE",
       [](auto& p) { p.swap_outs[0].host_block = 6; }},
      {"swap out to a negative block",
       "BLOCK_RANGE",
       [](auto& p) { p.swap_outs[0].host_block = -1; }},
      {"swap in to the null block", "BLOCK_RANGE", [](auto& p) { p.swap_ins[0].block = 0; }},
      {"swap in to a negative block",
       "BLOCK_RANGE",
       [](auto& p) { p.swap_ins[0].block = kMinInt; }},
      {"swap in from past the host pool",
       "BLOCK_RANGE",
       [](auto& p) { p.swap_ins[0].host_block = kMaxInt; }},
      {"swapped out twice",
       "BLOCK_CONFLICT",
       [](auto& p) { p.swap_outs.push_back({.block = 16, .host_block = 4}); }},
      {"two swaps to one host block",
       "BLOCK_CONFLICT",
       [](auto& p) { p.swap_outs.push_back({.block = 17, .host_block = 5}); }},
      {"two swaps to one block",
       "BLOCK_CONFLICT",
       [](auto& p) {
         p.swap_outs.clear();
         p.swap_ins = {{.block = 15, .host_block = 1}, {.block = 15, .host_block = 5}};
       }},
      {"one host block to two blocks",
       "BLOCK_CONFLICT",
       [](auto& p) { p.swap_ins.push_back({.block = 18, .host_block = 1}); }},
      {"in and out of one block", "BLOCK_CONFLICT", [](auto& p) { p.swap_ins[0].block = 16; }},
      {"in and out of one host block",
       "BLOCK_CONFLICT",
       [](auto& p) { p.swap_outs[0].host_block = 1; }},
      {"written while it leaves",
       "BLOCK_CONFLICT",
       [](auto& p) { p.slices[2].new_block_ids = {16}; }},
      // Handles
      {"introduced handle out of range", "HANDLE", [](auto& p) { p.introductions[0].handle = 4; }},
      {"introduced twice",
       "HANDLE",
       [](auto& p) { p.introductions.push_back(p.introductions[0]); }},
      {"slice of nobody", "HANDLE", [](auto& p) { p.slices[0].handle = 3; }},
      {"slice handle out of range", "HANDLE", [](auto& p) { p.slices[0].handle = 0xFFFFFFFFU; }},
      {"two slices of one sequence", "HANDLE", [](auto& p) { p.slices[0].handle = 1; }},
      {"release of nobody", "HANDLE", [](auto& p) { p.releases = {3}; }},
      {"release out of range", "HANDLE", [](auto& p) { p.releases = {4}; }},
      {"released twice",
       "HANDLE",
       [](auto& p) {
         p.releases = {1, 1};
       }},
      // X10
      {"empty slice", "LENGTH", [](auto& p) { p.slices[1].num_tokens = 0; }},
      {"negative slice", "LENGTH", [](auto& p) { p.slices[1].num_tokens = -1; }},
      {"slice longer than its table", "LENGTH", [](auto& p) { p.slices[1].new_block_ids = {}; }},
      {"table longer than the model",
       "LENGTH",
       [](auto& p) {
         p.slices[1].new_block_ids = {4, 5, 6, 7, 8, 9};
       }},
      {"introduced table longer than the model",
       "LENGTH",
       [](auto& p) {
         p.introductions[0].block_ids = {11, 20, 21, 22, 23, 24, 25};
       }},
      {"introduction without tokens",
       "LENGTH",
       [](auto& p) { p.introductions[0].token_ids.clear(); }},
      {"introduction longer than the model",
       "LENGTH",
       [](auto& p) { p.introductions[0].token_ids.resize(25, 1); }},
      {"no prompt", "LENGTH", [](auto& p) { p.introductions[0].num_prompt_tokens = 0; }},
      {"prompt longer than the tokens",
       "LENGTH",
       [](auto& p) { p.introductions[0].num_prompt_tokens = 6; }},
      {"negative prompt",
       "LENGTH",
       [](auto& p) { p.introductions[0].num_prompt_tokens = kMinInt; }},
      {"computed tokens without blocks",
       "LENGTH",
       [](auto& p) { p.introductions[0].block_ids = {}; }},
      {"negative sequence index",
       "LENGTH",
       [](auto& p) { p.introductions[0].sequence_index = -1; }},
      {"lengths whose 32-bit sum wraps",
       "STEP_LIMIT",
       [](auto& p) {
         p.slices[0].num_tokens = kMaxInt;
         p.slices[1].num_tokens = kMaxInt;
         p.slices[2].num_tokens = 10;
       }},
      // X11
      {"token past the vocabulary",
       "TOKEN_ID_RANGE",
       [](auto& p) { p.introductions[0].token_ids[4] = 100; }},
      {"negative token", "TOKEN_ID_RANGE", [](auto& p) { p.introductions[0].token_ids[0] = -1; }},
      {"past the last known token", "POSITION_RANGE", [](auto& p) { p.slices[0].num_tokens = 2; }},
      {"all tokens computed already",
       "POSITION_RANGE",
       [](auto& p) { p.introductions[0].num_computed_tokens = 5; }},
      {"negative position",
       "POSITION_RANGE",
       [](auto& p) { p.introductions[0].num_computed_tokens = -1; }},
      // X12
      {"more tokens than agreed", "STEP_LIMIT", [](auto& p) { p.slices[1].num_tokens = 15; }},
      {"more slices than agreed",
       "STEP_LIMIT",
       [](auto& p) { p.slices.resize(5, {.handle = 0, .num_tokens = 1, .new_block_ids = {}}); }},
      {"more introductions than agreed",
       "STEP_LIMIT",
       [](auto& p) { p.introductions.resize(5, p.introductions[0]); }},
      {"more releases than agreed",
       "STEP_LIMIT",
       [](auto& p) {
         p.releases = {0, 1, 2, 3, 0};
       }},
      // Sampling
      {"temperature that is no number",
       "TEMPERATURE_RANGE",
       [](auto& p) { p.introductions[0].sampling.temperature = std::nanf(""); }},
      {"banned token past the vocabulary",
       "TOKEN_ID_RANGE",
       [](auto& p) { p.introductions[0].sampling.banned_before_min_tokens = {100}; }},
      {"bias of no token",
       "LOGIT_BIAS",
       [](auto& p) {
         p.introductions[0].sampling.logit_bias = {{-1, 0.0F}};
       }},
      {"more logprobs than there are",
       "LOGPROBS_RANGE",
       [](auto& p) { p.introductions[0].sampling.num_logprobs = 1 << 30; }},
  };
  for (const BadPlan& bad : cases) {
    StepPlan plan = GoodPlan();
    bad.spoil(plan);

    absl::Status status = Check(plan);

    EXPECT_EQ(ReasonOf(status), bad.reason) << bad.name << ": " << status;
    EXPECT_EQ(status.code(),
              bad.reason == "STEP_LIMIT" ? absl::StatusCode::kResourceExhausted
                                         : absl::StatusCode::kInvalidArgument)
        << bad.name;
    EXPECT_TRUE(Check(GoodPlan()).ok()) << "after: " << bad.name;
  }
}

TEST_F(StepPlanCheckTest, ASequenceEndsOneTokenBelowTheModelsLimit) {
  StepPlan plan;
  plan.introductions = {{.handle = 2,
                         .token_ids = std::vector<TokenId>(23, 1),
                         .num_prompt_tokens = 23,
                         .num_computed_tokens = 20,
                         .block_ids = {10, 11, 12, 13, 14, 15},
                         .sequence_index = 0,
                         .sampling = {}}};
  plan.slices = {{.handle = 2, .num_tokens = 3, .new_block_ids = {}}};
  StepPlan longer = plan;
  longer.introductions[0].token_ids.push_back(1);
  longer.slices[0].num_tokens = 4;

  EXPECT_TRUE(Check(plan).ok()) << Check(plan);
  EXPECT_EQ(ReasonOf(Check(longer)), "LENGTH");
}

TEST_F(StepPlanCheckTest, SequencesMayShareBlocksThatNobodyWrites) {
  StepPlan plan;
  plan.introductions = {{.handle = 2,
                         .token_ids = {1, 2, 3, 4, 5},
                         .num_prompt_tokens = 5,
                         .num_computed_tokens = 4,
                         .block_ids = {1},  // full, and sequence 0's too
                         .sequence_index = 0,
                         .sampling = {}}};
  plan.slices = {{.handle = 0, .num_tokens = 1, .new_block_ids = {}},
                 {.handle = 2, .num_tokens = 1, .new_block_ids = {20}}};

  EXPECT_TRUE(Check(plan).ok()) << Check(plan);
}

TEST_F(StepPlanCheckTest, ABlockThatArrivesMayBeReadAndWrittenInTheSameStep) {
  StepPlan plan = GoodPlan();
  plan.introductions[0].block_ids = {15};
  plan.introductions[0].num_computed_tokens = 3;
  plan.slices[2].num_tokens = 2;
  plan.copies[0].src = 15;

  EXPECT_TRUE(Check(plan).ok()) << Check(plan);
}

TEST_F(StepPlanCheckTest, AHandleInUseMayBeIntroducedAnew) {
  StepPlan plan = GoodPlan();
  plan.introductions[0].handle = 1;
  plan.slices = {{.handle = 1, .num_tokens = 1, .new_block_ids = {20}}};
  plan.releases = {};
  EXPECT_TRUE(Check(plan).ok()) << Check(plan);
  // The new sequence's length is checked, not the length of the sequence that had the handle
  // before.
  plan.slices[0].num_tokens = 1 + static_cast<int32_t>(plan.introductions[0].token_ids.size()) -
                              plan.introductions[0].num_computed_tokens;
  EXPECT_EQ(ReasonOf(Check(plan)), "POSITION_RANGE");
}

TEST_F(StepPlanCheckTest, AForcedTokenIsOfTheVocabulary) {
  StepPlan plan = GoodPlan();
  plan.slices[0].forced_token_id = 0;
  EXPECT_TRUE(Check(plan).ok()) << Check(plan);
  for (TokenId token_id : {-1, checker_.limits().vocab_size}) {
    plan.slices[0].forced_token_id = token_id;
    EXPECT_EQ(ReasonOf(Check(plan)), "TOKEN_ID_RANGE");
  }
}

TEST_F(StepPlanCheckTest, ANextBlockIsOfThePoolAndWanted) {
  StepLimits limits = kLimits;
  limits.wants_next_blocks = true;
  StepPlanChecker wanting(limits);
  StepPlan plan = GoodPlan();
  for (BlockId block : {1, 4, 31}) {  // whoever has it
    plan.slices[0].next_block_id = block;
    const auto find = [this](SequenceHandle handle) { return std::optional(known_[handle]); };
    EXPECT_TRUE(wanting.Check(plan, find).ok()) << wanting.Check(plan, find);
    EXPECT_EQ(ReasonOf(Check(plan)), "BLOCK_RANGE") << "nobody wants it";
  }
  for (BlockId block : {0, -1, 32, kMaxInt, kMinInt}) {
    plan.slices[0].next_block_id = block;
    const auto find = [this](SequenceHandle handle) { return std::optional(known_[handle]); };
    EXPECT_EQ(ReasonOf(wanting.Check(plan, find)), "BLOCK_RANGE") << block;
  }
}

TEST_F(StepPlanCheckTest, ASpareWindowIsOfThePoolAndShortAndWanted) {
  StepLimits limits = kLimits;
  limits.wants_next_blocks = true;
  StepPlanChecker wanting(limits);
  const auto reason = [&](const SpareWindow& spare) {
    StepPlan plan = GoodPlan();
    plan.spare = spare;
    return ReasonOf(wanting.Check(
        plan, [this](SequenceHandle handle) { return std::optional(known_[handle]); }));
  };
  const auto most = static_cast<size_t>(MaxSpareBlocks(limits));
  ASSERT_EQ(most, 6U) << "blocks at max_model_len";

  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({.handle = 3, .block_ids = {1, 31}}), "");
  EXPECT_EQ(reason({.handle = 0, .block_ids = {4, 4}}), "") << "a hint may be wrong";
  EXPECT_EQ(reason({.handle = 4, .block_ids = {1}}), "HANDLE");
  EXPECT_EQ(reason({.handle = 3, .block_ids = std::vector<BlockId>(most, 1)}), "");
  EXPECT_EQ(reason({.handle = 3, .block_ids = std::vector<BlockId>(most + 1, 1)}), "LENGTH");
  for (BlockId block : {0, -1, 32, kMaxInt, kMinInt}) {
    EXPECT_EQ(reason({.handle = 3, .block_ids = {1, block}}), "BLOCK_RANGE") << block;
  }
  StepPlan plan = GoodPlan();
  plan.spare = {.handle = 3, .block_ids = {1}};
  EXPECT_EQ(ReasonOf(Check(plan)), "BLOCK_RANGE") << "nobody wants it";
}

// So a worker that drops the hint finds the digest right.
TEST(StepPlanDigestTest, ASpareWindowDoesNotCount) {
  StepPlan plan;
  plan.releases = {1};
  const uint64_t without = DigestOf(plan);

  plan.spare = {.handle = 1, .block_ids = {2}};

  EXPECT_EQ(DigestOf(plan), without);
}

TEST(StepPlanDigestTest, NextBlocksCountWhereTheyAre) {
  StepPlan plan;
  plan.slices = {{.handle = 1, .num_tokens = 2},
                 {.handle = 3, .num_tokens = 4, .new_block_ids = {5}, .forced_token_id = 6}};
  const uint64_t without = DigestOf(plan);
  EXPECT_EQ(without, 0xAB2E1A2BB892ED13) << "as it was before there were any";
  plan.slices[0].next_block_id = 1;
  const uint64_t first = DigestOf(plan);
  plan.slices[0].next_block_id = 2;
  const uint64_t another = DigestOf(plan);
  plan.slices[0].next_block_id.reset();
  plan.slices[1].next_block_id = 1;

  EXPECT_EQ((std::set<uint64_t>{without, first, another, DigestOf(plan)}).size(), 4U);
}

TEST_F(StepPlanCheckTest, ACopiedBlockMayBeWrittenInTheSameStep) {
  StepPlan plan = GoodPlan();
  plan.introductions[0].num_computed_tokens = 3;  // so that the slice writes block 11, a copy
  plan.slices[2].num_tokens = 2;

  EXPECT_TRUE(Check(plan).ok()) << Check(plan);
}

// Blocks of 4 tokens and a window of 5: the token at position p reads p - 4 to p.
class WindowedPlanCheckTest : public testing::Test {
 protected:
  // 12 of 14 tokens are computed: the next reads from position 8 on, in block 2 of the table.
  static StepPlan Introduce(std::vector<BlockId> block_ids) {
    StepPlan plan;
    plan.introductions = {{.handle = 0,
                           .token_ids = std::vector<TokenId>(14, 3),
                           .num_prompt_tokens = 14,
                           .num_computed_tokens = 12,
                           .block_ids = std::move(block_ids)}};
    return plan;
  }

  absl::Status Check(const StepPlan& plan) {
    return checker_.Check(plan, [this](SequenceHandle handle) {
      return handle == 1 ? std::optional<KnownSequence>(known_) : std::nullopt;
    });
  }

  StepLimits limits_ = [] {
    StepLimits limits = kLimits;
    limits.sliding_window = 5;
    return limits;
  }();
  StepPlanChecker checker_{limits_};
  std::vector<BlockId> known_blocks_ = {7, 8, 9};
  KnownSequence known_ = {
      .num_known_tokens = 13, .num_computed_tokens = 12, .block_ids = known_blocks_};
};

TEST_F(WindowedPlanCheckTest, NullBlocksAreOnlyWhereTheWindowHasPassed) {
  EXPECT_TRUE(Check(Introduce({0, 0, 4})).ok()) << Check(Introduce({0, 0, 4}));
  EXPECT_TRUE(Check(Introduce({5, 6, 4})).ok());
  EXPECT_EQ(ReasonOf(Check(Introduce({0, 0, 0}))), "BLOCK_RANGE");
  EXPECT_EQ(ReasonOf(Check(Introduce({0, 32, 4}))), "BLOCK_RANGE");
  EXPECT_EQ(ReasonOf(Check(Introduce({0, -1, 4}))), "BLOCK_RANGE");
  StepPlan plan;
  plan.slices = {{.handle = 1, .num_tokens = 1, .new_block_ids = {0}}};
  EXPECT_EQ(ReasonOf(Check(plan)), "BLOCK_RANGE");
}

TEST_F(WindowedPlanCheckTest, WithoutAWindowThereIsNoNullBlock) {
  limits_.sliding_window = 0;
  checker_ = StepPlanChecker(limits_);
  EXPECT_EQ(ReasonOf(Check(Introduce({0, 0, 4}))), "BLOCK_RANGE");
}

TEST_F(WindowedPlanCheckTest, APassedBlockMayComeBackAsANewOne) {
  StepPlan plan;
  plan.slices = {{.handle = 1, .num_tokens = 1, .new_block_ids = {7}}};
  EXPECT_TRUE(Check(plan).ok()) << Check(plan);
  plan.slices[0].new_block_ids = {9};
  EXPECT_EQ(ReasonOf(Check(plan)), "BLOCK_CONFLICT") << "the next token still reads it";
}

struct BadLimits {
  std::string field;
  std::function<void(StepLimits&)> spoil;
};

TEST(StepLimitsTest, EveryLimitIsChecked) {
  ASSERT_TRUE(Validate(kLimits).ok());
  const std::vector<BadLimits> cases = {
      {"num_blocks", [](auto& l) { l.num_blocks = 1; }},
      {"num_blocks", [](auto& l) { l.num_blocks = kMinInt; }},
      {"num_blocks", [](auto& l) { l.num_blocks = kMaxInt; }},
      {"num_host_blocks", [](auto& l) { l.num_host_blocks = -1; }},
      {"num_host_blocks", [](auto& l) { l.num_host_blocks = kMaxInt; }},
      {"block_size_tokens", [](auto& l) { l.block_size_tokens = 0; }},
      {"block_size_tokens", [](auto& l) { l.block_size_tokens = 12; }},
      {"block_size_tokens", [](auto& l) { l.block_size_tokens = 512; }},
      {"max_sequences", [](auto& l) { l.max_sequences = 0; }},
      {"max_sequences", [](auto& l) { l.max_sequences = 4097; }},
      {"max_tokens_per_step", [](auto& l) { l.max_tokens_per_step = 0; }},
      {"max_tokens_per_step", [](auto& l) { l.max_tokens_per_step = kMaxInt; }},
      {"max_model_len_tokens", [](auto& l) { l.max_model_len = -1; }},
      {"max_model_len_tokens", [](auto& l) { l.max_model_len = kMaxInt; }},
      {"vocab_size", [](auto& l) { l.vocab_size = 0; }},
      {"sliding_window_tokens", [](auto& l) { l.sliding_window = -1; }},
      {"sliding_window_tokens", [](auto& l) { l.sliding_window = kMaxInt; }},
      {"blocks_per_page", [](auto& l) { l.blocks_per_page = 0; }},
      {"blocks_per_page", [](auto& l) { l.blocks_per_page = 12; }},
      {"blocks_per_page", [](auto& l) { l.blocks_per_page = 2 * kMaxBlocksPerPage; }},
  };
  for (const BadLimits& bad : cases) {
    StepLimits limits = kLimits;
    bad.spoil(limits);

    absl::Status status = Validate(limits);

    EXPECT_EQ(ReasonOf(status), "STEP_LIMITS") << bad.field;
    EXPECT_EQ(std::string(status.message()).substr(0, bad.field.size() + 2), bad.field + ": ");
  }
}

}  // namespace
}  // namespace quire
