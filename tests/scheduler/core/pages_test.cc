// Sequences whose blocks share pages, which workers map as a whole.
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/step_planner.h"
#include "tests/scheduler/core/core_fixture.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// 60 blocks of 4 tokens in pages of 8 blocks. The null block's page and the last one are not whole.
class PagesTest : public CoreFixture {
 protected:
  PagesTest() {
    limits_.num_blocks = 61;
    limits_.max_model_len = 100;
    limits_.max_tokens_per_step = 100;
    limits_.wants_next_blocks = true;
    limits_.blocks_per_page = 8;
    state_.config.prefix_caching = true;
    BeginEpoch(limits_);
  }

  void AddAlike(uint64_t id, int32_t num_tokens, int32_t max_tokens = 9) {
    state_.Add({.id = RequestId(id),
                .prompt_token_ids = std::vector<TokenId>(static_cast<size_t>(num_tokens), 5),
                .max_tokens = max_tokens});
  }

  // Plans a step and answers it.
  StepPlan Step() {
    StepPlan plan = Plan().value();
    Apply(Answer(5));
    return plan;
  }
};

TEST_F(PagesTest, ASequenceFillsAPageBeforeItOpensAnother) {
  Add({.id = 1, .prompt = 40, .max_tokens = 9});

  EXPECT_THAT(Step().slices[0].new_block_ids, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15, 16, 17));
  const StepPlan plan = Step();
  EXPECT_THAT(plan.slices[0].new_block_ids, ElementsAre(18));
  EXPECT_EQ(plan.spare.block_ids.front(), 24) << "a new sequence opens another page";
}

// 58 sequences share a beginning that ends inside a page. All would move to pages of their own.
TEST_F(PagesTest, AStepHasAtMostSoManyCopiesToOtherPages) {
  StepLimits limits = limits_;
  limits.num_blocks = 1 << 17;
  limits.block_size_tokens = 1;
  limits.max_sequences = 64;
  limits.max_model_len = 2100;
  limits.max_tokens_per_step = 2100;
  limits.blocks_per_page = 2048;
  BeginEpoch(limits);
  AddAlike(1, 2001);
  Step();
  Step();
  for (uint64_t id = 2; id < 60; ++id) {
    AddAlike(id, 2001);
  }

  const StepPlan plan = Plan().value();

  EXPECT_GT(plan.introductions.size(), 3U);
  EXPECT_EQ(plan.copies.size(), 4000U) << "two sequences of 2000 blocks";
}

TEST_F(PagesTest, ASharedBeginningThatEndsInsideAPageIsCopiedToAnother) {
  AddAlike(1, 22);
  Step();
  AddAlike(2, 22);

  const StepPlan plan = Step();

  EXPECT_THAT(plan.copies,
              ElementsAre(BlockCopy{8, 32},
                          BlockCopy{9, 33},
                          BlockCopy{10, 34},
                          BlockCopy{11, 35},
                          BlockCopy{12, 36}));
  EXPECT_THAT(plan.introductions[0].block_ids, ElementsAre(32, 33, 34, 35, 36));
  EXPECT_EQ(plan.introductions[0].num_computed_tokens, 20);
  EXPECT_THAT(plan.slices[1].new_block_ids, ElementsAre(37));
  EXPECT_EQ(state_.counters.num_blocks_copied, 5);
}

TEST_F(PagesTest, WholePagesOfABeginningAreShared) {
  AddAlike(1, 33);
  Step();
  AddAlike(2, 33);

  const StepPlan plan = Step();

  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_THAT(plan.introductions[0].block_ids, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
}

TEST_F(PagesTest, AnEndedSequencesPageIsContinued) {
  AddAlike(1, 22, /*max_tokens=*/1);
  Step();
  AddAlike(2, 22);

  const StepPlan plan = Step();

  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_THAT(plan.introductions[0].block_ids, ElementsAre(8, 9, 10, 11, 12));
  EXPECT_THAT(plan.slices[0].new_block_ids, ElementsAre(13));
}

// The worker copies before it computes.
TEST_F(PagesTest, BlocksThatTheStepComputesAreSharedButNotCopied) {
  AddAlike(1, 22);
  AddAlike(2, 22);

  const StepPlan plan = Step();

  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_THAT(plan.introductions[1].block_ids, ElementsAre(8, 9, 10, 11, 12));
}

TEST_F(PagesTest, EachForkMovesToAPageOfItsOwn) {
  Add({.id = 1, .prompt = 11, .max_tokens = 9, .num_sequences = 3});
  Step();

  const StepPlan plan = Step();

  EXPECT_THAT(plan.copies,
              ElementsAre(BlockCopy{8, 32},
                          BlockCopy{9, 33},
                          BlockCopy{10, 34},
                          BlockCopy{8, 40},
                          BlockCopy{9, 41},
                          BlockCopy{10, 42}));
  EXPECT_THAT(plan.introductions[0].block_ids, ElementsAre(32, 33, 34));
  EXPECT_THAT(plan.introductions[1].block_ids, ElementsAre(40, 41, 42));
  EXPECT_THAT(plan.slices[2].new_block_ids, IsEmpty()) << "the first one writes into block 10";
}

TEST_F(PagesTest, NothingIsCopiedIfTooFewBlocksAreFree) {
  AddAlike(1, 22);
  Step();
  BlockTable others;  // leaves a whole page, and fewer blocks than the largest step takes
  ASSERT_TRUE(state_.epoch->kv_cache.Append(others, 32 * 4).has_value());
  ASSERT_EQ(state_.epoch->kv_cache.pool().num_whole_pages(), 1);
  state_.Add(
      {.id = RequestId(2), .prompt_token_ids = std::vector<TokenId>(22, 5), .max_tokens = 9});

  const StepPlan plan = Step();

  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_EQ(plan.introductions.size(), 1U) << "no sequence waits for a page";
  state_.epoch->kv_cache.Free(others);
}

}  // namespace
}  // namespace quire
