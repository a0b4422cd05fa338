// What "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et
// al., SOSP 2023) says, sentence by sentence, in its own numbers. Each test has three parts, after
// etcd raft's paper tests: init, test, check.
#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "scheduler/kv_cache/kv_cache_manager.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kBlockSize = 4;

// A core over a pool of so many blocks of 4 tokens, and a worker.
class PaperCore {
 public:
  explicit PaperCore(int32_t num_usable_blocks, int32_t max_tokens_per_step = 64)
      : limits_{.num_blocks = num_usable_blocks + 1,
                .block_size_tokens = kBlockSize,
                .max_sequences = 8,
                .max_tokens_per_step = max_tokens_per_step,
                .max_model_len = 64,
                .vocab_size = 1000},
        core_({.watermark = 0.0}),
        worker_(limits_) {
    core_.BeginEpoch(1, 1, limits_);
  }

  SchedulerCore& core() { return core_; }

  StepPlan Step() {
    std::optional<StepPlan> plan = core_.PlanStep(0);
    if (!plan.has_value()) {
      ADD_FAILURE() << "nothing to do";
      return {};
    }
    absl::StatusOr<StepResult> result = worker_.Execute(*plan);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(core_.ApplyStepResult(*result).ok());
    core_.CheckInvariants();
    return *std::move(plan);
  }

  // The requests of the introduced sequences, in order.
  static std::vector<uint64_t> IntroducedIn(const StepPlan& plan) {
    std::vector<uint64_t> ids;
    for (const SequenceIntroduction& introduction : plan.introductions) {
      ids.push_back(introduction.sampling.seed);
    }
    return ids;
  }

 private:
  StepLimits limits_;
  SchedulerCore core_;
  FakeWorker worker_;
};

// Section 4.3, figure 6: "the prompt has 7 tokens, so vLLM maps the first 2 logical KV blocks (0
// and 1) to 2 physical KV blocks (7 and 1, respectively)"; the first decoded token goes into the
// last slot of block 1, and the second into a new block, 3.
TEST(PaperTest, Figure6BlockTableTranslation) {
  // init
  KvCacheManager manager(BlockPool(9, std::vector<BlockId>{7, 1, 3, 2, 4, 5, 6, 8}), kBlockSize);
  BlockTable table;

  // test and check: the prompt
  ASSERT_TRUE(manager.Append(table, 7).has_value());
  EXPECT_THAT(table.block_ids(), ElementsAre(7, 1));
  EXPECT_EQ(table.NumFilled(0, kBlockSize), 4);
  EXPECT_EQ(table.NumFilled(1, kBlockSize), 3);

  // test and check: the first decoding step fills the reserved slot
  auto new_blocks = manager.Append(table, 1);
  ASSERT_TRUE(new_blocks.has_value());
  EXPECT_THAT(*new_blocks, IsEmpty());
  EXPECT_EQ(table.NumFilled(1, kBlockSize), 4);

  // test and check: the second needs a new block, and its mapping is appended
  new_blocks = manager.Append(table, 1);
  ASSERT_TRUE(new_blocks.has_value());
  EXPECT_THAT(*new_blocks, ElementsAre(3));
  EXPECT_THAT(table.block_ids(), ElementsAre(7, 1, 3));
  EXPECT_EQ(table.NumFilled(2, kBlockSize), 1);
}

// Section 4.3, figure 7: two requests at the same time; "the logical blocks of the two sequences
// are mapped to different physical blocks", and neighbouring logical blocks need not be contiguous.
TEST(PaperTest, Figure7TwoRequestsShareThePhysicalMemory) {
  // init
  KvCacheManager manager(BlockPool(9, std::vector<BlockId>{7, 1, 5, 2, 3, 4, 6, 8}), kBlockSize);
  BlockTable a;
  BlockTable b;

  // test: A's prompt of 7 tokens, B's of 5, then three tokens for A
  ASSERT_TRUE(manager.Append(a, 7).has_value());
  ASSERT_TRUE(manager.Append(b, 5).has_value());
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(manager.Append(a, 1).has_value());
  }

  // check
  EXPECT_THAT(a.block_ids(), ElementsAre(7, 1, 3));
  EXPECT_THAT(b.block_ids(), ElementsAre(5, 2));
  EXPECT_EQ(a.NumFilled(2, kBlockSize), 2);
  EXPECT_EQ(b.NumFilled(1, kBlockSize), 1);
  const BlockTable* tables[] = {&a, &b};
  manager.CheckInvariants(tables);
}

// The same growth through the whole scheduler: what the worker is told in each step.
TEST(PaperTest, Figure6AsStepPlans) {
  // init
  PaperCore paper(8);
  paper.core().AddRequest(MakeRequest({.id = 1, .prompt = 7}));

  // test
  StepPlan prompt = paper.Step();
  StepPlan first = paper.Step();
  StepPlan second = paper.Step();

  // check
  EXPECT_EQ(prompt.slices.at(0).num_tokens, 7);
  EXPECT_THAT(prompt.slices.at(0).new_block_ids, ElementsAre(1, 2));
  EXPECT_EQ(first.slices.at(0).num_tokens, 1);
  EXPECT_THAT(first.slices.at(0).new_block_ids, IsEmpty());
  EXPECT_THAT(second.slices.at(0).new_block_ids, ElementsAre(3));
}

// Section 4.3: "all the blocks are filled from left to right and a new physical block is only
// allocated when all previous blocks are full, vLLM limits all the memory wastes for a request
// within one block".
TEST(PaperTest, WasteIsLessThanOneBlockForEachSequence) {
  // init
  PaperCore paper(60);
  for (uint64_t id = 1; id <= 6; ++id) {
    paper.core().AddRequest(
        MakeRequest({.id = id, .prompt = static_cast<int32_t>(id), .max_tokens = 20}));
  }

  // test and check
  for (int32_t i = 0; i < 19; ++i) {
    paper.Step();
    CoreStats stats = paper.core().stats();
    int64_t num_wasted = int64_t{stats.num_used_blocks} * kBlockSize - stats.num_stored_tokens;
    EXPECT_LE(num_wasted, int64_t{stats.num_running_sequences} * (kBlockSize - 1));
  }
}

// Section 4.3: "once a request finishes its generation, its KV blocks can be freed to store the KV
// cache of other requests".
TEST(PaperTest, BlocksOfAFinishedRequestServeOthers) {
  // init: a pool for one request
  PaperCore paper(2);
  paper.core().AddRequest(MakeRequest({.id = 1, .prompt = 7, .max_tokens = 1}));
  paper.core().AddRequest(MakeRequest({.id = 2, .prompt = 7, .max_tokens = 1}));

  // test
  StepPlan first = paper.Step();
  StepPlan second = paper.Step();

  // check: tails are reused first
  EXPECT_THAT(first.slices.at(0).new_block_ids, ElementsAre(1, 2));
  EXPECT_THAT(second.slices.at(0).new_block_ids, ElementsAre(2, 1));
}

// Section 4.4, figure 8: a forked sequence shares the physical blocks of the prompt, reference
// count 2 each; when one sequence ends, the other keeps them.
TEST(PaperTest, ForkSharesThePromptWithReferenceCounts) {
  // init
  KvCacheManager manager(BlockPool(9, std::vector<BlockId>{7, 1, 3, 2, 4, 5, 6, 8}), kBlockSize);
  BlockTable a1;
  BlockTable a2;
  ASSERT_TRUE(manager.Append(a1, 7).has_value());

  // test
  manager.Fork(a1, a1.num_tokens(), a2);

  // check
  EXPECT_THAT(a2.block_ids(), ElementsAre(7, 1));
  EXPECT_EQ(manager.pool().ref_count(7), 2);
  EXPECT_EQ(manager.pool().ref_count(1), 2);
  EXPECT_EQ(manager.pool().num_used_blocks(), 2);

  // test and check: one ends
  manager.Free(a1);
  EXPECT_EQ(manager.pool().ref_count(7), 1);
  EXPECT_EQ(manager.pool().num_used_blocks(), 2);
}

// Section 4.5: "vLLM adopts the first-come-first-serve (FCFS) scheduling policy for all requests".
TEST(PaperTest, RequestsStartInOrderOfArrival) {
  // init: the second does not fit beside the first, the third would
  PaperCore paper(4);
  paper.core().AddRequest(MakeRequest({.id = 1, .prompt = 8, .max_tokens = 1}));
  paper.core().AddRequest(MakeRequest({.id = 2, .prompt = 12, .max_tokens = 1}));
  paper.core().AddRequest(MakeRequest({.id = 3, .prompt = 4, .max_tokens = 1}));

  // test
  StepPlan first = paper.Step();
  StepPlan second = paper.Step();

  // check
  EXPECT_THAT(PaperCore::IntroducedIn(first), ElementsAre(1));
  EXPECT_THAT(PaperCore::IntroducedIn(second), ElementsAre(2, 3));
}

// Section 4.5: "it ensures that the earliest arrived requests are served first and the latest
// requests are preempted first".
TEST(PaperTest, TheLatestRequestIsPreemptedFirst) {
  // init: three requests whose last blocks are full, in a full pool
  PaperCore paper(3);
  for (uint64_t id = 1; id <= 3; ++id) {
    paper.core().AddRequest(MakeRequest({.id = id, .prompt = 4, .max_tokens = 5}));
  }
  StepPlan start = paper.Step();

  // test: each needs a block
  StepPlan plan = paper.Step();

  // check: request 3 has gone, request 1 computes
  EXPECT_THAT(plan.releases, ElementsAre(start.introductions.at(2).handle));
  ASSERT_EQ(plan.slices.size(), 1U);
  EXPECT_EQ(plan.slices[0].handle, start.introductions.at(0).handle);
}

// Section 4.5: "all-or-nothing eviction policy, i.e., either evict all or none of the blocks of a
// sequence"; "multiple sequences within one request [...] are gang-scheduled as a sequence group
// [...] always preempted or rescheduled together".
TEST(PaperTest, ASequenceGroupIsPreemptedAndRescheduledTogether) {
  // init: request 1 fills 4 blocks, the group of request 2 has 2, the pool is full
  PaperCore paper(6);
  paper.core().AddRequest(MakeRequest({.id = 1, .prompt = 15, .max_tokens = 3}));
  paper.core().AddRequest(MakeRequest({.id = 2, .prompt = 3, .max_tokens = 5, .num_sequences = 2}));
  StepPlan start = paper.Step();
  StepPlan forking = paper.Step();
  ASSERT_EQ(start.introductions.size(), 2U);
  ASSERT_EQ(forking.introductions.size(), 1U);

  // test: request 1 needs one block
  StepPlan preempting = paper.Step();
  StepPlan resuming = paper.Step();

  // check: both sequences went, with all their blocks, and both came back in one step
  EXPECT_THAT(preempting.releases,
              ElementsAre(start.introductions[1].handle, forking.introductions[0].handle));
  EXPECT_EQ(preempting.slices.size(), 1U);
  EXPECT_THAT(PaperCore::IntroducedIn(resuming), ElementsAre(2, 2));
  EXPECT_EQ(paper.core().stats().num_preemptions, 1);
}

// Section 4.5, recomputation: "the tokens generated at decoding can be concatenated with the
// original user prompt as a new prompt - their KV cache at all positions can be generated in one
// prompt phase iteration".
TEST(PaperTest, RecomputationIsOnePromptPhaseOverPromptAndOutput) {
  // init: request 2 has said two tokens when request 1 takes its block
  PaperCore paper(4);
  Request request = MakeRequest({.id = 2, .prompt = 3, .max_tokens = 8});
  paper.core().AddRequest(MakeRequest({.id = 1, .prompt = 11, .max_tokens = 3}));
  paper.core().AddRequest(request);
  paper.Step();
  paper.Step();
  std::vector<TokenId> expected = request.prompt_token_ids;
  for (const OutputEvent& event : paper.core().TakeEvents()) {
    const auto* token = std::get_if<TokenCommitted>(&event);
    if (token != nullptr && token->request_id == request.id) {
      expected.push_back(token->token_id);
    }
  }
  ASSERT_EQ(expected.size(), 5U);

  // test: request 1 needs its fourth block, says its last token, and request 2 returns
  StepPlan preempting = paper.Step();
  StepPlan resuming = paper.Step();

  // check
  EXPECT_EQ(preempting.releases.size(), 1U);
  ASSERT_EQ(resuming.introductions.size(), 1U);
  EXPECT_EQ(resuming.introductions[0].token_ids, expected);
  EXPECT_EQ(resuming.introductions[0].num_prompt_tokens, 3);
  EXPECT_EQ(resuming.introductions[0].num_computed_tokens, 0);
  EXPECT_EQ(resuming.slices.at(0).num_tokens, 5);
}

// Section 4.6: one scheduler holds the block tables; a step's message carries token ids and block
// tables, and from them alone every worker knows the physical block of each token.
TEST(PaperTest, WorkersLearnBlockTablesFromStepMessagesAlone) {
  // init
  PaperCore paper(20, /*max_tokens_per_step=*/6);
  paper.core().AddRequest(MakeRequest({.id = 1, .prompt = 9, .max_tokens = 6}));
  paper.core().AddRequest(MakeRequest({.id = 2, .prompt = 5, .max_tokens = 6}));
  std::map<SequenceHandle, std::pair<std::vector<BlockId>, int32_t>> tables;

  // test
  for (int32_t i = 0; i < 5; ++i) {
    for (const SequenceSlice& slice : paper.Step().slices) {
      auto& [block_ids, num_tokens] = tables[slice.handle];
      block_ids.insert(block_ids.end(), slice.new_block_ids.begin(), slice.new_block_ids.end());
      num_tokens += slice.num_tokens;

      // check: the table just covers the tokens
      EXPECT_EQ(static_cast<int32_t>(block_ids.size()), (num_tokens + kBlockSize - 1) / kBlockSize);
    }
  }
  EXPECT_EQ(tables.size(), 2U);
}

}  // namespace
}  // namespace quire
