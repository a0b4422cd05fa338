// Steps whose inputs the executor prepared before their plan arrived: which plans are taken for the
// predicted one, and that every plan gives the tokens that it gives without preparation.
#include "worker/runtime/next_step.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/random.h"
#include "tests/support/with_digest.h"
#include "tests/worker/runtime/fake_model.h"
#include "tests/worker/runtime/late_backend.h"
#include "worker/runtime/step_executor.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 4;
constexpr int32_t kNumBlocks = 64;
constexpr int32_t kNumHostBlocks = 2;
constexpr int32_t kMaxSequences = 6;
constexpr int32_t kMaxModelLen = 40;

// A backend that wants to begin steps ahead, like a GPU.
class AheadBackend : public LateBackend {
 public:
  AheadBackend() : LateBackend(CreateReferenceBackend()) {}
  bool begins_ahead() const override { return true; }
};

class LastStep : public StepObserver {
 public:
  void OnEpoch(const EpochObservation& /*epoch*/) override {}
  void OnStep(const ExecutedStep& step) override { was_prepared = step.was_prepared; }

  bool was_prepared = false;
};

class NextStepTest : public testing::Test {
 protected:
  // A sequence as the scheduler knows it.
  struct Known {
    std::vector<TokenId> tokens;
    int32_t num_computed = 0;
    std::vector<BlockId> blocks;

    bool NeedsBlock(int32_t num_more) const {
      return num_computed + num_more > static_cast<int32_t>(blocks.size()) * kBlockSize;
    }
  };

  NextStepTest() {
    EXPECT_TRUE(BeginEpoch(1).ok());
    model_.OnRun([this](const Batch& batch) { CheckBatch(batch); });
  }

  // Compares the batch, which may have been built before its plan arrived, with one that is built
  // now, after the plan has changed the sequences.
  void CheckBatch(const Batch& batch) {
    auto& sequences = const_cast<SequenceTable&>(*executor_.sequences());
    std::vector<ScheduledSlice> slices;
    for (const SequenceSlice& slice : last_.slices) {
      slices.push_back({.handle = slice.handle,
                        .num_tokens = slice.num_tokens,
                        .sequence = sequences.Find(slice.handle)});
    }
    Batch expected;
    BuildBatch(slices, kBlockSize, BlockLookup::kTables, &expected);
    for (const SequenceIntroduction& introduction : last_.introductions) {
      expected.shares_new_tokens |= introduction.num_computed_tokens > 0;
    }
    EXPECT_EQ(batch, expected);
  }

  absl::Status BeginEpoch(uint64_t group_epoch, int32_t num_blocks = kNumBlocks) {
    return executor_.BeginEpoch({.scheduler_incarnation = 1,
                                 .group_epoch = group_epoch,
                                 .limits = {.num_blocks = num_blocks,
                                            .num_host_blocks = kNumHostBlocks,
                                            .block_size_tokens = kBlockSize,
                                            .max_sequences = kMaxSequences,
                                            .max_tokens_per_step = 64,
                                            .max_model_len = kMaxModelLen,
                                            .wants_next_blocks = true},
                                 .kv_cache_dtype = DType::kF32});
  }

  BlockId TakeBlock() {
    const BlockId block = free_blocks_.back();
    free_blocks_.pop_back();
    return block;
  }

  void Introduce(SequenceHandle handle, std::vector<TokenId> tokens, StepPlan* plan) {
    SamplingParams greedy;
    greedy.temperature = 0.0F;
    plan->introductions.push_back({.handle = handle,
                                   .token_ids = tokens,
                                   .num_prompt_tokens = static_cast<int32_t>(tokens.size()),
                                   .sampling = greedy});
    known_[handle] = {.tokens = std::move(tokens)};
  }

  void AddSlice(SequenceHandle handle, int32_t num_tokens, StepPlan* plan) {
    Known& known = known_[handle];
    SequenceSlice slice{.handle = handle, .num_tokens = num_tokens};
    while (known.NeedsBlock(num_tokens)) {
      const auto hint = hints_.extract(handle);
      slice.new_block_ids.push_back(hint.empty() ? TakeBlock() : hint.mapped());
      known.blocks.push_back(slice.new_block_ids.back());
    }
    plan->slices.push_back(std::move(slice));
  }

  // Names the block that each sequence of the plan will append if it needs one in the next step.
  void AddHints(StepPlan* plan) {
    for (SequenceSlice& slice : plan->slices) {
      if (known_[slice.handle].NeedsBlock(slice.num_tokens + 1)) {
        slice.next_block_id = TakeBlock();
        hints_[slice.handle] = *slice.next_block_id;
      }
    }
  }

  // Makes the hints wrong: the sequences will get other blocks.
  void BreakHints() {
    for (const auto& [handle, block] : hints_) {
      free_blocks_.insert(free_blocks_.begin(), block);
    }
    hints_.clear();
  }

  // Executes the plan as the epoch's next step, and compares its tokens with the model's rule.
  void Execute(StepPlan plan) {
    for (SequenceSlice& slice : plan.slices) {
      Known& known = known_[slice.handle];
      if (slice.forced_token_id.has_value()) {
        known.tokens.back() = *slice.forced_token_id;
      }
      known.num_computed += slice.num_tokens;
    }
    plan.header = {.scheduler_incarnation = 1,
                   .group_epoch = executor_.order().group_epoch(),
                   .step_id = executor_.order().last_done() + 1};
    last_ = WithDigest(plan);
    const absl::StatusOr<const StepResult*> result = executor_.Execute(last_);
    ASSERT_TRUE(result.ok()) << result.status();
    size_t next = 0;
    for (const SequenceSlice& slice : plan.slices) {
      Known& known = known_[slice.handle];
      if (known.num_computed == static_cast<int32_t>(known.tokens.size())) {
        ASSERT_LT(next, (*result)->sampled.size());
        ASSERT_EQ((*result)->sampled[next].handle, slice.handle);
        ASSERT_EQ((*result)->sampled[next++].token_id, FakeModel::NextToken(known.tokens));
        known.tokens.push_back(FakeModel::NextToken(known.tokens));
      }
    }
    for (const SequenceHandle handle : plan.releases) {
      free_blocks_.insert(
          free_blocks_.begin(), known_[handle].blocks.begin(), known_[handle].blocks.end());
      known_.erase(handle);
    }
  }

  // A plan in which each sequence decodes one token.
  StepPlan Decodes(const std::vector<SequenceHandle>& handles) {
    StepPlan plan;
    for (const SequenceHandle handle : handles) {
      AddSlice(handle, 1, &plan);
    }
    return plan;
  }

  // Prefills two sequences: sequence 2 fills its first block in the next step, sequence 1 in the
  // step after it.
  void Prefill() {
    StepPlan plan;
    Introduce(2, {3, 1, 4}, &plan);
    Introduce(1, {5, 9}, &plan);
    AddSlice(2, 3, &plan);
    AddSlice(1, 2, &plan);
    AddHints(&plan);
    Execute(plan);
    executor_.WhenAnswered();
  }

  // Decodes one token of both sequences of Prefill, with hints for the next step.
  void DecodeBoth() {
    StepPlan plan = Decodes({2, 1});
    AddHints(&plan);
    Execute(plan);
    executor_.WhenAnswered();
  }

  LastStep observed_;
  FakeModel model_;
  AheadBackend backend_;
  StepExecutor executor_{model_,
                         backend_,
                         {.bytes = 1 << 20, .swap_space_bytes = 1 << 20},
                         nullptr,
                         nullptr,
                         &observed_};
  std::map<SequenceHandle, Known> known_;
  std::map<SequenceHandle, BlockId> hints_;  // the last plan's, which later slices keep to
  std::vector<BlockId> free_blocks_ = [] {
    std::vector<BlockId> blocks;
    for (BlockId block = kNumBlocks - 1; block > kNullBlockId; --block) {
      blocks.push_back(block);
    }
    return blocks;
  }();
  StepPlan last_;
};

TEST_F(NextStepTest, ASteadyDecodeBeginsEachStepBeforeItsPlan) {
  Prefill();
  EXPECT_FALSE(observed_.was_prepared);
  for (int step = 0; step < 12; ++step) {
    DecodeBoth();
    EXPECT_TRUE(observed_.was_prepared) << step;
    EXPECT_EQ(model_.num_begins(), model_.num_runs() + 1) << "no step begins twice";
  }
}

// Each plan differs in one thing from the step that was prepared.
TEST_F(NextStepTest, AnyOtherPlanIsBuiltAnew) {
  struct Case {
    const char* name;
    std::function<void(StepPlan*)> make;
  };
  const std::vector<Case> cases = {
      {"another order",
       [&](StepPlan* plan) {
         *plan = Decodes({1, 2});
       }},
      {"a sequence is missing", [&](StepPlan* plan) { *plan = Decodes({2}); }},
      {"no sequence is left", [&](StepPlan* /*plan*/) {}},
      {"another block",
       [&](StepPlan* plan) {
         BreakHints();
         *plan = Decodes({2, 1});
       }},
      {"a forced token",
       [&](StepPlan* plan) {
         *plan = Decodes({2, 1});
         plan->slices[1].forced_token_id = 7;
       }},
      {"a new sequence",
       [&](StepPlan* plan) {
         Introduce(3, {2, 6, 5, 3, 5}, plan);
         StepPlan decodes = Decodes({2, 1});
         plan->slices = std::move(decodes.slices);
         AddSlice(3, 5, plan);
       }},
      {"a new sequence with the handle and blocks of another", [&](StepPlan* plan) {
         known_[1].tokens.back() = (known_[1].tokens.back() + 1) % FakeModel::kVocabSize;
         const Known known = known_[1];
         Introduce(1, known.tokens, plan);
         plan->introductions[0].num_computed_tokens = known.num_computed;
         plan->introductions[0].block_ids = known.blocks;
         known_[1] = known;
         plan->slices = Decodes({2, 1}).slices;
       }}};
  uint64_t epoch = 1;
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    ASSERT_TRUE(BeginEpoch(++epoch).ok());
    known_.clear();
    hints_.clear();
    Prefill();
    DecodeBoth();
    ASSERT_TRUE(observed_.was_prepared);
    StepPlan plan;
    each.make(&plan);
    Execute(plan);
    EXPECT_FALSE(observed_.was_prepared);
  }
}

TEST_F(NextStepTest, NothingIsPreparedWithoutAPrediction) {
  Prefill();
  const auto prepares = [&](const StepPlan& plan) {
    Execute(plan);
    const int num_begins = model_.num_begins();
    executor_.WhenAnswered();
    return model_.num_begins() > num_begins;
  };
  StepPlan without_hint = Decodes({2, 1});  // sequence 2 has filled its first block
  EXPECT_FALSE(prepares(without_hint));
  StepPlan with_hint = Decodes({2, 1});
  AddHints(&with_hint);
  EXPECT_TRUE(prepares(with_hint));
  StepPlan forced = Decodes({2, 1});
  AddHints(&forced);
  forced.slices[0].forced_token_id = 7;
  EXPECT_FALSE(prepares(forced)) << "the next plan will force tokens, too";
  StepPlan release = Decodes({2, 1});
  release.releases = {1};
  EXPECT_FALSE(prepares(release));
  EXPECT_FALSE(prepares({})) << "a step without slices";
  StepPlan chunk = Decodes({2});
  Introduce(4, {1, 2, 3, 4, 5, 6, 7}, &chunk);
  AddSlice(4, 4, &chunk);
  AddHints(&chunk);
  EXPECT_FALSE(prepares(chunk)) << "the rest of a prompt has 3 tokens";
  StepPlan up_to_last_token = Decodes({2});
  AddSlice(4, 2, &up_to_last_token);
  AddHints(&up_to_last_token);
  EXPECT_TRUE(prepares(up_to_last_token)) << "the rest of a prompt has 1 token";
  while (known_[2].num_computed < kMaxModelLen - 1) {
    StepPlan plan = Decodes({2});
    AddHints(&plan);
    const bool is_prepared = prepares(plan);
    EXPECT_EQ(is_prepared, known_[2].num_computed < kMaxModelLen - 1);
  }
}

TEST_F(NextStepTest, RefusedPlansAndReplaysKeepThePreparedStep) {
  Prefill();
  DecodeBoth();
  StepPlan bad = last_;
  bad.header.step_id += 1;
  bad.slices[0].handle = 5;
  EXPECT_FALSE(executor_.Execute(WithDigest(bad)).ok());
  EXPECT_TRUE(executor_.Execute(last_).ok());
  executor_.WhenAnswered();
  EXPECT_EQ(model_.num_begins(), model_.num_runs() + 1);
  DecodeBoth();
  EXPECT_TRUE(observed_.was_prepared);
}

TEST_F(NextStepTest, AnEpochThatCannotBeginEndsThePreparation) {
  Prefill();
  DecodeBoth();
  EXPECT_FALSE(BeginEpoch(2, /*num_blocks=*/1 << 20).ok());
  DecodeBoth();
  EXPECT_FALSE(observed_.was_prepared) << "the refused epoch may have moved the inputs";
  DecodeBoth();
  EXPECT_TRUE(observed_.was_prepared);
}

// The plan is the prepared one, but its copy or swap changes blocks that the slices read.
TEST_F(NextStepTest, CopiesAndSwapsOfAPreparedPlanComeBeforeItsSlices) {
  for (const bool swaps : {false, true}) {
    SCOPED_TRACE(swaps ? "swap" : "copy");
    ASSERT_TRUE(BeginEpoch(swaps ? 3 : 2).ok());
    known_.clear();
    hints_.clear();
    Prefill();
    for (int step = 0; step < kBlockSize; ++step) {
      DecodeBoth();
    }
    const BlockId from = known_[1].blocks[0];
    const BlockId to = known_[2].blocks[0];
    StepPlan plan = Decodes({2, 1});
    if (swaps) {
      AddHints(&plan);
      plan.swap_outs = {{.block = from, .host_block = 1}};
      Execute(plan);
      executor_.WhenAnswered();
      plan = Decodes({2, 1});
      plan.swap_ins = {{.block = to, .host_block = 1, .generation = executor_.order().last_done()}};
    } else {
      plan.copies = {{.src = from, .dst = to}};
    }
    // The model reads tokens from the cache.
    std::copy_n(known_[1].tokens.begin(), kBlockSize, known_[2].tokens.begin());
    AddHints(&plan);
    Execute(plan);
    EXPECT_TRUE(observed_.was_prepared);
    for (int step = 0; step < kBlockSize; ++step) {
      executor_.WhenAnswered();
      DecodeBoth();  // a single token could be equal by chance
    }
  }
}

TEST_F(NextStepTest, AReplayAfterAnEpochWithoutMemoryPreparesNothing) {
  Prefill();
  DecodeBoth();
  model_.OnReserve([](const StepBounds& /*bounds*/) {
    return Error(absl::StatusCode::kResourceExhausted, "MEMORY", "no room for steps");
  });
  EXPECT_FALSE(BeginEpoch(2).ok());
  const int num_begins = model_.num_begins();
  static_cast<void>(executor_.Execute(last_));
  executor_.WhenAnswered();
  EXPECT_EQ(model_.num_begins(), num_begins);
}

// Sequences come and go, hints are wrong or missing, and the scheduler may be quicker than the
// preparation. Execute compares each token.
TEST_F(NextStepTest, RandomPlansGiveTheTokensOfPlansThatWereNotPrepared) {
  Random random(7);
  int num_prepared = 0;
  for (int step = 0; step < 4000; ++step) {
    StepPlan plan;
    const bool is_steady = random.Below(4) > 0;
    std::vector<SequenceHandle> order;
    for (const auto& [handle, known] : known_) {
      if (is_steady || random.Below(4) > 0) {
        order.push_back(handle);
      }
    }
    if (!is_steady && random.OneIn(3)) {
      std::reverse(order.begin(), order.end());
    }
    if (random.OneIn(5)) {
      BreakHints();
    }
    const SequenceHandle fresh = random.Below(kMaxSequences);
    if (!is_steady && !known_.contains(fresh)) {
      std::vector<TokenId> tokens;
      for (int32_t i = 0, count = 1 + random.Below(9); i < count; ++i) {
        tokens.push_back(random.Below(FakeModel::kVocabSize));
      }
      Introduce(fresh, std::move(tokens), &plan);
      order.push_back(fresh);
    }
    for (const SequenceHandle handle : order) {
      const Known& known = known_[handle];
      const auto gap = static_cast<int32_t>(known.tokens.size()) - known.num_computed;
      AddSlice(handle, is_steady ? gap : 1 + random.Below(gap), &plan);
      const auto num_tokens = static_cast<int32_t>(known.tokens.size());
      if (num_tokens + 1 >= kMaxModelLen || random.OneIn(40)) {
        plan.releases.push_back(handle);
      } else if (!is_steady && plan.introductions.empty() && gap == 1 && random.OneIn(6)) {
        plan.slices.back().forced_token_id = random.Below(FakeModel::kVocabSize);
      }
    }
    if (random.Below(8) > 0) {
      AddHints(&plan);
    }
    ASSERT_NO_FATAL_FAILURE(Execute(plan)) << step;
    num_prepared += observed_.was_prepared ? 1 : 0;
    for (const SequenceHandle handle : plan.releases) {
      if (const auto hint = hints_.extract(handle); !hint.empty()) {
        free_blocks_.insert(free_blocks_.begin(), hint.mapped());
      }
    }
    if (random.Below(8) > 0) {
      executor_.WhenAnswered();
    }
  }
  EXPECT_GT(num_prepared, 400);
  EXPECT_LT(num_prepared, 3600);
}

}  // namespace
}  // namespace quire
