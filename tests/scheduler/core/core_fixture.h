// CoreFixture is a CoreState with workers: 8 blocks of 4 tokens, 4 handles, 16 tokens a step.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_CORE_FIXTURE_H_
#define QUIRE_TESTS_SCHEDULER_CORE_CORE_FIXTURE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/core/core_state.h"
#include "scheduler/core/invariants.h"
#include "scheduler/core/output_processor.h"
#include "scheduler/core/step_planner.h"
#include "tests/support/requests.h"

namespace quire {

class CoreFixture : public ::testing::Test {
 protected:
  CoreFixture() { BeginEpoch(limits_); }

  void BeginEpoch(const StepLimits& limits) {
    limits_ = limits;
    state_.epoch.emplace(uint64_t{1}, uint64_t{1}, limits);
    state_.last_limits = limits;
  }

  SequenceGroup& Add(const RequestSpec& spec) {
    Request request = MakeRequest(spec);
    CutToContext(limits_.max_model_len, &request);
    state_.Add(std::move(request));
    return *state_.Find(RequestId(spec.id));
  }

  std::optional<StepPlan> Plan() { return StepPlanner(state_).Plan(); }

  // An answer to the unanswered step: every sampling slice gets this token.
  StepResult Answer(TokenId token_id) const {
    StepResult result{.header = state_.step.header, .plan_digest = state_.step.plan_digest};
    for (const UnansweredStep::Slice& slice : state_.step.slices) {
      if (slice.samples) {
        result.sampled.push_back({.handle = slice.handle, .token_id = token_id});
      }
    }
    return result;
  }

  void Apply(const StepResult& result) {
    ASSERT_TRUE(CheckResult(state_, result).ok()) << CheckResult(state_, result);
    ProcessResult(state_, result);
  }

  void Step(TokenId token_id = 5) {
    ASSERT_TRUE(Plan().has_value());
    Apply(Answer(token_id));
  }

  // The next step's tokens by request; it is answered.
  using Tokens = std::map<uint64_t, int32_t>;
  Tokens TokensOfStep() {
    Tokens num_tokens;
    EXPECT_TRUE(Plan().has_value());
    for (const UnansweredStep::Slice& slice : state_.step.slices) {
      num_tokens[slice.group->id().value()] += slice.num_tokens;
    }
    Apply(Answer(5));
    return num_tokens;
  }

  std::vector<OutputEvent> TakeEvents() { return std::exchange(state_.events, {}); }

  // Every test leaves a state that is in order.
  void TearDown() override { CheckInvariants(state_); }

  StepLimits limits_{.num_blocks = 9,
                     .block_size_tokens = 4,
                     .max_sequences = 4,
                     .max_tokens_per_step = 16,
                     .max_model_len = 32,
                     .vocab_size = 1000};
  CoreState state_{CoreConfig{.watermark = 0.0}};
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_CORE_FIXTURE_H_
