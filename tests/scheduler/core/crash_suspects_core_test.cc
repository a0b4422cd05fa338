// A request that crashes its workers, in the core: it ends alone, and the other requests' answers
// do not change.
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "scheduler/core/crash_suspects.h"
#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr StepLimits kCrashLimits{.num_blocks = 41,
                                  .block_size_tokens = 4,
                                  .max_sequences = 8,
                                  .max_tokens_per_step = 64,
                                  .max_model_len = 60,
                                  .vocab_size = 1000};

class CrashSuspectsCoreTest : public ::testing::Test {
 protected:
  explicit CrashSuspectsCoreTest(PreemptionMode mode = PreemptionMode::kRecompute)
      : core_(CoreConfig{.watermark = 0.0, .preemption_mode = mode, .prefix_caching = true}) {
    BeginEpoch();
  }

  void BeginEpoch(bool after_crash = false) {
    worker_.emplace(limits_);
    for (const auto& [seed, token] : poison_) {
      worker_->Poison(seed, token);
    }
    core_.BeginEpoch(1, ++group_epoch_, limits_, after_crash);
  }

  void Add(const RequestSpec& spec) {
    ASSERT_EQ(core_.AddRequest(MakeRequest(spec)), AddOutcome::kQueued);
    requests_[spec.id] = MakeRequest(spec);
  }
  void Poison(uint64_t id, int32_t position) {
    poison_[id] = {.position = position};
    worker_->Poison(id, poison_[id]);
  }

  // Returns the seeds whose slices the plan has; none without a plan. If is_killed, the worker is
  // killed instead of answering.
  std::set<uint64_t> Step(bool is_killed = false) {
    std::optional<StepPlan> plan = core_.PlanStep(0);
    if (!plan.has_value()) {
      return {};
    }
    for (const SequenceIntroduction& introduction : plan->introductions) {
      owners_[introduction.handle] = introduction.sampling.seed;
    }
    std::set<uint64_t> seeds;
    for (const SequenceSlice& slice : plan->slices) {
      seeds.insert(owners_[slice.handle]);
    }
    core_.CheckInvariants();
    const absl::StatusOr<StepResult> result = worker_->Execute(*plan);
    if (is_killed || !worker_->crashed_by().empty()) {
      num_crashes_ += is_killed ? 0 : 1;
      core_.OnWorkersLost();
      core_.CheckInvariants();
      BeginEpoch(/*after_crash=*/true);
    } else {
      EXPECT_TRUE(result.ok() && core_.ApplyStepResult(*result).ok()) << result.status();
    }
    core_.CheckInvariants();
    TakeEvents();
    return seeds;
  }
  void RunToEnd() {
    while (!Step().empty() || core_.has_work()) {
    }
  }

  void TakeEvents() {
    for (const OutputEvent& event : core_.TakeEvents()) {
      if (const auto* token = std::get_if<TokenCommitted>(&event)) {
        output_[{token->request_id.value(), token->sequence_index}].push_back(token->token_id);
      } else {
        const auto& finished = std::get<SequenceFinished>(event);
        reasons_[finished.request_id.value()].push_back(finished.reason);
      }
    }
  }
  void ExpectUndisturbed(uint64_t id) {
    const Request& request = requests_[id];
    for (int32_t index = 0; index < request.num_sequences; ++index) {
      std::vector<TokenId> tokens = request.prompt_token_ids;
      for (TokenId token : output_[{id, index}]) {
        EXPECT_EQ(token, ExpectedToken(tokens, id, index, limits_.vocab_size));
        tokens.push_back(token);
      }
      EXPECT_EQ(tokens.size(), request.prompt_token_ids.size() + request.max_tokens);
    }
    EXPECT_THAT(reasons_[id], ::testing::Each(FinishReason::kLength));
    EXPECT_THAT(reasons_[id], SizeIs(request.num_sequences));
  }

  StepLimits limits_ = kCrashLimits;
  SchedulerCore core_;
  std::optional<FakeWorker> worker_;
  uint64_t group_epoch_ = 0;
  int num_crashes_ = 0;
  std::map<uint64_t, FakeWorker::PoisonToken> poison_;
  std::map<uint64_t, Request> requests_;
  std::map<SequenceHandle, uint64_t> owners_;
  std::map<std::pair<uint64_t, int32_t>, std::vector<TokenId>> output_;
  std::map<uint64_t, std::vector<FinishReason>> reasons_;
};

TEST_F(CrashSuspectsCoreTest, APoisonRequestEndsAloneAndTheOthersAreUndisturbed) {
  for (uint64_t id = 1; id <= 5; ++id) {
    Add({.id = id, .prompt = 6, .max_tokens = 12});
  }
  Poison(3, 9);

  RunToEnd();

  EXPECT_EQ(num_crashes_, kMaxCrashes);
  EXPECT_THAT(reasons_[3], ElementsAre(FinishReason::kWorkerCrash));
  EXPECT_THAT((output_[{3, 0}]), SizeIs(4)) << "what it had before is kept";
  for (uint64_t id : {1, 2, 4, 5}) {
    ExpectUndisturbed(id);
  }
  EXPECT_EQ(core_.stats().num_poison_requests, 1);
  EXPECT_EQ(core_.stats().num_suspects, 0);
}

TEST_F(CrashSuspectsCoreTest, WhoRunsKeepsItsBlocksWhileASuspectComputesAlone) {
  Add({.id = 1, .prompt = 6, .max_tokens = 20});
  Add({.id = 2, .prompt = 6, .max_tokens = 20});
  Step(/*is_killed=*/true);
  Step(/*is_killed=*/true);
  EXPECT_EQ(core_.stats().num_suspects, 2);

  EXPECT_THAT(Step(), ElementsAre(1));
  EXPECT_EQ(core_.stats().num_suspects, 1) << "it is cleared";
  EXPECT_THAT(Step(), ElementsAre(2));

  EXPECT_EQ(core_.stats().num_recomputed_tokens, 0);
  EXPECT_THAT(Step(), ElementsAre(1, 2));
  EXPECT_EQ(core_.stats().num_preemptions, 0);
}

// The kills come so fast that no step is computed between them. Each kill meets another suspect.
TEST_F(CrashSuspectsCoreTest, KillsInARowEndNobodyBeforeEverySuspectHasCrashedAloneTwice) {
  constexpr int kNumRequests = 4;
  for (uint64_t id = 1; id <= kNumRequests; ++id) {
    Add({.id = id, .prompt = 6, .max_tokens = 8});
  }
  for (int kill = 0; kill < 2 + 2 * kNumRequests; ++kill) {
    Step(/*is_killed=*/true);
  }
  EXPECT_EQ(core_.stats().num_suspects, kNumRequests);

  RunToEnd();

  for (uint64_t id = 1; id <= kNumRequests; ++id) {
    ExpectUndisturbed(id);
  }
}

// The suspect is the newer request, and the other one holds the blocks. The core must preempt the
// other to make room.
TEST_F(CrashSuspectsCoreTest, ASuspectWithoutRoomBesideOthersTakesTheirs) {
  limits_.num_blocks = 10;
  core_.OnWorkersLost();
  BeginEpoch();
  Add({.id = 1, .prompt = 16, .max_tokens = 4});
  Add({.id = 2, .prompt = 15, .max_tokens = 10});
  Step();
  Step(/*is_killed=*/true);
  Step(/*is_killed=*/true);
  limits_.num_blocks = 8;
  core_.OnWorkersLost();
  BeginEpoch();
  ASSERT_EQ(core_.stats().num_suspects, 2);

  EXPECT_THAT(Step(), ElementsAre(1));
  EXPECT_THAT(Step(), ElementsAre(2));

  EXPECT_EQ(core_.stats().num_preemptions, 1);
  EXPECT_EQ(core_.stats().num_suspects, 0);
  RunToEnd();
  ExpectUndisturbed(1);
  ExpectUndisturbed(2);
}

class CrashSuspectsAutoTest : public CrashSuspectsCoreTest {
 protected:
  CrashSuspectsAutoTest() : CrashSuspectsCoreTest(PreemptionMode::kAuto) {}
};

// A request that is recomputed in slices waits while a suspect is alone. The suspect may use the
// blocks that are kept for the waiting request.
TEST_F(CrashSuspectsAutoTest, ASuspectStartsOnBlocksThatAreKeptForOneThatIsRecomputed) {
  limits_.num_blocks = 7;
  limits_.max_tokens_per_step = 8;
  core_.OnWorkersLost();
  BeginEpoch();
  Add({.id = 1, .prompt = 12, .max_tokens = 4});
  Add({.id = 2, .prompt = 4, .max_tokens = 3});
  Step();
  Step();
  for (int kill = 0; kill < 3; ++kill) {
    Step(/*is_killed=*/true);
  }
  limits_.num_blocks = 6;
  core_.OnWorkersLost();
  BeginEpoch();
  ASSERT_EQ(core_.stats().num_suspects, 2);

  EXPECT_THAT(Step(), ElementsAre(1));
  EXPECT_THAT(Step(), ElementsAre(2));

  RunToEnd();
  ExpectUndisturbed(1);
  ExpectUndisturbed(2);
}

// A cut connection, a takeover and a refusal are no fault of a request in the step.
TEST_F(CrashSuspectsCoreTest, ALossThatIsNoCrashMakesNobodyASuspect) {
  Add({.id = 1, .prompt = 6, .max_tokens = 8});
  Add({.id = 2, .prompt = 6, .max_tokens = 8});
  for (int loss = 0; loss < 2 * kMaxCrashes; ++loss) {
    ASSERT_TRUE(core_.PlanStep(0).has_value());
    core_.OnWorkersLost();
    core_.CheckInvariants();
    BeginEpoch(/*after_crash=*/false);
    EXPECT_EQ(core_.stats().num_suspects, 0);
  }
  RunToEnd();

  ExpectUndisturbed(1);
  ExpectUndisturbed(2);
}

// A loss that is no crash changes nothing in the record of a request's crashes.
TEST_F(CrashSuspectsCoreTest, ALossThatIsNoCrashClearsNobody) {
  Add({.id = 1, .prompt = 6, .max_tokens = 8});
  Add({.id = 2, .prompt = 6, .max_tokens = 8});
  Poison(2, 8);
  while (num_crashes_ < 3) {
    Step();
  }
  ASSERT_TRUE(core_.PlanStep(0).has_value());
  core_.OnWorkersLost();
  BeginEpoch(/*after_crash=*/false);

  RunToEnd();

  EXPECT_EQ(num_crashes_, kMaxCrashes);
  EXPECT_THAT(reasons_[2], ElementsAre(FinishReason::kWorkerCrash));
  ExpectUndisturbed(1);
}

TEST_F(CrashSuspectsCoreTest, TheVerdictConcernsTheLastStepAlone) {
  Add({.id = 1, .prompt = 6, .max_tokens = 8});
  ASSERT_TRUE(core_.PlanStep(0).has_value());
  core_.OnWorkersLost();
  core_.OnWorkersLost();  // the next ones died before they were ready
  BeginEpoch(/*after_crash=*/true);
  core_.OnWorkersLost();  // without a step
  BeginEpoch(/*after_crash=*/true);
  EXPECT_EQ(core_.stats().num_suspects, 0);

  Step(/*is_killed=*/true);

  EXPECT_EQ(core_.stats().num_suspects, 1) << "the first loss was counted, once";
}

TEST_F(CrashSuspectsCoreTest, WhoEndsBeforeTheVerdictIsNoSuspect) {
  Add({.id = 1, .prompt = 6, .max_tokens = 8});
  Add({.id = 2, .prompt = 6, .max_tokens = 8, .num_sequences = 2});
  Step();
  Step(/*is_killed=*/true);
  ASSERT_TRUE(core_.PlanStep(0).has_value());
  core_.OnWorkersLost();

  EXPECT_TRUE(core_.AbortRequest(RequestId(1)));
  EXPECT_TRUE(core_.FinishSequence(RequestId(2), 0));
  EXPECT_TRUE(core_.FinishSequence(RequestId(2), 1));
  BeginEpoch(/*after_crash=*/true);
  core_.CheckInvariants();

  EXPECT_EQ(core_.stats().num_suspects, 0);
  EXPECT_THAT(Step(), IsEmpty());
}

TEST_F(CrashSuspectsCoreTest, AllSequencesOfARequestCountAsOne) {
  Add({.id = 1, .prompt = 6, .max_tokens = 8});
  Add({.id = 2, .prompt = 6, .max_tokens = 8, .num_sequences = 3});
  Poison(2, 8);

  RunToEnd();

  EXPECT_EQ(num_crashes_, kMaxCrashes);
  EXPECT_THAT(
      reasons_[2],
      ElementsAre(
          FinishReason::kWorkerCrash, FinishReason::kWorkerCrash, FinishReason::kWorkerCrash));
  ExpectUndisturbed(1);
}

TEST_F(CrashSuspectsCoreTest, ASuspectThatIsAbortedIsForgotten) {
  Add({.id = 1, .prompt = 6, .max_tokens = 8});
  Add({.id = 2, .prompt = 6, .max_tokens = 8});
  Step(/*is_killed=*/true);
  Step(/*is_killed=*/true);

  EXPECT_TRUE(core_.AbortRequest(RequestId(1)));
  EXPECT_TRUE(core_.AbortRequest(RequestId(2)));
  core_.CheckInvariants();

  EXPECT_EQ(core_.stats().num_suspects, 0);
  EXPECT_THAT(Step(), IsEmpty());
}

TEST_F(CrashSuspectsCoreTest, ASequenceThatEndsDoesNotKeepItsRequestAlone) {
  Add({.id = 1, .prompt = 1, .max_tokens = 8, .num_sequences = 2});
  Add({.id = 2, .prompt = 30, .max_tokens = 8});
  Step();
  Step(/*is_killed=*/true);
  limits_.max_tokens_per_step = 2;  // one sequence of the request in a step
  core_.OnWorkersLost();
  BeginEpoch();
  Step(/*is_killed=*/true);
  ASSERT_EQ(core_.stats().num_suspects, 1);

  EXPECT_TRUE(core_.FinishSequence(RequestId(1), 0));

  EXPECT_EQ(core_.stats().num_suspects, 0);
}

// 20 kills during its recomputation: first each kill is a step later than the one before, then a
// step earlier.
TEST_F(CrashSuspectsCoreTest, KillsFromOutsideEndNobody) {
  limits_.max_tokens_per_step = 4;
  core_.OnWorkersLost();
  BeginEpoch();
  Add({.id = 1, .prompt = 40, .max_tokens = 8});
  Add({.id = 2, .prompt = 6, .max_tokens = 8});
  for (int kill = 0; kill < 20; ++kill) {
    for (int i = 0; i < (kill < 10 ? kill : 20 - kill); ++i) {
      Step();
    }
    Step(/*is_killed=*/true);
  }
  RunToEnd();

  ExpectUndisturbed(1);
  ExpectUndisturbed(2);
}

TEST_F(CrashSuspectsCoreTest, APrefixThatCrashesItsWorkersIsUnpinned) {
  std::vector<TokenId> tokens(12, 7);
  const PinResult pin = core_.PinPrefix(RequestId(1), tokens, "");
  ASSERT_EQ(pin.outcome, PinOutcome::kAccepted);
  Poison(1, 5);
  Add({.id = 2, .prompt = 6, .max_tokens = 8});

  RunToEnd();

  EXPECT_EQ(num_crashes_, kMaxCrashes);
  EXPECT_FALSE(core_.FindPrefix(pin.id).has_value());
  EXPECT_TRUE(core_.IsPoisonPrefix(pin.id));
  EXPECT_EQ(core_.stats().num_suspects, 0);
  EXPECT_THAT(reasons_, SizeIs(1)) << "the core tells nobody of its own requests";
  ExpectUndisturbed(2);
}

}  // namespace
}  // namespace quire
