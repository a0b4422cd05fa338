#include "scheduler/core/scheduler_core.h"

#include <optional>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr StepLimits kCoreLimits{.num_blocks = 9,
                                 .block_size_tokens = 4,
                                 .max_sequences = 4,
                                 .max_tokens_per_step = 16,
                                 .max_model_len = 24,
                                 .vocab_size = 1000};

class SchedulerCoreTest : public ::testing::Test {
 protected:
  void BeginEpoch() {
    worker_.emplace(kCoreLimits);
    core_.BeginEpoch(7, ++group_epoch_, kCoreLimits);
  }

  AddOutcome Add(const RequestSpec& spec) { return core_.AddRequest(MakeRequest(spec)); }

  // Returns false if the core has no work.
  bool Step() {
    std::optional<StepPlan> plan = core_.PlanStep(0);
    if (!plan.has_value()) {
      return false;
    }
    absl::StatusOr<StepResult> result = worker_->Execute(*plan);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(core_.ApplyStepResult(*result).ok());
    return true;
  }

  std::vector<TokenId> RunToEnd() {
    while (Step()) {
    }
    std::vector<TokenId> token_ids;
    for (const OutputEvent& event : core_.TakeEvents()) {
      if (const auto* token = std::get_if<TokenCommitted>(&event)) {
        token_ids.push_back(token->token_id);
      }
    }
    return token_ids;
  }

  void TearDown() override { core_.CheckInvariants(); }

  SchedulerCore core_{CoreConfig{.max_queued_requests = 2,
                                 .max_queued_tokens = 30,
                                 .max_resumed_requests = 1,
                                 .watermark = 0.0}};
  std::optional<FakeWorker> worker_;
  uint64_t group_epoch_ = 0;
};

TEST_F(SchedulerCoreTest, QueuesRequestsBeforeTheFirstWorkers) {
  EXPECT_EQ(Add({.id = 1, .prompt = 5}), AddOutcome::kQueued);

  EXPECT_EQ(core_.PlanStep(0), std::nullopt);
  EXPECT_FALSE(core_.has_work());
  BeginEpoch();
  EXPECT_TRUE(core_.has_work());
  EXPECT_TRUE(core_.PlanStep(0).has_value());
  EXPECT_TRUE(core_.has_unanswered_plan());
}

TEST_F(SchedulerCoreTest, RefusesWhatCanNeverRun) {
  BeginEpoch();

  EXPECT_EQ(Add({.id = 1, .prompt = 24, .max_tokens = 1}), AddOutcome::kTooLong);
  EXPECT_EQ(Add({.id = 1, .prompt = 20, .max_tokens = 4, .num_sequences = 2}),
            AddOutcome::kNeverFits);
  EXPECT_EQ(Add({.id = 1, .prompt = 23, .max_tokens = 1}), AddOutcome::kQueued);
}

TEST_F(SchedulerCoreTest, RefusesMoreThanItsQueueHolds) {
  EXPECT_EQ(Add({.id = 1, .prompt = 20}), AddOutcome::kQueued);
  EXPECT_EQ(Add({.id = 2, .prompt = 11}), AddOutcome::kQueueTokensFull);
  EXPECT_EQ(Add({.id = 2, .prompt = 10}), AddOutcome::kQueued);
  EXPECT_EQ(Add({.id = 3, .prompt = 1}), AddOutcome::kQueueFull);
}

TEST_F(SchedulerCoreTest, ARefusedRequestLeavesNoTrace) {
  BeginEpoch();

  Add({.id = 1, .prompt = 24, .deadline = 5});

  EXPECT_EQ(core_.next_deadline(), kInfiniteFuture);
  EXPECT_FALSE(core_.has_work());
  EXPECT_FALSE(core_.AbortRequest(RequestId(1)));
  EXPECT_THAT(core_.TakeEvents(), IsEmpty());
}

TEST_F(SchedulerCoreTest, AbortAndFinishSayWhetherThereWasSomethingToEnd) {
  Add({.id = 1, .prompt = 1, .num_sequences = 2});

  EXPECT_FALSE(core_.FinishSequence(RequestId(2), 0));
  EXPECT_FALSE(core_.FinishSequence(RequestId(1), 2));
  EXPECT_FALSE(core_.FinishSequence(RequestId(1), -1));
  EXPECT_TRUE(core_.FinishSequence(RequestId(1), 0));
  EXPECT_FALSE(core_.FinishSequence(RequestId(1), 0));
  EXPECT_TRUE(core_.AbortRequest(RequestId(1)));
  EXPECT_FALSE(core_.AbortRequest(RequestId(1)));
}

TEST_F(SchedulerCoreTest, EventsAreTakenOnce) {
  Add({.id = 1});
  core_.AbortRequest(RequestId(1));

  EXPECT_THAT(core_.TakeEvents(), SizeIs(1));
  EXPECT_THAT(core_.TakeEvents(), IsEmpty());
}

TEST_F(SchedulerCoreTest, NextDeadlineIsTheEarliestOfTheLiving) {
  Add({.id = 1, .deadline = 50});
  Add({.id = 2, .deadline = 40});
  EXPECT_EQ(core_.next_deadline(), 40);

  core_.AbortRequest(RequestId(2));
  EXPECT_EQ(core_.next_deadline(), 50);

  core_.ExpireRequests(50);
  EXPECT_EQ(core_.next_deadline(), kInfiniteFuture);
}

TEST_F(SchedulerCoreTest, PlanStepEndsWhatExpired) {
  BeginEpoch();
  Add({.id = 1, .deadline = 50});

  EXPECT_EQ(core_.PlanStep(50), std::nullopt);

  auto events = core_.TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(std::get<SequenceFinished>(events[0]).reason, FinishReason::kExpiredQueued);
}

TEST_F(SchedulerCoreTest, ALostStepChangesNoToken) {
  BeginEpoch();
  Add({.id = 1, .prompt = 6, .max_tokens = 8});
  std::vector<TokenId> undisturbed = RunToEnd();

  SchedulerCore disturbed(CoreConfig{});
  std::vector<TokenId> token_ids;
  disturbed.AddRequest(MakeRequest({.id = 1, .prompt = 6, .max_tokens = 8}));
  for (uint64_t epoch = 1; epoch <= 10; ++epoch) {
    disturbed.BeginEpoch(7, epoch, kCoreLimits);
    FakeWorker worker(kCoreLimits);
    if (std::optional<StepPlan> plan = disturbed.PlanStep(0)) {
      EXPECT_TRUE(disturbed.ApplyStepResult(*worker.Execute(*plan)).ok());
    }
    disturbed.PlanStep(0);  // lost, with its workers
    disturbed.OnWorkersLost();
    for (const OutputEvent& event : disturbed.TakeEvents()) {
      if (const auto* token = std::get_if<TokenCommitted>(&event)) {
        token_ids.push_back(token->token_id);
      }
    }
  }

  EXPECT_THAT(undisturbed, SizeIs(8));
  EXPECT_EQ(token_ids, undisturbed);
}

TEST_F(SchedulerCoreTest, AnAnswerOfLostWorkersIsRefused) {
  BeginEpoch();
  Add({.id = 1, .prompt = 6});
  StepPlan plan = *core_.PlanStep(0);
  StepResult late = *worker_->Execute(plan);
  core_.OnWorkersLost();
  EXPECT_FALSE(core_.ApplyStepResult(late).ok());

  BeginEpoch();
  ASSERT_TRUE(core_.PlanStep(0).has_value());

  EXPECT_FALSE(core_.ApplyStepResult(late).ok());
  EXPECT_TRUE(core_.has_unanswered_plan());
}

TEST_F(SchedulerCoreTest, LosingWorkersTwiceIsLosingThemOnce) {
  BeginEpoch();
  Add({.id = 1});

  core_.OnWorkersLost();
  core_.OnWorkersLost();

  EXPECT_EQ(core_.stats().num_waiting_requests, 1);
}

TEST_F(SchedulerCoreTest, StatsTellWhereTheBlocksAre) {
  BeginEpoch();
  Add({.id = 1, .prompt = 6, .max_tokens = 3, .num_sequences = 2});
  Add({.id = 2, .prompt = 13, .max_tokens = 1});
  Step();

  CoreStats stats = core_.stats();

  EXPECT_EQ(stats.num_blocks, 8);
  EXPECT_EQ(stats.num_used_blocks, 4 + 1);
  EXPECT_EQ(stats.num_free_blocks, 3);
  EXPECT_EQ(stats.num_held_blocks, 4 + 1);
  EXPECT_EQ(stats.num_shared_blocks, 2);
  EXPECT_EQ(stats.num_stored_tokens, 6 + 10);  // five are shared
  EXPECT_EQ(stats.num_table_tokens, 6 + 5 + 10);
  EXPECT_DOUBLE_EQ(stats.fragmentation(), 4.0 / 20.0);
  EXPECT_EQ(stats.num_running_requests, 2);
  EXPECT_EQ(stats.num_running_sequences, 3);
  EXPECT_EQ(stats.num_prompt_tokens_computed, 16);
  EXPECT_EQ(stats.num_tokens_committed, 1);
}

TEST_F(SchedulerCoreTest, EverythingIsFreeAtTheEnd) {
  BeginEpoch();
  Add({.id = 1, .prompt = 6, .max_tokens = 3, .num_sequences = 2});
  Add({.id = 2, .prompt = 13, .max_tokens = 1});

  RunToEnd();

  CoreStats stats = core_.stats();
  EXPECT_EQ(stats.num_free_blocks, 8);
  EXPECT_EQ(stats.num_running_sequences, 0);
  EXPECT_EQ(stats.num_requests_finished, 2);
  EXPECT_FALSE(core_.has_work());
}

using SchedulerCoreDeathTest = SchedulerCoreTest;

TEST_F(SchedulerCoreDeathTest, RefusesRequestsThatTheServiceMustNotLetThrough) {
  Add({.id = 5});

  EXPECT_DEATH(Add({.id = 5}), "last_request_id");
  EXPECT_DEATH(Add({.id = 6, .prompt = 0}), "prompt_token_ids");
  EXPECT_DEATH(Add({.id = 6, .max_tokens = 0}), "max_tokens");
  EXPECT_DEATH(Add({.id = 6, .num_sequences = 0}), "num_sequences");
}

TEST_F(SchedulerCoreDeathTest, RefusesASecondEpochAndEmptyLimits) {
  EXPECT_DEATH(core_.BeginEpoch(1, 1, StepLimits{}), "limits");
  BeginEpoch();
  EXPECT_DEATH(BeginEpoch(), "epoch");
}

// The tokens that an undisturbed core commits, by sequence.
std::vector<std::vector<TokenId>> Undisturbed(const Request& request) {
  std::vector<std::vector<TokenId>> outputs;
  for (int32_t index = 0; index < request.num_sequences; ++index) {
    std::vector<TokenId> tokens = request.prompt_token_ids;
    for (int32_t i = 0; i < request.max_tokens; ++i) {
      tokens.push_back(ExpectedToken(tokens, request.sampling.seed, index, kCoreLimits.vocab_size));
    }
    outputs.emplace_back(tokens.end() - request.max_tokens, tokens.end());
  }
  return outputs;
}

TEST_F(SchedulerCoreTest, AResumedRequestGoesOnBehindItsTokens) {
  BeginEpoch();
  Request request = MakeRequest({.id = 1, .prompt = 5, .max_tokens = 6, .num_sequences = 3});
  std::vector<std::vector<TokenId>> outputs = Undisturbed(request);
  request.is_resumed = true;
  request.resumed.resize(3);
  request.resumed[0].token_ids = {outputs[0].begin(), outputs[0].begin() + 4};
  request.resumed[2] = {.token_ids = outputs[2], .has_ended = true};

  EXPECT_EQ(core_.AddRequest(request), AddOutcome::kQueued);
  while (Step()) {
  }

  outputs[0].resize(4);
  outputs[1].clear();
  int num_finished = 0;
  for (const OutputEvent& event : core_.TakeEvents()) {
    if (const auto* token = std::get_if<TokenCommitted>(&event)) {
      std::vector<TokenId>& output = outputs[static_cast<size_t>(token->sequence_index)];
      EXPECT_EQ(token->token_index, static_cast<int32_t>(output.size()));
      output.push_back(token->token_id);
    } else {
      const auto& finished = std::get<SequenceFinished>(event);
      EXPECT_NE(finished.sequence_index, 2);
      EXPECT_EQ(finished.num_output_tokens, 6);
      EXPECT_EQ(finished.is_last_of_request, ++num_finished == 2);
    }
  }
  EXPECT_EQ(outputs, Undisturbed(request));
  EXPECT_EQ(num_finished, 2);
}

TEST_F(SchedulerCoreTest, AResumedRequestNeedsRoomForAllOfItsLengthAndNoneForWhatHasEnded) {
  BeginEpoch();
  Request request = MakeRequest({.id = 1, .prompt = 4, .max_tokens = 20, .num_sequences = 2});
  request.is_resumed = true;
  EXPECT_EQ(core_.AddRequest(request), AddOutcome::kNeverFits);

  request.resumed = {{.has_ended = true}, {.token_ids = std::vector<TokenId>(19, 1)}};
  ++request.max_tokens;  // one more than the context holds
  EXPECT_EQ(core_.AddRequest(request), AddOutcome::kNeverFits);

  --request.max_tokens;
  EXPECT_EQ(core_.AddRequest(request), AddOutcome::kQueued);
  EXPECT_THAT(RunToEnd(), SizeIs(1));
}

TEST_F(SchedulerCoreTest, AFullQueueTakesResumedRequestsAsWell) {
  EXPECT_EQ(Add({.id = 1, .prompt = 15}), AddOutcome::kQueued);
  EXPECT_EQ(Add({.id = 2, .prompt = 15}), AddOutcome::kQueued);
  Request resumed = MakeRequest({.id = 3, .prompt = 20});
  resumed.is_resumed = true;

  EXPECT_EQ(core_.AddRequest(resumed), AddOutcome::kQueued);
  resumed.id = RequestId(4);
  EXPECT_EQ(core_.AddRequest(resumed), AddOutcome::kQueueFull);
  EXPECT_EQ(core_.stats().num_waiting_requests, 3);
  EXPECT_EQ(core_.stats().num_waiting_resumed_requests, 1);
  EXPECT_EQ(core_.stats().num_queued_tokens, 50);
  EXPECT_EQ(core_.stats().num_queued_resumed_tokens, 20);
}

}  // namespace
}  // namespace quire
