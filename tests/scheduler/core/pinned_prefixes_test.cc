#include "scheduler/core/pinned_prefixes.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// 16 blocks of 4 tokens, half of which may be pinned.
constexpr StepLimits kPrefixLimits{.num_blocks = 17,
                                   .num_host_blocks = 8,
                                   .block_size_tokens = 4,
                                   .max_sequences = 4,
                                   .max_tokens_per_step = 16,
                                   .max_model_len = 60,
                                   .vocab_size = 1000};

std::vector<TokenId> Tokens(size_t n) {
  std::vector<TokenId> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

class PinnedPrefixesTest : public ::testing::Test {
 protected:
  void BeginEpoch(const StepLimits& limits) {
    limits_ = limits;
    worker_.emplace(limits);
    core_.BeginEpoch(1, ++group_epoch_, limits);
    core_.CheckInvariants();
  }
  void LoseWorkers() {
    core_.OnWorkersLost();
    core_.CheckInvariants();
  }

  PinResult Pin(std::vector<TokenId> tokens, const std::string& salt = "") {
    const PinResult result = core_.PinPrefix(RequestId(next_id_++), std::move(tokens), salt);
    core_.CheckInvariants();
    return result;
  }
  // A request that begins with these tokens and goes on with its own.
  RequestId Add(std::vector<TokenId> prompt, int32_t max_tokens) {
    Request request{.id = RequestId(next_id_++), .prompt_token_ids = std::move(prompt)};
    request.sampling.seed = request.id.value();
    request.max_tokens = max_tokens;
    const RequestId id = request.id;
    outcome_ = core_.AddRequest(std::move(request));
    core_.CheckInvariants();
    return id;
  }

  bool Step(bool is_finite = true) {
    std::optional<StepPlan> plan = core_.PlanStep(0);
    if (!plan.has_value()) {
      return false;
    }
    core_.CheckInvariants();
    auto result = worker_->Execute(*plan);
    EXPECT_TRUE(result.ok()) << result.status();
    for (SampledToken& sampled : result->sampled) {
      sampled.finite = is_finite;
    }
    EXPECT_TRUE(core_.ApplyStepResult(*result).ok());
    core_.CheckInvariants();
    return true;
  }
  void RunToEnd() {
    while (Step()) {
    }
  }

  SchedulerCore core_{CoreConfig{.watermark = 0.0, .prefix_caching = true}};
  StepLimits limits_;
  std::optional<FakeWorker> worker_;
  uint64_t group_epoch_ = 0;
  uint64_t next_id_ = 1;
  AddOutcome outcome_ = AddOutcome::kQueued;
};

TEST_F(PinnedPrefixesTest, IsComputedOnceAndHeld) {
  BeginEpoch(kPrefixLimits);
  const PinResult result = Pin(Tokens(14));
  ASSERT_EQ(result.outcome, PinOutcome::kAccepted);
  EXPECT_EQ(core_.FindPrefix(result.id)->state, PrefixState::kComputing);

  RunToEnd();

  const PrefixInfo info = *core_.FindPrefix(result.id);
  EXPECT_EQ(info.state, PrefixState::kPinned);
  EXPECT_EQ(info.num_tokens, 14);
  EXPECT_EQ(info.num_blocks, 4);
  EXPECT_EQ(core_.stats().num_used_blocks, 4);
  EXPECT_EQ(core_.stats().num_pinned_blocks, 4);
  EXPECT_EQ(core_.stats().num_pinned_prefixes, 1);
  EXPECT_EQ(core_.stats().num_requests_finished, 0);
  EXPECT_THAT(core_.TakeEvents(), IsEmpty()) << "nobody hears of it";
  EXPECT_FALSE(core_.has_work());
}

TEST_F(PinnedPrefixesTest, RequestsThatBeginSoFindItWhateverCameBetween) {
  BeginEpoch(kPrefixLimits);
  ASSERT_EQ(Pin(Tokens(12)).outcome, PinOutcome::kAccepted);
  RunToEnd();
  for (int i = 0; i < 5; ++i) {
    std::vector<TokenId> other(50, 7 + i);  // takes every free block
    Add(std::move(other), 2);
    RunToEnd();
  }
  const int64_t num_hit = core_.stats().num_prefix_hit_tokens;

  Add(Tokens(13), 2);
  RunToEnd();

  EXPECT_EQ(core_.stats().num_prefix_hit_tokens - num_hit, 12);
}

// Figure 10 of the paper: the last block is copied on write.
TEST_F(PinnedPrefixesTest, RequestsCopyTheLastBlockAsFarAsTheyBeginSo) {
  struct Case {
    std::vector<TokenId> prompt;
    int32_t num_hit;
    int32_t num_copied;
  };
  const auto prompt = [](size_t num_equal, size_t num_tokens) {
    std::vector<TokenId> tokens = Tokens(num_tokens);
    std::fill(tokens.begin() + static_cast<std::ptrdiff_t>(num_equal), tokens.end(), 7);
    return tokens;
  };
  BeginEpoch(kPrefixLimits);
  ASSERT_EQ(Pin(Tokens(14)).outcome, PinOutcome::kAccepted);
  RunToEnd();
  for (const Case& c : {Case{prompt(16, 16), 14, 1},
                        Case{prompt(13, 16), 13, 1},
                        Case{prompt(12, 16), 12, 0},
                        Case{prompt(11, 16), 8, 0},
                        Case{prompt(14, 14), 13, 1},  // the last token's logits are wanted
                        Case{prompt(13, 13), 12, 0}}) {
    SCOPED_TRACE(c.num_hit);
    const CoreStats before = core_.stats();

    Add(c.prompt, 1);
    ASSERT_TRUE(Step());

    EXPECT_EQ(core_.stats().num_prefix_hit_tokens - before.num_prefix_hit_tokens, c.num_hit);
    EXPECT_EQ(core_.stats().num_blocks_copied - before.num_blocks_copied, c.num_copied);
    RunToEnd();
    EXPECT_EQ(core_.stats().num_used_blocks, 4);
  }
}

TEST_F(PinnedPrefixesTest, OfPrefixesWithTheSameFullBlocksTheLongestIsCopied) {
  BeginEpoch(kPrefixLimits);
  ASSERT_EQ(Pin(Tokens(7)).outcome, PinOutcome::kAccepted);
  ASSERT_EQ(Pin(Tokens(5)).outcome, PinOutcome::kAccepted);
  RunToEnd();
  EXPECT_EQ(core_.stats().num_pinned_blocks, 3);
  const int64_t num_hit = core_.stats().num_prefix_hit_tokens;

  Add(Tokens(9), 1);
  RunToEnd();

  EXPECT_EQ(core_.stats().num_prefix_hit_tokens - num_hit, 7);
}

TEST_F(PinnedPrefixesTest, ASliceThatIsCutTakesNoMoreBlocksForACopy) {
  StepLimits limits = kPrefixLimits;
  limits.max_tokens_per_step = 8;
  BeginEpoch(limits);
  ASSERT_EQ(Pin(Tokens(7)).outcome, PinOutcome::kAccepted);
  RunToEnd();
  const int64_t num_copied = core_.stats().num_blocks_copied;

  Add(Tokens(30),
      1);  // 8 of 26 tokens fill two blocks, behind a copy of three they would begin a third
  RunToEnd();

  EXPECT_EQ(core_.stats().num_blocks_copied, num_copied);
}

TEST_F(PinnedPrefixesTest, OnlyRequestsOfTheSameSaltFindIt) {
  BeginEpoch(kPrefixLimits);
  ASSERT_EQ(Pin(Tokens(12), "salt").outcome, PinOutcome::kAccepted);
  RunToEnd();

  Add(Tokens(13), 2);
  RunToEnd();

  EXPECT_EQ(core_.stats().num_prefix_hit_tokens, 0);
}

TEST_F(PinnedPrefixesTest, TheSamePrefixIsPinnedOnce) {
  BeginEpoch(kPrefixLimits);
  const PinResult first = Pin(Tokens(12));

  EXPECT_EQ(Pin(Tokens(12)).outcome, PinOutcome::kAlreadyPinned);
  EXPECT_EQ(Pin(Tokens(12)).id, first.id);
  RunToEnd();
  EXPECT_EQ(Pin(Tokens(12)).id, first.id);
  EXPECT_EQ(Pin(Tokens(12), "salt").outcome, PinOutcome::kAccepted);
  RunToEnd();
  EXPECT_THAT(core_.prefixes(), SizeIs(2));
  EXPECT_EQ(core_.stats().num_pinned_blocks, 6);
}

TEST_F(PinnedPrefixesTest, BlocksThatPrefixesShareCountOnce) {
  BeginEpoch(kPrefixLimits);
  ASSERT_EQ(Pin(Tokens(16)).outcome, PinOutcome::kAccepted);
  ASSERT_EQ(Pin(Tokens(24)).outcome, PinOutcome::kAccepted);

  RunToEnd();

  EXPECT_EQ(core_.stats().num_pinned_blocks, 6);
  EXPECT_EQ(core_.stats().num_used_blocks, 6);
}

TEST_F(PinnedPrefixesTest, WhatCannotBePinnedIsRefused) {
  EXPECT_EQ(Pin(Tokens(8)).outcome, PinOutcome::kNoLimits);
  BeginEpoch(kPrefixLimits);
  EXPECT_EQ(Pin(Tokens(3)).outcome, PinOutcome::kTooShort);
  EXPECT_EQ(Pin(Tokens(60)).outcome, PinOutcome::kTooLong);
  EXPECT_EQ(Pin(Tokens(36)).outcome, PinOutcome::kExceedsShare) << "9 blocks of 16";
  EXPECT_EQ(Pin(Tokens(32)).outcome, PinOutcome::kAccepted);
  EXPECT_EQ(Pin(Tokens(4), "salt").outcome, PinOutcome::kExceedsShare);
  EXPECT_THAT(core_.prefixes(), SizeIs(1));

  SchedulerCore without(CoreConfig{.prefix_caching = false});
  without.BeginEpoch(1, 1, kPrefixLimits);
  EXPECT_EQ(without.PinPrefix(RequestId(1), Tokens(8), "").outcome, PinOutcome::kDisabled);
}

TEST_F(PinnedPrefixesTest, TheirNumberIsBounded) {
  StepLimits limits = kPrefixLimits;
  limits.num_blocks = 1025;
  BeginEpoch(limits);
  std::vector<TokenId> tokens = Tokens(6);
  for (TokenId tail = 0; tail < 256; ++tail) {
    tokens.back() = tail;
    ASSERT_EQ(core_.PinPrefix(RequestId(next_id_++), tokens, "").outcome, PinOutcome::kAccepted);
  }
  tokens.back() = 5000;
  EXPECT_EQ(core_.PinPrefix(RequestId(next_id_++), tokens, "").outcome, PinOutcome::kTooMany);
}

TEST_F(PinnedPrefixesTest, NoPrefixTakesWhatALiveRequestNeeds) {
  BeginEpoch(kPrefixLimits);
  Add(Tokens(40), 16);  // 14 of 16 blocks at its end
  Step();

  EXPECT_EQ(Pin(Tokens(12), "salt").outcome, PinOutcome::kStarvesRequest);
  EXPECT_EQ(Pin(Tokens(8), "salt").outcome, PinOutcome::kAccepted);

  RunToEnd();
  EXPECT_EQ(core_.stats().num_pinned_blocks, 2);
}

TEST_F(PinnedPrefixesTest, RequestsMustFitBesideThem) {
  BeginEpoch(kPrefixLimits);
  ASSERT_EQ(Pin(Tokens(32), "salt").outcome, PinOutcome::kAccepted);
  Add(Tokens(20), 12);
  EXPECT_EQ(outcome_, AddOutcome::kQueued);
  Add(Tokens(20), 13);
  EXPECT_EQ(outcome_, AddOutcome::kNeverFits);
  RunToEnd();

  ASSERT_TRUE(core_.UnpinPrefix(core_.prefixes().front().id));

  Add(Tokens(20), 13);
  EXPECT_EQ(outcome_, AddOutcome::kQueued);
}

TEST_F(PinnedPrefixesTest, UnpinningLetsTheBlocksGoButNotThoseInUse) {
  BeginEpoch(kPrefixLimits);
  const RequestId id = Pin(Tokens(12)).id;
  RunToEnd();
  Add(Tokens(13), 5);
  Step();

  EXPECT_TRUE(core_.UnpinPrefix(id));
  core_.CheckInvariants();

  EXPECT_FALSE(core_.UnpinPrefix(id));
  EXPECT_EQ(core_.stats().num_pinned_blocks, 0);
  EXPECT_EQ(core_.stats().num_used_blocks, 4);
  EXPECT_FALSE(core_.FindPrefix(id).has_value());
  RunToEnd();
  EXPECT_EQ(core_.stats().num_used_blocks, 0);
}

TEST_F(PinnedPrefixesTest, UnpinningEndsTheComputation) {
  BeginEpoch(kPrefixLimits);
  const RequestId waiting = Pin(Tokens(12)).id;
  EXPECT_TRUE(core_.UnpinPrefix(waiting));
  EXPECT_FALSE(Step());
  const RequestId running = Pin(Tokens(24)).id;  // two steps
  Step();
  EXPECT_TRUE(core_.UnpinPrefix(running));
  core_.CheckInvariants();
  EXPECT_EQ(core_.stats().num_used_blocks, 0);
  EXPECT_THAT(core_.TakeEvents(), IsEmpty());
}

TEST_F(PinnedPrefixesTest, ItsRequestIsNobodysToEnd) {
  BeginEpoch(kPrefixLimits);
  const RequestId id = Pin(Tokens(12)).id;
  EXPECT_FALSE(core_.AbortRequest(id));
  EXPECT_FALSE(core_.FinishSequence(id, 0));
  RunToEnd();
  EXPECT_EQ(core_.FindPrefix(id)->state, PrefixState::kPinned);
}

TEST_F(PinnedPrefixesTest, ItIsComputedAgainAfterALossAheadOfLaterRequests) {
  BeginEpoch(kPrefixLimits);
  const RequestId id = Pin(Tokens(12)).id;
  RunToEnd();
  const RequestId request = Add(Tokens(20), 5);
  Step();
  LoseWorkers();
  EXPECT_EQ(core_.FindPrefix(id)->state, PrefixState::kWaiting);
  StepLimits limits = kPrefixLimits;
  limits.block_size_tokens = 8;

  BeginEpoch(limits);
  std::optional<StepPlan> plan = core_.PlanStep(0);

  ASSERT_TRUE(plan.has_value());
  ASSERT_THAT(plan->introductions, SizeIs(2));
  EXPECT_EQ(plan->introductions[0].sampling.seed, id.value());
  EXPECT_EQ(plan->introductions[1].sampling.seed, request.value());
  EXPECT_EQ(plan->introductions[1].num_computed_tokens, 8) << "found in the same step";
  auto result = worker_->Execute(*plan);
  ASSERT_TRUE(core_.ApplyStepResult(*result).ok());
  EXPECT_EQ(core_.FindPrefix(id)->num_tokens, 12);
  EXPECT_EQ(core_.FindPrefix(id)->num_blocks, 2) << "of the new size";
  EXPECT_EQ(core_.FindPrefix(id)->state, PrefixState::kPinned);
}

TEST_F(PinnedPrefixesTest, WithoutRoomInTheNewPoolItWaitsAndRequestsGoOn) {
  BeginEpoch(kPrefixLimits);
  const RequestId id = Pin(Tokens(32)).id;
  RunToEnd();
  Add(Tokens(20), 5);
  LoseWorkers();
  StepLimits limits = kPrefixLimits;
  limits.num_blocks = 9;

  BeginEpoch(limits);
  RunToEnd();

  EXPECT_EQ(core_.FindPrefix(id)->state, PrefixState::kWaiting);
  EXPECT_EQ(core_.FindPrefix(id)->num_blocks, 0);
  EXPECT_EQ(core_.stats().num_requests_finished, 1);
  LoseWorkers();
  BeginEpoch(kPrefixLimits);
  RunToEnd();
  EXPECT_EQ(core_.FindPrefix(id)->state, PrefixState::kPinned);
}

TEST_F(PinnedPrefixesTest, PinnedWhileWorkersAreAwayItBeginsWithThem) {
  BeginEpoch(kPrefixLimits);
  LoseWorkers();
  const PinResult result = Pin(Tokens(12));
  EXPECT_EQ(result.outcome, PinOutcome::kAccepted);
  EXPECT_EQ(core_.FindPrefix(result.id)->state, PrefixState::kWaiting);
  BeginEpoch(kPrefixLimits);
  RunToEnd();
  EXPECT_EQ(core_.FindPrefix(result.id)->state, PrefixState::kPinned);
}

TEST_F(PinnedPrefixesTest, WithoutFiniteLogitsItIsGivenUp) {
  BeginEpoch(kPrefixLimits);
  const RequestId id = Pin(Tokens(12)).id;
  Step(/*is_finite=*/false);
  EXPECT_EQ(core_.FindPrefix(id)->state, PrefixState::kComputing);
  Step(/*is_finite=*/false);
  EXPECT_FALSE(core_.FindPrefix(id).has_value());
  EXPECT_EQ(core_.stats().num_used_blocks, 0);
}

TEST_F(PinnedPrefixesTest, ARequestThatGoesWrongDoesNotTakeItAlong) {
  BeginEpoch(kPrefixLimits);
  ASSERT_EQ(Pin(Tokens(12)).outcome, PinOutcome::kAccepted);
  RunToEnd();
  Add(Tokens(16), 2);
  Step(/*is_finite=*/false);
  Step(/*is_finite=*/false);

  Add(Tokens(13), 2);
  RunToEnd();

  EXPECT_EQ(core_.stats().num_prefix_hit_tokens, 36) << "twice by the first, once by the second";
}

TEST_F(PinnedPrefixesTest, BehindASlidingWindowOnlyItsEndIsHeld) {
  StepLimits limits = kPrefixLimits;
  limits.sliding_window = 6;
  BeginEpoch(limits);
  const RequestId id = Pin(Tokens(40)).id;  // more than its share, were all of it held

  RunToEnd();

  EXPECT_EQ(core_.FindPrefix(id)->num_tokens, 40);
  EXPECT_EQ(core_.FindPrefix(id)->num_blocks, 2);
  EXPECT_EQ(core_.stats().num_pinned_blocks, 2);
  Add(Tokens(41), 4);
  RunToEnd();
  EXPECT_EQ(core_.stats().num_prefix_hit_tokens, 40);
}

}  // namespace
}  // namespace quire
