#include "scheduler/loop/scheduler_loop.h"

#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "tests/scheduler/loop/fake_worker_client.h"
#include "tests/scheduler/loop/letter_tokenizer.h"
#include "tests/scheduler/loop/recording_stream.h"
#include "tests/support/capture_log.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;
using testing::SizeIs;

constexpr StepLimits kLimits = {.num_blocks = 64,
                                .block_size_tokens = 4,
                                .max_sequences = 8,
                                .max_tokens_per_step = 32,
                                .max_model_len = 100,
                                .vocab_size = kLetterVocabSize};

// The output of a request that nothing disturbed.
std::vector<TokenId> ExpectedOutput(const Request& request, int32_t sequence_index = 0) {
  std::vector<TokenId> tokens = request.prompt_token_ids;
  std::vector<TokenId> output;
  for (int32_t i = 0; i < request.max_tokens; ++i) {
    output.push_back(
        ExpectedToken(tokens, request.sampling.seed, sequence_index, kLetterVocabSize));
    tokens.push_back(output.back());
  }
  return output;
}

class SchedulerLoopTest : public testing::Test {
 protected:
  SchedulerLoopTest() : SchedulerLoopTest(LoopConfig{}) {}
  explicit SchedulerLoopTest(const LoopConfig& config)
      : client_(&inbox_, kLimits),
        loop_(config,
              {.inbox = &inbox_,
               .workers = &client_,
               .state = &state_,
               .observer = &observer_,
               .clock = [this] { return now_; }}) {}

  struct Added {
    Request request;
    RequestId id;
    std::shared_ptr<RecordingStream> stream;
  };
  Added Add(const RequestSpec& spec, const OutputOptions& output = {}) {
    Added added{.request = MakeRequest(spec, kLetterVocabSize),
                .id = {},
                .stream = std::make_shared<RecordingStream>()};
    added.id =
        inbox_.Add({.request = added.request, .output = output, .stream = added.stream}).value();
    return added;
  }
  bool Turn() { return loop_.Turn(absl::ZeroDuration()); }
  // The step that was sent is of request 1 and no other.
  bool IsFirstAlone() const {
    return client_.unanswered()->introductions.size() == 1 &&
           client_.unanswered()->introductions.front().sampling.seed == 1;
  }
  // Answers steps until none is sent any more.
  void RunDry() {
    for (Turn(); client_.unanswered().has_value(); Turn()) {
      client_.Answer();
    }
  }

  Instant now_ = kNanosPerSecond;
  Inbox inbox_;
  FakeWorkerClient client_;
  ServingState state_;
  struct Observer : public LoopObserver {
    void OnStaleReply() override { ++num_stale_replies; }
    void OnStep(const StepObservation& step) override { sum_build_us += step.worker.build_us; }
    void OnTurn(int64_t turn_ns) override { last_turn_ns = turn_ns; }
    int num_stale_replies = 0;
    int64_t sum_build_us = 0;
    int64_t last_turn_ns = 0;
  };
  Observer observer_;
  SchedulerLoop loop_;
};

TEST_F(SchedulerLoopTest, ARequestGetsTheTokensOfItsSequence) {
  client_.BeginEpoch();
  Added added = Add({.id = 7, .prompt = 5, .max_tokens = 6});

  RunDry();

  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
  EXPECT_THAT(added.stream->end(), Optional(absl::OkStatus()));
  EXPECT_EQ(state_.Get().num_open_requests, 0);
  EXPECT_EQ(state_.Get().stats.num_free_blocks, kLimits.num_blocks - 1);
}

TEST_F(SchedulerLoopTest, TokensOfAStepArePublishedAfterTheNextStepIsSent) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 3});
  Turn();
  client_.Answer();

  Turn();

  EXPECT_EQ(client_.num_steps(), 2);
  EXPECT_TRUE(client_.unanswered().has_value());
  EXPECT_THAT(added.stream->updates(), SizeIs(1));
}

TEST_F(SchedulerLoopTest, EventsThatArriveWhileAStepRunsAreNotLost) {
  client_.BeginEpoch();
  Added first = Add({.id = 1, .prompt = 2, .max_tokens = 3});
  Turn();

  Added second = Add({.id = 2, .prompt = 2, .max_tokens = 3});
  Added third = Add({.id = 3, .prompt = 2, .max_tokens = 3});
  inbox_.Post(AbortRequest{third.id, absl::CancelledError("changed my mind")});
  Turn();
  client_.Answer();
  RunDry();

  EXPECT_THAT(first.stream->Tokens(), Optional(ExpectedOutput(first.request)));
  EXPECT_THAT(second.stream->Tokens(), Optional(ExpectedOutput(second.request)));
  EXPECT_THAT(third.stream->end(), Optional(absl::CancelledError("changed my mind")));
}

TEST_F(SchedulerLoopTest, RequestsWaitForTheFirstGroup) {
  Added added = Add({.prompt = 2, .max_tokens = 2});
  Turn();
  EXPECT_EQ(client_.num_steps(), 0);

  client_.BeginEpoch();
  RunDry();

  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
}

TEST_F(SchedulerLoopTest, ARequestThatCrashesItsWorkersEndsAndSaysHowOften) {
  client_.BeginEpoch();
  Added poison = Add({.id = 1, .prompt = 5, .max_tokens = 6});
  Added other = Add({.id = 2, .prompt = 5, .max_tokens = 6});
  for (int crash = 0; crash < 5; ++crash) {
    for (Turn(); client_.unanswered()->slices.size() == 1 && !IsFirstAlone(); Turn()) {
      client_.Answer();
    }
    client_.LoseGroup();
    Turn();
    client_.BeginEpoch();
  }
  RunDry();

  ASSERT_TRUE(poison.stream->end().has_value());
  EXPECT_EQ(poison.stream->end()->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(*poison.stream->end()), "WORKER_CRASH");
  EXPECT_EQ(MetadataOf(*poison.stream->end(), "crashes"), "5");
  EXPECT_EQ(state_.Get().stats.num_poison_requests, 1);
  EXPECT_THAT(other.stream->Tokens(), Optional(ExpectedOutput(other.request)));
  EXPECT_THAT(other.stream->end(), Optional(absl::OkStatus()));
}

TEST_F(SchedulerLoopTest, LossesThatAreNoCrashesEndNobody) {
  client_.BeginEpoch();
  Added added = Add({.id = 1, .prompt = 5, .max_tokens = 6});
  for (int loss = 0; loss < 10; ++loss) {
    Turn();
    ASSERT_TRUE(client_.unanswered().has_value());
    client_.LoseGroup();
    Turn();
    client_.BeginEpoch(/*after_crash=*/false);
  }
  RunDry();

  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
  EXPECT_THAT(added.stream->end(), Optional(absl::OkStatus()));
}

TEST_F(SchedulerLoopTest, AStandbyTakesNothingAndWaitsForNoWorkersUntilItTakesOver) {
  inbox_.Post(GroupStandby{.scheduler_incarnation = 2});
  Turn();
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "STANDBY");
  now_ += 2 * LoopConfig().worker_timeout_ns;
  Turn();
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "STANDBY") << "it may take for ever";

  inbox_.Post(GroupStandby{.scheduler_incarnation = 0});
  Turn();
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "LOADING");
  now_ += 2 * LoopConfig().worker_timeout_ns;
  Turn();
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "NO_WORKERS");
  client_.BeginEpoch();
  Turn();

  EXPECT_TRUE(state_.Get().is_ready());
}

TEST_F(SchedulerLoopTest, ASchedulerThatIsSupersededEndsItsStreamsAndStandsBy) {
  client_.BeginEpoch();
  Added running = Add({.id = 1, .prompt = 5, .max_tokens = 6});
  Turn();
  client_.LoseGroup();
  inbox_.Post(GroupStandby{.scheduler_incarnation = 2});
  Added late = Add({.id = 2, .prompt = 5, .max_tokens = 6});

  Turn();
  now_ += 2 * LoopConfig().worker_timeout_ns;
  Turn();

  for (const Added& added : {running, late}) {
    ASSERT_TRUE(added.stream->end().has_value());
    EXPECT_EQ(added.stream->end()->code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(*added.stream->end()), "SUPERSEDED");
  }
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "STANDBY");
  EXPECT_EQ(state_.Get().num_open_requests, 0);

  inbox_.Post(GroupStandby{.scheduler_incarnation = 0});
  client_.BeginEpoch();
  Turn();
  Added next = Add({.id = 3, .prompt = 5, .max_tokens = 6});
  RunDry();

  EXPECT_THAT(next.stream->Tokens(), Optional(ExpectedOutput(next.request)));
}

TEST_F(SchedulerLoopTest, AStandbyThatShutsDownTakesNothingAlsoWhenTheOtherOneIsGone) {
  inbox_.Post(GroupStandby{.scheduler_incarnation = 2});
  inbox_.Post(AbortAll{absl::UnavailableError("closing")});
  inbox_.Post(GroupStandby{.scheduler_incarnation = 0});
  client_.BeginEpoch();
  Turn();
  Added late = Add({.prompt = 5, .max_tokens = 6});
  Turn();

  EXPECT_THAT(late.stream->end(), Optional(testing::Ne(absl::OkStatus())));
}

TEST_F(SchedulerLoopTest, AGroupLostInMidStepChangesNoTokenOfAnyStream) {
  client_.BeginEpoch();
  Added first = Add({.id = 1, .prompt = 9, .max_tokens = 10});
  Added second = Add({.id = 2, .prompt = 3, .max_tokens = 10, .num_sequences = 2});
  for (int i = 0; i < 4; ++i) {
    Turn();
    client_.Answer();
  }
  Turn();
  ASSERT_TRUE(client_.unanswered().has_value());

  client_.LoseGroup();
  Turn();
  EXPECT_EQ(state_.Get().group, ServingState::Group::kLost);
  client_.BeginEpoch();
  RunDry();

  EXPECT_THAT(client_.abandoned(), ElementsAre(1));
  EXPECT_EQ(state_.Get().group, ServingState::Group::kReady);
  EXPECT_THAT(first.stream->Tokens(), Optional(ExpectedOutput(first.request)));
  EXPECT_THAT(second.stream->Tokens(0), Optional(ExpectedOutput(second.request, 0)));
  EXPECT_THAT(second.stream->Tokens(1), Optional(ExpectedOutput(second.request, 1)));
  EXPECT_TRUE(first.stream->end()->ok() && second.stream->end()->ok());
}

TEST_F(SchedulerLoopTest, AnAnswerOfALostEpochIsDropped) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 4});
  Turn();
  const StepResult late = client_.Compute();

  client_.LoseGroup();
  Turn();
  client_.BeginEpoch();
  Turn();
  ASSERT_TRUE(client_.unanswered().has_value());
  inbox_.Post(StepReply{late});
  Turn();
  client_.Answer();
  RunDry();

  EXPECT_THAT(client_.abandoned(), ElementsAre(1)) << "the second epoch was not fenced";
  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
}

TEST_F(SchedulerLoopTest, AnAnswerThatDoesNotFitItsPlanFencesTheGroup) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 4});
  Turn();
  StepResult wrong = client_.Compute();
  wrong.plan_digest ^= 1;

  inbox_.Post(StepReply{wrong});
  Turn();
  EXPECT_THAT(client_.abandoned(), ElementsAre(1));
  client_.BeginEpoch();
  RunDry();

  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
}

TEST_F(SchedulerLoopTest, AStaleReplyIsCountedAndChangesNothing) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 4});
  Turn();

  inbox_.Post(StaleReply{});
  RunDry();

  EXPECT_EQ(observer_.num_stale_replies, 1);
  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
}

TEST_F(SchedulerLoopTest, ARequestThatExpiresInTheQueueEndsWithoutAWorker) {
  Added added = Add({.prompt = 2, .deadline = now_ + 5});
  Turn();

  now_ += 5;
  Turn();

  EXPECT_EQ(ReasonOf(*added.stream->end()), "EXPIRED_QUEUED");
}

// A client cancels at its deadline, too; it is the deadline that ends its request.
TEST_F(SchedulerLoopTest, WhoIsCancelledWhenItsDeadlineHasPassedHasExpired) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 50, .deadline = now_ + 5});
  Turn();
  inbox_.Post(AbortRequest{added.id, absl::CancelledError("by its client")});
  now_ += 5;

  Turn();

  EXPECT_EQ(ReasonOf(*added.stream->end()), "EXPIRED_RUNNING");
}

TEST_F(SchedulerLoopTest, ARequestThatExpiresWhileItRunsEndsAtTheNextStep) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 50, .deadline = now_ + 5});
  Turn();
  client_.Answer();
  Turn();
  client_.Answer();

  now_ += 5;
  RunDry();

  EXPECT_EQ(ReasonOf(*added.stream->end()), "EXPIRED_RUNNING");
  EXPECT_EQ(state_.Get().stats.num_free_blocks, kLimits.num_blocks - 1);
}

TEST_F(SchedulerLoopTest, AStopStringEndsTheSequenceInTheCoreToo) {
  const auto tokenizer = MakeLetterTokenizer();
  Request probe = MakeRequest({.id = 5, .prompt = 3, .max_tokens = 40}, kLetterVocabSize);
  const std::vector<TokenId> expected = ExpectedOutput(probe);
  const auto letter =
      std::find_if(expected.begin() + 3, expected.end(), [](TokenId id) { return id < kSpaceId; });
  const std::string stop(1, static_cast<char>('a' + *letter));
  OutputOptions output;
  output.tokenizer = tokenizer.get();
  output.stop_strings = {stop};
  output.stop_matcher = *StopMatcher::Create({stop}, false);
  client_.BeginEpoch();

  Added added = Add({.id = 5, .prompt = 3, .max_tokens = 40}, output);
  RunDry();

  const auto tokens = *added.stream->Tokens();
  ASSERT_FALSE(tokens.empty());
  EXPECT_EQ(tokens.back(), *letter);
  EXPECT_LT(tokens.size(), 38U);
  EXPECT_EQ(client_.num_steps(), static_cast<int>(tokens.size()) + 1) << "found one step late";
  EXPECT_EQ(added.stream->updates().back().end->matched_stop, stop);
  EXPECT_EQ(state_.Get().stats.num_running_requests, 0);
  EXPECT_EQ(state_.Get().stats.num_free_blocks, kLimits.num_blocks - 1);
}

TEST_F(SchedulerLoopTest, AStreamThatGetsNothingThroughIsCut) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 50});
  Turn();
  added.stream->StallSince(now_);

  now_ += LoopConfig().slow_consumer_ns + kNanosPerSecond;
  Turn();

  EXPECT_EQ(ReasonOf(*added.stream->end()), "SLOW_CONSUMER");
}

TEST_F(SchedulerLoopTest, AStreamThatOverflowsIsCut) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 50});
  added.stream->RefuseWrites();

  RunDry();

  EXPECT_EQ(ReasonOf(*added.stream->end()), "SLOW_CONSUMER");
  EXPECT_LT(client_.num_steps(), 5);
  EXPECT_EQ(state_.Get().stats.num_free_blocks, kLimits.num_blocks - 1);
}

TEST_F(SchedulerLoopTest, RequestsEndWhenALostGroupDoesNotComeBack) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 50});
  Turn();
  client_.LoseGroup();
  Turn();
  EXPECT_TRUE(state_.CheckAdmission().ok());

  now_ += LoopConfig().worker_timeout_ns;
  Turn();

  EXPECT_EQ(ReasonOf(*added.stream->end()), "WORKER_TIMEOUT");
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "NO_WORKERS");
  client_.BeginEpoch();
  Turn();
  EXPECT_TRUE(state_.CheckAdmission().ok());
}

TEST_F(SchedulerLoopTest, AWorkerThatGetsOnWithLoadingIsWaitedFor) {
  client_.BeginEpoch();
  Added added = Add({.prompt = 2, .max_tokens = 5});
  Turn();
  client_.LoseGroup();
  Turn();

  for (int i = 0; i < 3; ++i) {
    now_ += LoopConfig().worker_timeout_ns - 1;
    inbox_.Post(GroupLoading{.rank = 0, .loaded_bytes = i, .total_bytes = 9});
    Turn();
  }
  client_.BeginEpoch();
  RunDry();

  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
}

TEST_F(SchedulerLoopTest, AFirstWorkerIsWaitedForAsLongAsALaterOne) {
  now_ += LoopConfig().worker_timeout_ns - 1;
  Turn();
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "LOADING");

  now_ += 1;
  Turn();

  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "NO_WORKERS");
}

// Groups become ready and are lost before they answer a step, until no request waits.
class FailingWorkersTest : public SchedulerLoopTest {
 protected:
  static constexpr int kEpochsPerTimeout = 10;

  // Begins an epoch whose plan is lost, and lets a part of worker_timeout_ns pass.
  void FailAnEpoch() {
    client_.BeginEpoch(/*after_crash=*/false);
    Turn();
    EXPECT_TRUE(client_.unanswered().has_value());
    client_.LoseGroup();
    Turn();
    now_ += LoopConfig().worker_timeout_ns / kEpochsPerTimeout;
    Turn();
  }
  void FailUntilGivenUp() {
    for (int i = 0; i < kEpochsPerTimeout; ++i) {
      FailAnEpoch();
    }
    ASSERT_EQ(ReasonOf(state_.CheckAdmission()), "NO_WORKERS");
  }
};

TEST_F(FailingWorkersTest, AreGivenUpAfterTheTimeout) {
  Added added = Add({.prompt = 2, .max_tokens = 5});
  for (int i = 0; i < kEpochsPerTimeout - 1; ++i) {
    FailAnEpoch();
    ASSERT_EQ(added.stream->end(), std::nullopt) << i;
    ASSERT_TRUE(state_.CheckAdmission().ok()) << i;
  }

  FailAnEpoch();

  ASSERT_TRUE(added.stream->end().has_value());
  EXPECT_EQ(ReasonOf(*added.stream->end()), "WORKERS_FAIL");
  EXPECT_THAT(std::string(added.stream->end()->message()), HasSubstr("10 times"));
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "NO_WORKERS");
}

TEST_F(FailingWorkersTest, ServeAgainWhenTheyAnswerAStep) {
  Add({.prompt = 2, .max_tokens = 5});
  FailUntilGivenUp();

  client_.BeginEpoch();
  Turn();  // the loop asks itself for a token
  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "NO_WORKERS") << "not before they answer";
  Turn();
  ASSERT_TRUE(client_.unanswered().has_value());
  client_.Answer();
  Turn();

  EXPECT_TRUE(state_.CheckAdmission().ok());
  Added added = Add({.id = 9, .prompt = 2, .max_tokens = 5});
  RunDry();
  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
}

TEST_F(FailingWorkersTest, AreProbedEveryFewSecondsUntilTheyAnswer) {
  Add({.prompt = 2, .max_tokens = 5});
  FailUntilGivenUp();
  for (int i = 0; i < 3; ++i) {
    client_.BeginEpoch();
    Turn();
    Turn();
    ASSERT_TRUE(client_.unanswered().has_value()) << i;
    client_.LoseGroup();
    Turn();
    EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "NO_WORKERS");
    client_.BeginEpoch();
    Turn();
    Turn();
    EXPECT_FALSE(client_.unanswered().has_value()) << "a probe has just failed";
    now_ += 5 * kNanosPerSecond;
    client_.LoseGroup();
    Turn();
  }
}

TEST_F(FailingWorkersTest, AnAnswerBeginsTheWaitAnew) {
  Added added = Add({.prompt = 2, .max_tokens = 5});
  for (int i = 0; i < kEpochsPerTimeout - 1; ++i) {
    FailAnEpoch();
  }
  client_.BeginEpoch(/*after_crash=*/false);
  Turn();
  client_.Answer();
  Turn();
  client_.LoseGroup();
  Turn();
  now_ += LoopConfig().worker_timeout_ns / 2;
  Turn();

  EXPECT_EQ(added.stream->end(), std::nullopt);
  client_.BeginEpoch(/*after_crash=*/false);
  RunDry();
  EXPECT_THAT(added.stream->Tokens(), Optional(ExpectedOutput(added.request)));
}

// The first step of a long prompt gives no token, and can be answered for ever.
TEST_F(FailingWorkersTest, AnAnswerWithoutATokenIsNoReasonToWaitOn) {
  Added added = Add({.prompt = 60, .max_tokens = 5});
  for (int i = 0; i < kEpochsPerTimeout; ++i) {
    ASSERT_EQ(added.stream->end(), std::nullopt) << i;
    client_.BeginEpoch(/*after_crash=*/false);
    Turn();
    client_.Answer();
    Turn();
    client_.LoseGroup();
    Turn();
    now_ += LoopConfig().worker_timeout_ns / kEpochsPerTimeout;
    Turn();
  }

  ASSERT_TRUE(added.stream->end().has_value());
  EXPECT_EQ(ReasonOf(*added.stream->end()), "WORKERS_FAIL");
}

TEST_F(FailingWorkersTest, AreLeftToANewerSchedulerAlsoWhenGivenUp) {
  Add({.prompt = 2, .max_tokens = 5});
  FailUntilGivenUp();

  inbox_.Post(GroupStandby{.scheduler_incarnation = 9});
  Turn();
  Turn();

  EXPECT_EQ(ReasonOf(state_.CheckAdmission()), "STANDBY");
}

TEST_F(FailingWorkersTest, GroupsThatAreLostWhileIdleHaveNotFailed) {
  for (int i = 0; i < 3 * kEpochsPerTimeout; ++i) {
    client_.BeginEpoch();
    Turn();
    client_.LoseGroup();
    Turn();
    now_ += LoopConfig().worker_timeout_ns / kEpochsPerTimeout;
    Turn();
    ASSERT_TRUE(state_.CheckAdmission().ok()) << i;
  }
}

TEST_F(SchedulerLoopTest, AbortAllEndsWhatRunsAndRefusesWhatComes) {
  client_.BeginEpoch();
  Added running = Add({.id = 1, .prompt = 2, .max_tokens = 50});
  Turn();

  inbox_.Post(AbortAll{absl::UnavailableError("closing")});
  Turn();
  Added late = Add({.id = 2, .prompt = 2});
  Turn();

  EXPECT_THAT(running.stream->end(), Optional(absl::UnavailableError("closing")));
  EXPECT_THAT(late.stream->end(), Optional(absl::UnavailableError("closing")));
}

TEST_F(SchedulerLoopTest, StopEndsTheLoopAndEveryStream) {
  Added added = Add({.prompt = 2});
  EXPECT_TRUE(Turn());

  inbox_.Post(Stop{});

  EXPECT_FALSE(Turn());
  EXPECT_EQ(ReasonOf(*added.stream->end()), "DRAINING");
}

class BoundedQueueLoopTest : public SchedulerLoopTest {
 protected:
  BoundedQueueLoopTest()
      : SchedulerLoopTest(LoopConfig{
            .core = {.max_queued_requests = 2, .max_queued_tokens = 10, .watermark = 0}}) {}
};

TEST_F(BoundedQueueLoopTest, RequestsPastTheQueuesBoundsAreRefused) {
  Added first = Add({.id = 1, .prompt = 2});
  Added too_many_tokens = Add({.id = 2, .prompt = 9});
  Add({.id = 3, .prompt = 2});
  Added one_too_many = Add({.id = 4, .prompt = 2});

  Turn();

  EXPECT_EQ(ReasonOf(*too_many_tokens.stream->end()), "QUEUE_TOKENS");
  EXPECT_EQ(ReasonOf(*one_too_many.stream->end()), "QUEUE_FULL");
  // The loop calls OnQueued for queued requests alone. On that call a resumed request takes its
  // predecessor's place.
  EXPECT_TRUE(first.stream->is_queued());
  EXPECT_FALSE(too_many_tokens.stream->is_queued());
  EXPECT_FALSE(one_too_many.stream->is_queued());
}

TEST_F(SchedulerLoopTest, ATurnIsMeasuredWithoutItsWaitAndASlowOneNamesItsDuty) {
  inbox_.Post(ListPrefixesCall{[this](const auto& /*prefixes*/) { now_ += kNanosPerSecond; }});
  now_ += kNanosPerSecond;
  CaptureStderr();

  Turn();

  EXPECT_EQ(observer_.last_turn_ns, kNanosPerSecond);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("longest_duty=list_prefixes longest_duty_ms=1000"));
  Turn();
  EXPECT_EQ(observer_.last_turn_ns, 0);
}

class SwappingLoopTest : public SchedulerLoopTest {
 protected:
  SwappingLoopTest()
      : SchedulerLoopTest(LoopConfig{.core = {.preemption_mode = PreemptionMode::kSwap}}) {}

  std::string LogOfAnEpoch(int32_t num_host_blocks) {
    CaptureStderr();
    client_.SetNumHostBlocks(num_host_blocks);
    client_.BeginEpoch();
    Turn();
    return GetCapturedStderr();
  }
};

// The scheduler does not know the swap space before a worker has reported it.
TEST_F(SwappingLoopTest, AWorkerWithoutSwapSpaceIsServedWithAndSaidSo) {
  constexpr char kWarning[] =
      "WARNING workers have no swap space (--swap-space), so preempted requests are recomputed";

  EXPECT_THAT(LogOfAnEpoch(/*num_host_blocks=*/4), Not(HasSubstr(kWarning)));
  EXPECT_THAT(LogOfAnEpoch(/*num_host_blocks=*/0), HasSubstr(kWarning));
}

TEST_F(SchedulerLoopTest, RequestsThatCanNeverFitAreRefused) {
  client_.BeginEpoch();
  Turn();

  Added too_long = Add({.id = 1, .prompt = 100});
  Added too_wide = Add({.id = 2, .prompt = 40, .max_tokens = 60, .num_sequences = 8});
  Turn();

  EXPECT_EQ(ReasonOf(*too_long.stream->end()), "PROMPT_TOO_LONG");
  EXPECT_EQ(ReasonOf(*too_wide.stream->end()), "EXCEEDS_CAPACITY");
}

// The call has checked it against the group before, and will tell its client how long it becomes.
TEST_F(SchedulerLoopTest, ARequestThatTheNextGroupWouldCutIsRefused) {
  client_.BeginEpoch();
  client_.SetMaxModelLen(50);
  client_.BeginEpoch();
  Added too_long = Add({.id = 1, .prompt = 40, .max_tokens = 11});
  Added fits = Add({.id = 2, .prompt = 40, .max_tokens = 10});

  RunDry();

  EXPECT_EQ(ReasonOf(*too_long.stream->end()), "EXCEEDS_CAPACITY");
  EXPECT_EQ(too_long.stream->end()->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(fits.stream->Tokens(), Optional(ExpectedOutput(fits.request)));
}

TEST_F(SchedulerLoopTest, ARunningRequestThatTheNextGroupCannotFinishEndsWithAnError) {
  client_.BeginEpoch();
  Added too_long = Add({.id = 1, .prompt = 40, .max_tokens = 11});
  Turn();
  client_.Answer();
  Turn();
  client_.LoseGroup();
  client_.SetMaxModelLen(50);
  client_.BeginEpoch();
  RunDry();

  EXPECT_EQ(ReasonOf(*too_long.stream->end()), "EXCEEDS_CAPACITY");
}

class InboxTest : public testing::Test {
 protected:
  // The reason of a refusal, or "".
  static std::string Offer(Inbox& inbox, const std::string& tenant = "", bool is_resumed = false) {
    return ReasonOf(inbox
                        .Add({.request = {.tenant = tenant, .is_resumed = is_resumed},
                              .output = {},
                              .stream = std::make_shared<RecordingStream>()})
                        .status());
  }
};

TEST_F(InboxTest, AFullInboxRefusesRequestsAndStillTakesEverythingElse) {
  Inbox inbox({.fresh = {.num_requests = 1}});

  EXPECT_EQ(Offer(inbox), "");
  EXPECT_EQ(Offer(inbox), "QUEUE_FULL");
  EXPECT_EQ(ReasonOf(inbox.Add(PinCall{})), "QUEUE_FULL");
  inbox.Post(Stop{});

  const std::deque<LoopEvent> events = inbox.TakeAll(absl::ZeroDuration());
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(std::get<AddRequest>(events.front()).request.id, RequestId(1));
  EXPECT_TRUE(inbox.Add(PinCall{}).ok());
  EXPECT_EQ(std::get<PinCall>(inbox.TakeAll(absl::ZeroDuration()).front()).id, RequestId(2));
}

TEST_F(InboxTest, AFullInboxHasAPlaceForAResumedRequest) {
  Inbox inbox({.fresh = {.num_requests = 1}, .resumed = {.num_requests = 1}});

  EXPECT_EQ(Offer(inbox), "");
  EXPECT_EQ(Offer(inbox), "QUEUE_FULL");
  EXPECT_EQ(Offer(inbox, "", /*is_resumed=*/true), "");
  EXPECT_EQ(Offer(inbox, "", /*is_resumed=*/true), "QUEUE_FULL");
}

TEST_F(InboxTest, ATenantLeavesPlacesForOthersUntilTheLoopHasTakenItsRequests) {
  Inbox inbox({.fresh = {.num_requests = 4}, .has_shares = true});

  EXPECT_EQ(Offer(inbox, "greedy"), "");
  EXPECT_EQ(Offer(inbox, "greedy"), "");
  EXPECT_EQ(Offer(inbox, "greedy"), "TENANT_LIMIT");
  EXPECT_EQ(Offer(inbox, "other"), "");
  EXPECT_EQ(inbox.TakeAll(absl::ZeroDuration()).size(), 3U);
  EXPECT_EQ(Offer(inbox, "greedy"), "");
}

// Several clients, a loop on its own thread, and a group that dies now and then.
TEST(SchedulerLoopThreadTest, ClientsGetTheirTokensWhileTheGroupDiesAgainAndAgain) {
  constexpr int kNumClients = 3;
  constexpr int kRequestsPerClient = 20;
  Inbox inbox;
  FakeWorkerClient workers(&inbox, kLimits);
  ServingState state;
  LoopObserver observer;
  SchedulerLoop loop(LoopConfig{},
                     {.inbox = &inbox,
                      .workers = &workers,
                      .state = &state,
                      .observer = &observer,
                      .clock = SteadyNow});
  workers.RunByItself();
  std::thread loop_thread([&loop] { loop.Run(); });

  std::vector<std::thread> clients;
  clients.reserve(kNumClients);
  for (int client = 0; client < kNumClients; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < kRequestsPerClient; ++i) {
        Request request = MakeRequest(
            {.id = static_cast<uint64_t>(100 * client + i + 1), .prompt = 1 + i, .max_tokens = 10},
            kLetterVocabSize);
        auto stream = std::make_shared<RecordingStream>();
        auto id = inbox.Add({.request = request, .output = {}, .stream = stream});
        ASSERT_TRUE(id.ok());
        if (i % 5 == 4) {
          inbox.Post(AbortRequest{*id, absl::CancelledError("")});
          EXPECT_TRUE(stream->WaitForEnd().code() != absl::StatusCode::kDeadlineExceeded);
          continue;
        }
        if (i % 5 == 2) {
          workers.LoseGroupSoon();
        }
        EXPECT_TRUE(stream->WaitForEnd().ok());
        EXPECT_THAT(stream->Tokens(), Optional(ExpectedOutput(request)));
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  inbox.Post(Stop{});
  loop_thread.join();

  EXPECT_FALSE(workers.abandoned().empty());
  EXPECT_EQ(state.Get().num_open_requests, 0);
}

// Requests that do not all fit swap again and again; the blocks of the second group are twice
// as large as those of the first.
TEST(SchedulerLoopSwapTest, SwapBytesAreCountedWithTheBlocksOfEachGroup) {
  StepLimits limits = kLimits;
  limits.num_blocks = 11;
  limits.num_host_blocks = 20;
  Inbox inbox;
  FakeWorkerClient client(&inbox, limits);
  ServingState state;
  LoopObserver observer;
  SchedulerLoop loop({.core = {.preemption_mode = PreemptionMode::kSwap}},
                     {.inbox = &inbox, .workers = &client, .state = &state, .observer = &observer});
  for (uint64_t id = 1; id <= 8; ++id) {
    ASSERT_TRUE(inbox
                    .Add({.request = MakeRequest({.id = id, .prompt = 12, .max_tokens = 24},
                                                 kLetterVocabSize),
                          .output = {},
                          .stream = std::make_shared<RecordingStream>()})
                    .ok());
  }
  const auto run_until_swapped_in = [&](int64_t num_blocks) {
    for (int i = 0; i < 200 && state.Get().stats.num_blocks_swapped_in <= num_blocks; ++i) {
      loop.Turn(absl::ZeroDuration());
      if (client.unanswered().has_value()) {
        client.Answer();
      }
    }
    return state.Get();
  };

  client.BeginEpoch();
  const ServingState::Snapshot first = run_until_swapped_in(0);
  client.LoseGroup();
  client.BeginEpoch();
  const ServingState::Snapshot second = run_until_swapped_in(first.stats.num_blocks_swapped_in);

  const int64_t bytes = FakeWorkerClient::kBlockBytes;
  EXPECT_GT(first.stats.num_blocks_swapped_in, 0);
  EXPECT_EQ(first.swap_bytes.out, bytes * first.stats.num_blocks_swapped_out);
  EXPECT_EQ(first.swap_bytes.in, bytes * first.stats.num_blocks_swapped_in);
  EXPECT_EQ(second.block_bytes, 2 * bytes);
  EXPECT_GT(second.stats.num_blocks_swapped_in, first.stats.num_blocks_swapped_in);
  EXPECT_EQ(second.swap_bytes.out - first.swap_bytes.out,
            2 * bytes * (second.stats.num_blocks_swapped_out - first.stats.num_blocks_swapped_out));
  EXPECT_EQ(second.swap_bytes.in - first.swap_bytes.in,
            2 * bytes * (second.stats.num_blocks_swapped_in - first.stats.num_blocks_swapped_in));
}

class SchedulerLoopStateTest : public SchedulerLoopTest {
 protected:
  // The moment that a call gets in the next turn.
  std::shared_ptr<const LoopState> Look() {
    std::shared_ptr<const LoopState> seen;
    inbox_.Post(GetStateCall{.answer = [&seen](const auto& state) { seen = state; }});
    Turn();
    EXPECT_NE(seen, nullptr);
    return seen;
  }
};

TEST_F(SchedulerLoopStateTest, AMomentShowsStepsBlocksAndWhoHasThem) {
  client_.BeginEpoch();
  const Added added = Add({.id = 7, .prompt = 5, .max_tokens = 6});
  added.stream->SetRequestId("as-its-client-calls-it");
  Turn();
  now_ += 3 * kNanosPerMilli;
  client_.Answer();

  const auto state = Look();

  EXPECT_EQ(state->taken_at, now_);
  EXPECT_EQ(state->stats.num_running_requests, 1);
  EXPECT_EQ(state->steps.num_steps, 1);
  EXPECT_EQ(state->steps.round_trip_ns, 3 * kNanosPerMilli);
  EXPECT_EQ(state->block_map.cells.size(), static_cast<size_t>(kLimits.num_blocks - 1));
  ASSERT_THAT(state->block_map.holders, SizeIs(1));
  EXPECT_EQ(state->block_map.holders[0].id, added.id);
  EXPECT_EQ(state->block_map.holders[0].num_blocks, state->stats.num_held_blocks);
  EXPECT_THAT(state->request_ids, ElementsAre("as-its-client-calls-it"));
}

TEST_F(SchedulerLoopStateTest, TimesOfAWorkerAreWithinThoseOfItsAnswer) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  client_.BeginEpoch();
  Add({.id = 7, .prompt = 5, .max_tokens = 6});
  for (int i = 0; i < 3; ++i) {
    Turn();
    now_ += 3 * kNanosPerMilli;
    StepResult result = client_.Compute();
    result.timings = {
        .build_us = kMost, .forward_us = 1500, .sample_us = kLeast, .collective_us = -1};
    inbox_.Post(StepReply{std::move(result)});
  }

  const auto state = Look();

  EXPECT_EQ(state->steps.num_steps, 3);
  EXPECT_EQ(state->steps.worker,
            (StepTimings{
                .build_us = 3 * 3000, .forward_us = 3 * 1500, .sample_us = 0, .collective_us = 0}));
  EXPECT_EQ(observer_.sum_build_us, 3 * 3000);
}

TEST_F(SchedulerLoopStateTest, WhoeverAsksSoonAfterGetsTheSameMoment) {
  client_.BeginEpoch();
  const auto first = Look();
  now_ += StateCalls::kIntervalNs - 1;

  const auto soon = Look();
  now_ += 1;
  const auto later = Look();

  EXPECT_EQ(soon, first);
  EXPECT_EQ(later->taken_at, now_);
}

TEST_F(SchedulerLoopStateTest, ThereIsAMomentWithoutWorkersAndWhileItDrains) {
  Add({.prompt = 5, .max_tokens = 6});

  const auto without = Look();
  inbox_.Post(AbortAll{absl::UnavailableError("no more")});
  now_ += StateCalls::kIntervalNs;
  const auto draining = Look();

  EXPECT_EQ(without->stats.num_waiting_requests, 1);
  EXPECT_THAT(without->block_map.cells, SizeIs(0));
  EXPECT_EQ(draining->stats.num_waiting_requests, 0);
}

TEST_F(SchedulerLoopStateTest, ACallBesideTheEndIsAnswered) {
  bool is_answered = false;
  inbox_.Post(
      GetStateCall{.answer = [&is_answered](const auto& /*state*/) { is_answered = true; }});
  inbox_.Post(Stop{});

  EXPECT_FALSE(Turn());

  EXPECT_TRUE(is_answered);
}

}  // namespace
}  // namespace quire
