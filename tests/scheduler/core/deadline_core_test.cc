// Requests that cannot be complete by their deadline, in the core: refused when they come, or
// dropped before anything is computed for them.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/completion_estimate.h"
#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

constexpr StepLimits kDeadlineLimits{.num_blocks = 101,
                                     .block_size_tokens = 4,
                                     .max_sequences = 2,
                                     .max_tokens_per_step = 16,
                                     .max_model_len = 100,
                                     .vocab_size = 1000};
constexpr Instant kStep = 10 * kNanosPerMilli;
constexpr int32_t kOutput = 8;

// Each step takes 10 ms, however many tokens it has, or 10 ms for each sequence.
class DeadlineCoreTest : public testing::TestWithParam<PreemptionMode> {
 protected:
  DeadlineCoreTest() { core_.BeginEpoch(1, 1, kDeadlineLimits); }

  AddOutcome Add(RequestSpec spec) {
    spec.id = ++last_id_;
    Request request = MakeRequest(spec);
    request.arrival = now_;
    request.is_resumed = is_resumed_;
    if (num_brought_ > 0) {
      request.resumed = {{.token_ids = std::vector<TokenId>(num_brought_, 1), .has_ended = false}};
    }
    request.tenant = tenant_;
    return core_.AddRequest(std::move(request));
  }

  bool Step() {
    std::optional<StepPlan> plan = core_.PlanStep(now_);
    core_.CheckInvariants();
    if (plan.has_value()) {
      StepResult result = worker_.Execute(*plan).value();
      const Instant duration =
          is_slowed_by_others_ ? kStep * static_cast<Instant>(plan->slices.size()) : kStep;
      now_ += duration;
      result.timings.forward_us = duration / kNanosPerMicro;
      EXPECT_TRUE(core_.ApplyStepResult(result).ok());
    }
    for (const OutputEvent& event : core_.TakeEvents()) {
      if (const auto* finished = std::get_if<SequenceFinished>(&event)) {
        reasons_[finished->request_id.value()] = finished->reason;
      }
    }
    return plan.has_value();
  }

  // Runs requests to their end, so that the core learns the durations of steps and the lengths of
  // outputs.
  void Learn() {
    for (size_t i = 0; i < OutputLengths::kFewestLengths; ++i) {
      ASSERT_EQ(Add({.prompt = 4, .max_tokens = kOutput}), AddOutcome::kQueued);
    }
    while (Step()) {
    }
  }

  // Two requests run, and num_waiting requests wait behind them.
  void Fill(int num_waiting) {
    for (int i = 0; i < 2 + num_waiting; ++i) {
      ASSERT_EQ(Add({.prompt = 4, .max_tokens = kOutput}), AddOutcome::kQueued);
    }
    Step();  // handles of those that ended come back
    Step();
  }

  SchedulerCore core_{CoreConfig{.watermark = 0.0, .preemption_mode = GetParam()}};
  FakeWorker worker_{kDeadlineLimits};
  Instant now_ = kNanosPerSecond;
  uint64_t last_id_ = 0;
  bool is_resumed_ = false;
  size_t num_brought_ = 0;  // output tokens, if it is resumed
  std::string tenant_;
  bool is_slowed_by_others_ = false;
  std::map<uint64_t, FinishReason> reasons_;
};

TEST_P(DeadlineCoreTest, WhoCannotBeCompleteInTimeIsRefusedAtOnce) {
  Learn();
  Fill(4);
  // Six requests end before it, two in every 8 steps. Then it takes 8 steps itself.
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 25 * kStep}),
            AddOutcome::kDeadlineUnreachable);
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 40 * kStep}),
            AddOutcome::kQueued);
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput}), AddOutcome::kQueued);
}

TEST_P(DeadlineCoreTest, AServerThatHasLearntNothingRefusesNobody) {
  Fill(4);
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 1}), AddOutcome::kQueued);
}

TEST_P(DeadlineCoreTest, AnIdleServerRefusesNobodyAndSoGoesOnLearning) {
  Learn();
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 1}), AddOutcome::kQueued);
  EXPECT_TRUE(Step());
}

// A tenant's long outputs must not make the core refuse all other requests, whose outputs may be
// short.
TEST_P(DeadlineCoreTest, WhileThereIsRoomOneRequestOfATenantIsTried) {
  constexpr int32_t kLong = 80;
  for (size_t i = 0; i < OutputLengths::kFewestLengths; ++i) {
    ASSERT_EQ(Add({.prompt = 4, .max_tokens = kLong}), AddOutcome::kQueued);
  }
  while (Step()) {
  }
  const auto offer = [this](const std::string& tenant) {
    tenant_ = tenant;
    return Add({.prompt = 4, .max_tokens = kLong, .deadline = now_ + kLong / 2 * kStep});
  };

  EXPECT_EQ(offer("one"), AddOutcome::kQueued);
  EXPECT_EQ(offer("other"), AddOutcome::kDeadlineUnreachable);  // one waits
  const uint64_t tried = last_id_ - 1;
  Step();  // handles of those that ended come back
  Step();
  EXPECT_FALSE(reasons_.contains(tried));                     // it is not dropped at its turn
  EXPECT_EQ(offer("one"), AddOutcome::kDeadlineUnreachable);  // one of it is tried
  EXPECT_EQ(offer("other"), AddOutcome::kQueued);
  Step();
  EXPECT_EQ(offer("third"), AddOutcome::kDeadlineUnreachable);  // two run, and more may not
  while (Step()) {
  }
  EXPECT_EQ(reasons_.at(tried), FinishReason::kExpiredRunning);
}

TEST_P(DeadlineCoreTest, WhoBringsOutputIsNotRefusedWhenItComes) {
  Learn();
  Fill(4);
  is_resumed_ = true;
  num_brought_ = 1;
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 1}), AddOutcome::kQueued);
}

TEST_P(DeadlineCoreTest, WhoIsResumedWithoutOutputIsLikeANewOne) {
  Learn();
  Fill(4);
  is_resumed_ = true;
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 25 * kStep}),
            AddOutcome::kDeadlineUnreachable);
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 40 * kStep}),
            AddOutcome::kQueued);
}

// The request waits behind two that take 8 steps each. It lacks 7 of 8 tokens, or 2.
TEST_P(DeadlineCoreTest, WhoBringsOutputIsJudgedAtItsTurnByWhatItLacks) {
  for (const size_t num_brought : {1, 6}) {
    Learn();
    Fill(0);
    is_resumed_ = true;
    num_brought_ = num_brought;
    ASSERT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 13 * kStep}),
              AddOutcome::kQueued);
    const uint64_t id = last_id_;
    is_resumed_ = false;
    num_brought_ = 0;
    ASSERT_EQ(Add({.prompt = 4, .max_tokens = kOutput}), AddOutcome::kQueued);  // no trial
    while (Step()) {
    }
    EXPECT_EQ(reasons_[id], num_brought == 1 ? FinishReason::kUnreachable : FinishReason::kLength);
  }
}

TEST_P(DeadlineCoreTest, ALongMaxTokensAloneIsNoReason) {
  Learn();
  Fill(0);
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = 90, .deadline = now_ + 40 * kStep}),
            AddOutcome::kQueued);
}

// Two requests at once both miss the deadline, and one alone meets it. The outputs seen before were
// short. If an output that is cut off did not count, the core would know short ones alone.
TEST_P(DeadlineCoreTest, OutputsThatTheirDeadlineCutsOffAreLearntFrom) {
  constexpr int kNumRounds = 200;
  is_slowed_by_others_ = true;
  Learn();
  int num_met = 0;
  for (int i = 0; i < kNumRounds; ++i) {
    for (int j = 0; j < 4; ++j) {
      Add({.prompt = 4, .max_tokens = 80, .deadline = now_ + 100 * kStep});
    }
    while (Step()) {
    }
    for (const auto& [id, reason] : std::exchange(reasons_, {})) {
      num_met += reason == FinishReason::kLength ? 1 : 0;
    }
  }
  EXPECT_GE(num_met, kNumRounds * 9 / 10);
}

TEST_P(DeadlineCoreTest, AResumedOutputSaysNothingAboutOthers) {
  Learn();
  is_resumed_ = true;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(Add({.prompt = 4, .max_tokens = 90}), AddOutcome::kQueued);
    while (Step()) {
    }
  }
  is_resumed_ = false;
  Fill(4);
  EXPECT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 40 * kStep}),
            AddOutcome::kQueued);
}

TEST_P(DeadlineCoreTest, WhoCanNoLongerBeCompleteInTimeIsDroppedBeforeItComputes) {
  Learn();
  Fill(0);
  ASSERT_EQ(Add({.prompt = 4, .max_tokens = kOutput, .deadline = now_ + 30 * kStep}),
            AddOutcome::kQueued);
  const uint64_t id = last_id_;
  now_ += 25 * kStep;  // workers stood still
  const int64_t num_computed = core_.stats().num_prompt_tokens_computed;
  while (Step()) {
  }
  EXPECT_EQ(reasons_[id], FinishReason::kUnreachable);
  EXPECT_EQ(core_.stats().num_prompt_tokens_computed, num_computed);
}

TEST_P(DeadlineCoreTest, SaysHowLongTheQueueTakes) {
  EXPECT_EQ(core_.stats().queue_drain_us, 0);
  Learn();
  Fill(4);
  const int64_t four = core_.stats().queue_drain_us;
  EXPECT_GT(four, 4 * kOutput / 2 * kStep / kNanosPerMicro / 2);
  Fill(4);
  EXPECT_GT(core_.stats().queue_drain_us, four);
}

TEST_P(DeadlineCoreTest, DoesNotSayHowLongTheQueueTakesBeforeItKnowsOutputs) {
  Fill(4);
  Step();
  Step();
  EXPECT_EQ(core_.stats().queue_drain_us, 0);
}

INSTANTIATE_TEST_SUITE_P(Modes,
                         DeadlineCoreTest,
                         testing::Values(PreemptionMode::kRecompute, PreemptionMode::kAuto));

// The policy lets the urgent request overtake those behind it, so they do not delay it.
TEST(DeadlinePolicyTest, AnUrgentRequestIsNotRefusedForThoseThatItOvertakes) {
  SchedulerCore core({.watermark = 0.0,
                      .scheduling_policy = SchedulingPolicyKind::kPriority,
                      .preemption_mode = PreemptionMode::kAuto});
  FakeWorker worker(kDeadlineLimits);
  core.BeginEpoch(1, 1, kDeadlineLimits);
  uint64_t id = 0;
  Instant now = 0;
  const auto add = [&](int32_t priority, Instant deadline) {
    Request request =
        MakeRequest({.id = ++id, .prompt = 4, .max_tokens = kOutput, .deadline = deadline});
    request.priority = priority;
    request.arrival = now;
    return core.AddRequest(std::move(request));
  };
  for (int i = 0; i < 40; ++i) {
    add(0, kInfiniteFuture);
  }
  for (int i = 0; i < 100; ++i) {
    const std::optional<StepPlan> plan = core.PlanStep(now);
    StepResult result = worker.Execute(*plan).value();
    now += kStep;
    result.timings.forward_us = kStep / kNanosPerMicro;
    ASSERT_TRUE(core.ApplyStepResult(result).ok());
  }
  EXPECT_EQ(add(0, now + 20 * kStep), AddOutcome::kDeadlineUnreachable);
  EXPECT_EQ(add(-5, now + 20 * kStep), AddOutcome::kQueued);
}

}  // namespace
}  // namespace quire
