#include "worker/runtime/step_executor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/with_digest.h"
#include "tests/worker/runtime/fake_model.h"

namespace quire {
namespace {

constexpr int64_t kPoolBytes = 1 << 20;
constexpr int32_t kBlockSize = 4;

class StepExecutorTest : public testing::Test {
 protected:
  StepExecutorTest()
      : backend_(CreateReferenceBackend()),
        executor_(model_, *backend_, {.bytes = kPoolBytes, .num_blocks_override = 0}) {
    EXPECT_TRUE(executor_.BeginEpoch(Epoch(1)).ok());
  }

  static EpochParams Epoch(uint64_t group_epoch) {
    return {.scheduler_incarnation = 1,
            .group_epoch = group_epoch,
            .limits = {.num_blocks = 20,
                       .block_size_tokens = kBlockSize,
                       .max_sequences = 4,
                       .max_tokens_per_step = 32,
                       .max_model_len = 40},
            .kv_cache_dtype = DType::kF32};
  }

  static SamplingParams Greedy() {
    SamplingParams params;
    params.temperature = 0.0F;
    return params;
  }

  static SequenceIntroduction Introduce(SequenceHandle handle, std::vector<TokenId> token_ids) {
    auto num_tokens = static_cast<int32_t>(token_ids.size());
    return {.handle = handle,
            .token_ids = std::move(token_ids),
            .num_prompt_tokens = num_tokens,
            .num_computed_tokens = 0,
            .block_ids = {},
            .sequence_index = 0,
            .sampling = Greedy()};
  }

  // The plan becomes the next step of the epoch.
  StepPlan Numbered(StepPlan plan) const {
    plan.header = {.scheduler_incarnation = executor_.order().scheduler_incarnation(),
                   .group_epoch = executor_.order().group_epoch(),
                   .step_id = executor_.order().last_done() + 1};
    return plan;
  }

  absl::StatusOr<StepResult> TryExecute(const StepPlan& plan) {
    auto result = executor_.Execute(WithDigest(plan));
    if (!result.ok()) {
      return result.status();
    }
    return **result;
  }

  std::vector<SampledToken> Execute(StepPlan plan) {
    auto result = TryExecute(Numbered(std::move(plan)));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->sampled : std::vector<SampledToken>();
  }

  // Introduces a sequence and computes all its tokens; the sampled token.
  TokenId Prefill(SequenceHandle handle,
                  const std::vector<TokenId>& token_ids,
                  std::vector<BlockId> block_ids) {
    StepPlan plan;
    plan.introductions = {Introduce(handle, token_ids)};
    plan.slices = {{.handle = handle,
                    .num_tokens = static_cast<int32_t>(token_ids.size()),
                    .new_block_ids = std::move(block_ids)}};
    std::vector<SampledToken> sampled = Execute(plan);
    EXPECT_EQ(sampled.size(), 1U);
    return sampled.empty() ? -1 : sampled[0].token_id;
  }

  TokenId Decode(SequenceHandle handle, std::vector<BlockId> new_block_ids) {
    StepPlan plan;
    plan.slices = {{.handle = handle, .num_tokens = 1, .new_block_ids = std::move(new_block_ids)}};
    std::vector<SampledToken> sampled = Execute(plan);
    EXPECT_EQ(sampled.size(), 1U);
    return sampled.empty() ? -1 : sampled[0].token_id;
  }

  FakeModel model_;
  std::unique_ptr<KernelBackend> backend_;
  StepExecutor executor_;
};

// A sequence may be introduced with blocks that another slice of the plan fills.
TEST_F(StepExecutorTest, ABatchSaysThatNewSequencesMayBeginWithBlocksOfTheStep) {
  std::vector<bool> shares;
  model_.OnRun([&](const Batch& batch) { shares.push_back(batch.shares_new_tokens); });
  Prefill(1, {3, 1, 4}, {7});
  StepPlan plan;
  plan.introductions = {Introduce(2, {3, 1, 4, 9, 5})};
  plan.introductions[0].num_computed_tokens = kBlockSize;
  plan.introductions[0].block_ids = {7};
  plan.slices = {{.handle = 1, .num_tokens = 1}, {.handle = 2, .num_tokens = 1}};
  plan.slices[1].new_block_ids = {8};
  Execute(plan);
  Decode(2, {});
  EXPECT_EQ(shares, (std::vector<bool>{false, true, false}));
}

// The epoch has memory for 4 rows of logits, so a slice of 7 tokens takes several passes.
TEST_F(StepExecutorTest, ScoresTheTokensOfAPromptThatOthersPrecede) {
  const std::vector<TokenId> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5};
  const auto is_likeliest = [&tokens](int32_t position) {
    return FakeModel::NextToken(std::span(tokens).first(static_cast<size_t>(position))) ==
           tokens[static_cast<size_t>(position)];
  };
  StepPlan plan;
  plan.introductions = {Introduce(2, tokens), Introduce(1, {8, 8})};
  plan.introductions[0].sampling.num_prompt_logprobs = 1;
  plan.slices = {{.handle = 1, .num_tokens = 2, .new_block_ids = {3}},
                 {.handle = 2, .num_tokens = 7, .new_block_ids = {7, 2}}};
  StepPlan rest;
  rest.slices = {{.handle = 2, .num_tokens = 2, .new_block_ids = {9}}};

  const std::vector<ScoredSlice> first = TryExecute(Numbered(plan)).value().scored;
  const std::vector<ScoredSlice> second = TryExecute(Numbered(rest)).value().scored;

  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(first[0].handle, 2U);
  EXPECT_EQ(first[0].prompt.first_position, 1);
  EXPECT_EQ(first[0].prompt.num_tokens(), 7);
  EXPECT_EQ(second[0].prompt.first_position, 8);
  EXPECT_EQ(second[0].prompt.num_tokens(), 1);
  EXPECT_EQ(model_.rows_asked(), (std::vector<int32_t>{4, 3, 1}));
  PromptLogprobs all = first[0].prompt;
  all.logprobs.push_back(second[0].prompt.logprobs[0]);
  all.top.push_back(second[0].prompt.top.at(0));
  const double log_sum = std::log(std::exp(10.0) + FakeModel::kVocabSize - 1);
  for (int32_t position = 1; position < 9; ++position) {
    const auto i = static_cast<size_t>(position - 1);
    EXPECT_EQ(all.top[i].token_id,
              FakeModel::NextToken(std::span(tokens).first(static_cast<size_t>(position))));
    EXPECT_NEAR(all.top[i].logprob, 10.0 - log_sum, 1e-5);
    EXPECT_NEAR(all.logprobs[i], (is_likeliest(position) ? 10.0 : 0.0) - log_sum, 1e-5);
  }
}

TEST_F(StepExecutorTest, AScoredRowThatIsNotFiniteHasNoLogprob) {
  StepPlan plan;
  plan.introductions = {Introduce(0, {1, 2, 3})};
  plan.introductions[0].sampling.num_prompt_logprobs = 0;
  plan.slices = {{.handle = 0, .num_tokens = 3, .new_block_ids = {7}}};
  model_.PoisonScores();

  const std::vector<ScoredSlice> scored = TryExecute(Numbered(plan)).value().scored;

  ASSERT_EQ(scored.size(), 1U);
  EXPECT_TRUE(std::isnan(scored[0].prompt.logprobs.at(0)));
  EXPECT_TRUE(std::isnan(scored[0].prompt.logprobs.at(1)));
}

TEST_F(StepExecutorTest, DecodesFromTheTokenSampledLast) {
  std::vector<TokenId> tokens = {3, 1, 4, 1, 5};
  tokens.push_back(Prefill(0, tokens, {7, 2}));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(tokens.back(), FakeModel::NextToken(std::span(tokens).first(tokens.size() - 1)));
    bool needs_block = (tokens.size() - 1) % kBlockSize == 0;
    tokens.push_back(Decode(
        0,
        needs_block ? std::vector<BlockId>{static_cast<BlockId>(10 + i)} : std::vector<BlockId>{}));
  }
}

TEST_F(StepExecutorTest, PrefillInPiecesSamplesOnceAndTheSame) {
  const std::vector<TokenId> tokens = {9, 8, 7, 6, 5, 4, 3};
  StepPlan first;
  first.introductions = {Introduce(1, tokens)};
  first.slices = {{.handle = 1, .num_tokens = 5, .new_block_ids = {4, 5}}};
  StepPlan second;
  second.slices = {{.handle = 1, .num_tokens = 2, .new_block_ids = {}}};

  EXPECT_TRUE(Execute(first).empty());
  std::vector<SampledToken> sampled = Execute(second);

  ASSERT_EQ(sampled.size(), 1U);
  EXPECT_EQ(sampled[0].token_id, FakeModel::NextToken(tokens));
  EXPECT_EQ(sampled[0].handle, 1U);
}

TEST_F(StepExecutorTest, SequencesOfOneStepDoNotMix) {
  StepPlan plan;
  const std::vector<TokenId> a = {1, 2, 3};
  const std::vector<TokenId> b = {4, 5, 6, 7, 8, 9};
  const std::vector<TokenId> c = {10};
  plan.introductions = {Introduce(0, a), Introduce(3, b), Introduce(1, c)};
  plan.slices = {{.handle = 3, .num_tokens = 6, .new_block_ids = {1, 2}},
                 {.handle = 0, .num_tokens = 2, .new_block_ids = {3}},  // a piece: no token
                 {.handle = 1, .num_tokens = 1, .new_block_ids = {4}}};

  std::vector<SampledToken> sampled = Execute(plan);

  ASSERT_EQ(sampled.size(), 2U);
  EXPECT_EQ(sampled[0].handle, 3U);
  EXPECT_EQ(sampled[0].token_id, FakeModel::NextToken(b));
  EXPECT_EQ(sampled[1].handle, 1U);
  EXPECT_EQ(sampled[1].token_id, FakeModel::NextToken(c));
}

TEST_F(StepExecutorTest, ASharedPrefixIsReadFromItsBlocks) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  Prefill(0, tokens, {7, 8});
  StepPlan plan;
  std::vector<TokenId> other = {1, 2, 3, 4, 30};
  plan.introductions = {Introduce(1, other)};
  plan.introductions[0].num_computed_tokens = 4;
  plan.introductions[0].block_ids = {7};
  plan.slices = {{.handle = 1, .num_tokens = 1, .new_block_ids = {9}}};

  std::vector<SampledToken> sampled = Execute(plan);

  ASSERT_EQ(sampled.size(), 1U);
  EXPECT_EQ(sampled[0].token_id, FakeModel::NextToken(other));
}

TEST_F(StepExecutorTest, CopiesHappenBeforeTheSlicesThatWriteThem) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  TokenId next = Prefill(0, tokens, {7, 8});
  // A fork: its copy of block 8 gets the same token 5 and then its own sixth token.
  std::vector<TokenId> forked = {1, 2, 3, 4, 5, 33};
  StepPlan plan;
  plan.copies = {{.src = 8, .dst = 9}};
  plan.introductions = {Introduce(1, forked)};
  plan.introductions[0].num_prompt_tokens = 5;
  plan.introductions[0].num_computed_tokens = 5;
  plan.introductions[0].block_ids = {7, 9};
  plan.introductions[0].sequence_index = 1;
  plan.slices = {{.handle = 1, .num_tokens = 1, .new_block_ids = {}},
                 {.handle = 0, .num_tokens = 1, .new_block_ids = {}}};

  std::vector<SampledToken> sampled = Execute(plan);

  ASSERT_EQ(sampled.size(), 2U);
  EXPECT_EQ(sampled[0].token_id, FakeModel::NextToken(forked));
  std::vector<TokenId> original = tokens;
  original.push_back(next);
  EXPECT_EQ(sampled[1].token_id, FakeModel::NextToken(original));
}

TEST_F(StepExecutorTest, AForcedTokenTakesThePlaceOfTheSampledOne) {
  std::vector<TokenId> tokens = {1, 2, 3};
  const TokenId sampled = Prefill(0, tokens, {7});
  const TokenId forced = sampled == 20 ? 21 : 20;
  StepPlan plan;
  plan.slices = {{.handle = 0, .num_tokens = 1, .new_block_ids = {}, .forced_token_id = forced}};

  const std::vector<SampledToken> next = Execute(plan);

  tokens.push_back(forced);
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].token_id, FakeModel::NextToken(tokens));
  tokens.push_back(next[0].token_id);
  EXPECT_EQ(Decode(0, {8}), FakeModel::NextToken(tokens));
}

TEST_F(StepExecutorTest, ASequenceIsForgottenWhenItsHandleIsIntroducedAnew) {
  Prefill(2, {1, 2, 3, 4, 5}, {7, 8});
  const std::vector<TokenId> other = {9, 8};

  EXPECT_EQ(Prefill(2, other, {3}), FakeModel::NextToken(other));
  EXPECT_EQ(executor_.sequences()->num_sequences(), 1);
}

TEST_F(StepExecutorTest, AReleasedHandleIsFreeForTheNextSequence) {
  StepPlan plan;
  plan.introductions = {Introduce(2, {1, 2})};
  plan.slices = {{.handle = 2, .num_tokens = 2, .new_block_ids = {3}}};
  plan.releases = {2};
  Execute(plan);
  EXPECT_EQ(executor_.sequences()->num_sequences(), 0);
  const std::vector<TokenId> tokens = {40, 41, 42};

  EXPECT_EQ(Prefill(2, tokens, {3}), FakeModel::NextToken(tokens));
}

TEST_F(StepExecutorTest, AnEmptyStepIsAPing) {
  auto result = TryExecute(Numbered({}));

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->sampled.empty());
  EXPECT_EQ(result->header.step_id, 1U);
  EXPECT_EQ(result->row_hash, 0U);
  EXPECT_EQ(model_.num_runs(), 0);
}

TEST_F(StepExecutorTest, TheSameStepAgainIsAnsweredFromMemory) {
  StepPlan plan;
  plan.introductions = {Introduce(0, {1, 2})};
  plan.slices = {{.handle = 0, .num_tokens = 2, .new_block_ids = {3}}};
  plan = Numbered(plan);
  auto first = TryExecute(plan);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->row_hash, FakeModel::kRowHash);

  auto again = TryExecute(plan);

  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(model_.num_runs(), 1);
  EXPECT_EQ(executor_.order().last_done(), 1U);
}

TEST_F(StepExecutorTest, TheResultNamesItsStepAndItsPlan) {
  StepPlan plan = Numbered({});

  auto result = TryExecute(plan);

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->header, plan.header);
  EXPECT_EQ(result->plan_digest, DigestOf(plan));
}

struct BadStep {
  std::string reason;
  std::function<void(StepPlan&)> spoil;
};

// Every refused step leaves the worker as it was: the good step after it is the same one, and its
// token is right.
TEST_F(StepExecutorTest, ARefusedStepChangesNothing) {
  std::vector<TokenId> tokens = {3, 1, 4, 1};
  tokens.push_back(Prefill(0, tokens, {7}));
  StepPlan good;
  good.copies = {{.src = 7, .dst = 10}};
  good.introductions = {Introduce(1, {20, 21})};
  good.slices = {{.handle = 0, .num_tokens = 1, .new_block_ids = {8}},
                 {.handle = 1, .num_tokens = 2, .new_block_ids = {9}}};
  good.releases = {1};
  good = Numbered(good);
  const std::vector<BadStep> cases = {
      {"STALE_SCHEDULER", [](auto& p) { p.header.scheduler_incarnation = 0; }},
      {"STALE_GROUP", [](auto& p) { p.header.group_epoch = 2; }},
      {"STEP_GAP", [](auto& p) { p.header.step_id = 3; }},
      {"PROTOCOL_VIOLATION", [](auto& p) { p.header.step_id = 1; }},
      {"BLOCK_RANGE", [](auto& p) { p.copies[0].dst = 20; }},
      {"BLOCK_CONFLICT", [](auto& p) { p.slices[1].new_block_ids = {8}; }},
      {"LENGTH", [](auto& p) { p.slices[0].new_block_ids = {}; }},
      {"TOKEN_ID_RANGE", [](auto& p) { p.introductions[0].token_ids[1] = 50; }},
      {"POSITION_RANGE", [](auto& p) { p.slices[1].num_tokens = 3; }},
      {"STEP_LIMIT", [](auto& p) { p.slices[1].num_tokens = 32; }},
      {"HANDLE", [](auto& p) { p.releases = {2}; }},
      {"TOP_P_RANGE", [](auto& p) { p.introductions[0].sampling.top_p = std::nanf(""); }},
  };
  for (const BadStep& bad : cases) {
    StepPlan plan = good;
    bad.spoil(plan);

    EXPECT_EQ(ReasonOf(TryExecute(plan).status()), bad.reason);
    EXPECT_EQ(executor_.order().last_done(), 1U) << bad.reason;
    EXPECT_EQ(executor_.sequences()->num_sequences(), 1) << bad.reason;
    EXPECT_EQ(executor_.sequences()->View(0)->block_ids.size(), 1U) << bad.reason;
  }
  EXPECT_EQ(model_.num_runs(), 1);

  auto result = TryExecute(good);

  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->sampled.size(), 2U);
  EXPECT_EQ(result->sampled[0].token_id, FakeModel::NextToken(tokens));
}

TEST_F(StepExecutorTest, ANewEpochForgetsSequencesAndEmptiesThePool) {
  Prefill(0, {1, 2, 3}, {7});
  ASSERT_TRUE(executor_.BeginEpoch(Epoch(2)).ok());
  // A sequence that claims block 7 as computed finds zeros there, which the fake model reads as -1.
  StepPlan plan;
  plan.introductions = {Introduce(0, {1, 2, 3, 4, 5})};
  plan.introductions[0].num_computed_tokens = 4;
  plan.introductions[0].block_ids = {7};
  plan.slices = {{.handle = 0, .num_tokens = 1, .new_block_ids = {8}}};

  std::vector<SampledToken> sampled = Execute(plan);

  ASSERT_EQ(sampled.size(), 1U);
  EXPECT_EQ(sampled[0].token_id, FakeModel::NextToken(std::vector<TokenId>{-1, -1, -1, -1, 5}));
}

TEST_F(StepExecutorTest, ARefusedEpochLeavesTheOldOneRunning) {
  std::vector<TokenId> tokens = {1, 2, 3};
  tokens.push_back(Prefill(0, tokens, {7}));
  EpochParams too_large = Epoch(2);
  too_large.limits.num_blocks =
      executor_.sizing().MaxBlocks(*executor_.sizing().SpecFor(4, DType::kF32)) + 1;
  EpochParams too_long = Epoch(2);
  too_long.limits.max_model_len = FakeModel::kMaxPositions + 1;
  EpochParams odd_blocks = Epoch(2);
  odd_blocks.limits.block_size_tokens = 6;
  EpochParams no_sequences = Epoch(2);
  no_sequences.limits.max_sequences = 0;
  EpochParams windowed = Epoch(2);
  windowed.limits.sliding_window = 8;  // but the model has none
  EpochParams roped = Epoch(2);
  roped.rope_length = 40;  // but the model's RoPE depends on no length

  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(Epoch(1))), "STALE_GROUP");
  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(too_large)), "MEMORY");
  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(too_long)), "STEP_LIMITS");
  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(odd_blocks)), "STEP_LIMITS");
  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(no_sequences)), "STEP_LIMITS");
  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(windowed)), "STEP_LIMITS");
  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(roped)), "STEP_LIMITS");

  EXPECT_EQ(Decode(0, {}), FakeModel::NextToken(tokens));
}

// Its pool is the new one's by then, and may be smaller.
TEST_F(StepExecutorTest, AnEpochReservesTheMemoryOfItsStepsFirst) {
  std::vector<StepBounds> asked;
  model_.OnReserve([&asked](const StepBounds& bounds) {
    asked.push_back(bounds);
    return absl::OkStatus();
  });

  ASSERT_TRUE(executor_.BeginEpoch(Epoch(2)).ok());

  const StepBounds limits = {
      .max_tokens = 32, .max_seqs = 4, .max_context_tokens = 40, .max_blocks_per_seq = 10};
  EXPECT_EQ(asked, std::vector<StepBounds>{limits});
}

// The pool of the old epoch may have the memory that the new epoch's steps need.
TEST_F(StepExecutorTest, AnEpochWithoutMemoryForItsStepsFreesTheOldPoolAndTriesAgain) {
  int num_calls = 0;
  model_.OnReserve([&num_calls](const StepBounds& /*bounds*/) {
    return ++num_calls == 1
               ? Error(absl::StatusCode::kResourceExhausted, "MEMORY", "no room for steps")
               : absl::OkStatus();
  });
  ASSERT_TRUE(executor_.BeginEpoch(Epoch(2)).ok());
  EXPECT_EQ(num_calls, 2);
  EXPECT_EQ(Prefill(1, {5, 6, 7}, {2}), FakeModel::NextToken(std::vector<TokenId>{5, 6, 7}));

  model_.OnReserve([](const StepBounds& /*bounds*/) {
    return Error(absl::StatusCode::kResourceExhausted, "MEMORY", "no room for steps");
  });
  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(Epoch(3))), "MEMORY");
  StepPlan plan;
  plan.slices = {{.handle = 1, .num_tokens = 1}};
  EXPECT_FALSE(TryExecute(Numbered(plan)).ok()) << "the old epoch has lost its pool";
  model_.OnReserve(nullptr);
  EXPECT_TRUE(executor_.BeginEpoch(Epoch(4)).ok());
}

TEST_F(StepExecutorTest, AnEpochForWhichRanksDoNotMeetEndsTheOldOne) {
  Prefill(0, {1, 2, 3}, {7});
  model_.SetNumRanks(2);

  EXPECT_EQ(ReasonOf(executor_.BeginEpoch(Epoch(2))), "RENDEZVOUS");  // nobody says where they are

  StepPlan plan;
  plan.slices = {{.handle = 0, .num_tokens = 1, .new_block_ids = {}}};
  EXPECT_EQ(ReasonOf(TryExecute(Numbered(plan)).status()), "STALE_GROUP");
}

TEST_F(StepExecutorTest, AnEpochMayBringAnotherGeometry) {
  Prefill(0, {1, 2, 3}, {7});
  EpochParams wider = Epoch(2);
  wider.limits.block_size_tokens = 16;
  wider.limits.num_blocks = 3;
  ASSERT_TRUE(executor_.BeginEpoch(wider).ok());
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7};

  EXPECT_EQ(Prefill(0, tokens, {2}), FakeModel::NextToken(tokens));
}

TEST_F(StepExecutorTest, LogprobsComeAsEachSequenceAskedForThem) {
  StepPlan plan;
  plan.introductions = {Introduce(0, {1}), Introduce(1, {2}), Introduce(2, {3})};
  plan.introductions[0].sampling.num_logprobs = 3;
  plan.introductions[1].sampling.num_logprobs = -1;
  plan.introductions[2].sampling.num_logprobs = 1;
  for (SequenceHandle handle : {0U, 1U, 2U}) {
    plan.slices.push_back(
        {.handle = handle, .num_tokens = 1, .new_block_ids = {static_cast<BlockId>(handle + 1)}});
  }

  std::vector<SampledToken> sampled = Execute(plan);

  // One logit of 10 and 49 of 0.
  const double top = 10.0 - std::log(std::exp(10.0) + 49.0);
  ASSERT_EQ(sampled.size(), 3U);
  ASSERT_EQ(sampled[0].top_logprobs.size(), 3U);
  EXPECT_TRUE(sampled[1].top_logprobs.empty());
  ASSERT_EQ(sampled[2].top_logprobs.size(), 1U);
  EXPECT_EQ(sampled[0].top_logprobs[0].token_id, sampled[0].token_id);
  EXPECT_NEAR(sampled[0].top_logprobs[0].logprob, top, 1e-5);
  EXPECT_NEAR(sampled[0].top_logprobs[2].logprob, top - 10.0, 1e-5);
  EXPECT_EQ(sampled[2].top_logprobs[0].token_id, sampled[2].token_id);
  EXPECT_NEAR(sampled[2].logprob, top, 1e-5);
}

TEST_F(StepExecutorTest, PenaltiesSeeWhatWasSampledBefore) {
  const std::vector<TokenId> prompt = {1, 2, 3};
  StepPlan plan;
  plan.introductions = {Introduce(0, prompt)};
  plan.introductions[0].sampling.repetition_penalty = 100.0F;
  plan.introductions[0].sampling.frequency_penalty = 2.0F;
  plan.slices = {{.handle = 0, .num_tokens = 3, .new_block_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}};
  std::vector<TokenId> output = {Execute(plan)[0].token_id};
  for (int i = 0; i < 30; ++i) {
    output.push_back(Decode(0, {}));
  }

  // The favourite's 10 becomes 0.1 - 2 on its second time, below every token not used yet.
  std::vector<TokenId> sorted = output;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
}

TEST_F(StepExecutorTest, LogitsThatAreNoNumbersAreReported) {
  model_.PoisonNextLogits();
  StepPlan plan;
  plan.introductions = {Introduce(0, {1})};
  plan.introductions[0].sampling.num_logprobs = 2;
  plan.slices = {{.handle = 0, .num_tokens = 1, .new_block_ids = {1}}};

  std::vector<SampledToken> sampled = Execute(plan);

  ASSERT_EQ(sampled.size(), 1U);
  EXPECT_FALSE(sampled[0].finite);
  EXPECT_TRUE(sampled[0].top_logprobs.empty());
}

// Keeps its observations.
class Listener : public StepObserver {
 public:
  void OnEpoch(const EpochObservation& epoch) override { epochs.push_back(epoch); }
  void OnStep(const ExecutedStep& step) override { steps.push_back(step); }

  std::vector<EpochObservation> epochs;
  std::vector<ExecutedStep> steps;
};

class ObservedExecutorTest : public StepExecutorTest {
 protected:
  static EpochParams EpochWithHost(uint64_t group_epoch) {
    EpochParams params = Epoch(group_epoch);
    params.limits.num_host_blocks = 3;
    return params;
  }

  void Step(StepPlan plan) {
    plan.header = {.scheduler_incarnation = 1,
                   .group_epoch = observed_.order().group_epoch(),
                   .step_id = observed_.order().last_done() + 1};
    last_ = WithDigest(plan);
    EXPECT_TRUE(observed_.Execute(last_).ok());
  }

  Listener listener_;
  StepExecutor observed_{model_,
                         *backend_,
                         {.bytes = kPoolBytes, .swap_space_bytes = kPoolBytes},
                         nullptr,
                         nullptr,
                         &listener_};
  StepPlan last_;
};

TEST_F(ObservedExecutorTest, EpochsAreHeardWhetherTheyBeginOrNot) {
  ASSERT_TRUE(observed_.BeginEpoch(EpochWithHost(3)).ok());
  EXPECT_FALSE(observed_.BeginEpoch(EpochWithHost(2)).ok());

  ASSERT_EQ(listener_.epochs.size(), 2U);
  EXPECT_TRUE(listener_.epochs[0].has_begun);
  EXPECT_FALSE(listener_.epochs[1].has_begun);
  for (const EpochObservation& epoch : listener_.epochs) {
    EXPECT_EQ(epoch.scheduler_incarnation, 1U);
    EXPECT_EQ(epoch.group_epoch, 3U);
    EXPECT_EQ(epoch.pools.num_blocks, 20);
    EXPECT_EQ(epoch.pools.num_host_blocks, 3);
    EXPECT_GT(epoch.pools.block_bytes, 0);
  }
}

TEST_F(ObservedExecutorTest, AnEpochWithoutMemoryForItsStepsLeavesNoPoolInTheWay) {
  ASSERT_TRUE(observed_.BeginEpoch(EpochWithHost(3)).ok());
  model_.OnReserve([](const StepBounds& /*bounds*/) {
    return Error(absl::StatusCode::kResourceExhausted, "MEMORY", "no room for steps");
  });

  EXPECT_FALSE(observed_.BeginEpoch(EpochWithHost(4)).ok());

  ASSERT_EQ(listener_.epochs.size(), 2U);
  EXPECT_EQ(listener_.epochs[1].pools.num_blocks, 0);
}

TEST_F(ObservedExecutorTest, AStepSaysWhatItDidAndWhatIsHeldNow) {
  ASSERT_TRUE(observed_.BeginEpoch(EpochWithHost(1)).ok());
  StepPlan prefill;
  prefill.introductions = {Introduce(0, {1, 2, 3, 4, 5}), Introduce(1, {6, 7})};
  prefill.slices = {{.handle = 0, .num_tokens = 5, .new_block_ids = {7, 8}},
                    {.handle = 1, .num_tokens = 1, .new_block_ids = {9}}};
  Step(prefill);
  StepPlan swap;
  swap.swap_outs = {{.block = 7, .host_block = 0}, {.block = 8, .host_block = 2}};
  swap.releases = {0};
  Step(swap);
  StepPlan back;
  back.swap_ins = {{.block = 11, .host_block = 0, .generation = 2},
                   {.block = 12, .host_block = 2, .generation = 9}};  // of another step
  Step(back);

  ASSERT_EQ(listener_.steps.size(), 3U);
  const ExecutedStep& first = listener_.steps[0];
  EXPECT_EQ(first.num_tokens, 6);
  EXPECT_EQ(first.num_sampled, 1);
  EXPECT_EQ(first.holdings.num_sequences, 2);
  EXPECT_EQ(first.holdings.num_blocks, 3);
  EXPECT_EQ(first.holdings.num_host_blocks, 0);
  EXPECT_GT(first.build_ns, 0);
  EXPECT_GT(first.forward_ns, 0);
  EXPECT_GT(first.sample_ns, 0);
  EXPECT_EQ(first.swap_ns, 0);
  EXPECT_EQ(first.forward_collective_ns + first.sample_collective_ns, 0);

  const ExecutedStep& out = listener_.steps[1];
  EXPECT_EQ(out.num_swapped_out, 2);
  EXPECT_GT(out.swap_ns, 0);
  EXPECT_EQ(out.holdings.num_sequences, 1);
  EXPECT_EQ(out.holdings.num_blocks, 1);
  EXPECT_EQ(out.holdings.num_host_blocks, 2);

  const ExecutedStep& in = listener_.steps[2];
  EXPECT_EQ(in.num_swapped_in, 1);
  EXPECT_EQ(in.num_failed_swap_ins, 1);
  EXPECT_EQ(in.holdings.num_host_blocks, 2);
}

TEST_F(ObservedExecutorTest, RefusedStepsAndReplaysAreNotHeardAndANewEpochHoldsNothing) {
  ASSERT_TRUE(observed_.BeginEpoch(EpochWithHost(1)).ok());
  StepPlan prefill;
  prefill.introductions = {Introduce(0, {1, 2, 3})};
  prefill.slices = {{.handle = 0, .num_tokens = 3, .new_block_ids = {7}}};
  prefill.swap_outs = {{.block = 5, .host_block = 1}};
  Step(prefill);
  EXPECT_TRUE(observed_.Execute(last_).ok());
  last_.header.step_id = 2;
  last_.slices[0].new_block_ids = {99};
  EXPECT_FALSE(observed_.Execute(WithDigest(last_)).ok());
  EXPECT_EQ(listener_.steps.size(), 1U);

  ASSERT_TRUE(observed_.BeginEpoch(EpochWithHost(2)).ok());
  EXPECT_EQ(listener_.steps.back().holdings.num_host_blocks, 1);
  const WorkerHoldings& holdings = listener_.epochs.back().holdings;
  EXPECT_EQ(holdings.num_sequences, 0);
  EXPECT_EQ(holdings.num_blocks, 0);
  EXPECT_EQ(holdings.num_host_blocks, 0);
}

}  // namespace
}  // namespace quire
