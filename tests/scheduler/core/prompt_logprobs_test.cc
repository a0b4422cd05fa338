// Log-probabilities of prompt tokens, as the core asks for them and reports them. The worker is a
// FakeWorker, so each reported number is compared with the one that follows from the prompt.
#include <limits>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"

#include "scheduler/core/scheduler_core.h"
#include "tests/support/fake_worker.h"
#include "tests/support/requests.h"

namespace quire {
namespace {

constexpr StepLimits kLimits{.num_blocks = 33,
                             .num_host_blocks = 32,
                             .block_size_tokens = 4,
                             .max_sequences = 8,
                             .max_tokens_per_step = 8,
                             .max_model_len = 60,
                             .vocab_size = 1000};
constexpr int32_t kNumTop = 2;

Request Scored(const RequestSpec& spec) {
  Request request = MakeRequest(spec);
  request.sampling.num_prompt_logprobs = kNumTop;
  return request;
}

PromptLogprobs Expected(const Request& request) {
  return ExpectedPromptLogprobs(request.prompt_token_ids, kNumTop, kLimits.vocab_size);
}

class PromptLogprobsTest : public testing::Test {
 protected:
  explicit PromptLogprobsTest(const CoreConfig& config = {.prefix_caching = true}) : core_(config) {
    BeginEpoch();
  }

  void BeginEpoch() {
    worker_.emplace(kLimits);
    core_.BeginEpoch(1, ++group_epoch_, kLimits);
  }

  StepResult PlanAndExecute() {
    const std::optional<StepPlan> plan = core_.PlanStep(0);
    EXPECT_TRUE(plan.has_value());
    num_planned_tokens_ = 0;
    for (const SequenceSlice& slice : plan->slices) {
      num_planned_tokens_ += slice.num_tokens;
    }
    return worker_->Execute(*plan).value();
  }

  void Apply(const StepResult& result) {
    ASSERT_TRUE(core_.ApplyStepResult(result).ok()) << core_.ApplyStepResult(result);
    core_.CheckInvariants();
    for (const OutputEvent& event : core_.TakeEvents()) {
      if (const auto* scored = std::get_if<PromptScored>(&event)) {
        scored_.push_back(scored->prompt);
      } else if (const auto* finished = std::get_if<SequenceFinished>(&event)) {
        reasons_.push_back(finished->reason);
      } else {
        num_scored_before_token_ = num_scored_before_token_.value_or(NumScored());
      }
    }
  }

  void Step() { Apply(PlanAndExecute()); }

  void RunToEnd() {
    while (core_.has_work()) {
      Step();
    }
  }

  int32_t NumScored() const {
    int32_t num_tokens = 0;
    for (const PromptLogprobs& each : scored_) {
      num_tokens += each.num_tokens();
    }
    return num_tokens;
  }

  // What was reported so far, joined. Fails the test if a position is missing or comes twice.
  PromptLogprobs AllScored() const {
    PromptLogprobs all = scored_.at(0);
    for (size_t i = 1; i < scored_.size(); ++i) {
      EXPECT_EQ(scored_[i].first_position, all.first_position + all.num_tokens());
      all.logprobs.insert(
          all.logprobs.end(), scored_[i].logprobs.begin(), scored_[i].logprobs.end());
      all.top.insert(all.top.end(), scored_[i].top.begin(), scored_[i].top.end());
    }
    return all;
  }

  SchedulerCore core_;
  std::optional<FakeWorker> worker_;
  uint64_t group_epoch_ = 0;
  int32_t num_planned_tokens_ = 0;  // of the last plan
  std::vector<PromptLogprobs> scored_;
  std::optional<int32_t> num_scored_before_token_;
  std::vector<FinishReason> reasons_;
};

TEST_F(PromptLogprobsTest, EachSliceReportsItsPartBeforeTheFirstToken) {
  const Request request = Scored({.prompt = 20, .max_tokens = 2});
  core_.AddRequest(request);

  RunToEnd();

  EXPECT_EQ(scored_.size(), 3U);  // of 8, 8 and 3 tokens
  EXPECT_EQ(AllScored(), Expected(request));
  EXPECT_EQ(num_scored_before_token_, 19);
}

TEST_F(PromptLogprobsTest, APromptOfOneTokenHasNone) {
  core_.AddRequest(Scored({.prompt = 1, .max_tokens = 2}));

  RunToEnd();

  EXPECT_TRUE(scored_.empty());
}

TEST_F(PromptLogprobsTest, ACachedPromptIsComputedAgain) {
  Request request = MakeRequest({.prompt = 20, .max_tokens = 2});
  core_.AddRequest(request);
  RunToEnd();
  request = Scored({.prompt = 20, .max_tokens = 2});
  request.id = RequestId(2);
  core_.AddRequest(request);

  RunToEnd();

  EXPECT_EQ(AllScored(), Expected(request));
}

TEST_F(PromptLogprobsTest, AScoredPromptServesAsCachedPrefix) {
  core_.AddRequest(Scored({.prompt = 20, .max_tokens = 2}));
  RunToEnd();
  Request request = MakeRequest({.prompt = 20, .max_tokens = 2});
  request.id = RequestId(2);
  core_.AddRequest(request);

  Step();

  EXPECT_EQ(num_planned_tokens_, 4);  // four full blocks were cached
}

TEST_F(PromptLogprobsTest, SequencesOfARequestScoreTheirPromptOnce) {
  const Request request = Scored({.prompt = 20, .max_tokens = 3, .num_sequences = 3});
  core_.AddRequest(request);

  RunToEnd();

  EXPECT_EQ(AllScored(), Expected(request));
}

TEST_F(PromptLogprobsTest, LostWorkersLeadToNoRepetition) {
  const Request request = Scored({.prompt = 30, .max_tokens = 2});
  core_.AddRequest(request);
  Step();
  Step();
  PlanAndExecute();
  core_.OnWorkersLost();
  BeginEpoch();

  RunToEnd();

  EXPECT_EQ(AllScored(), Expected(request));
}

TEST_F(PromptLogprobsTest, AResumedRequestReportsWhatItsClientLacks) {
  Request request = Scored({.prompt = 20, .max_tokens = 4, .num_sequences = 2});
  request.is_resumed = true;
  request.resumed = {{.token_ids = {5}}, {.token_ids = {6, 7}}};
  request.num_known_prompt_logprobs = 11;
  core_.AddRequest(request);

  RunToEnd();

  PromptLogprobs expected = Expected(request);
  expected.TakeFront(11);
  EXPECT_EQ(AllScored(), expected);
}

TEST_F(PromptLogprobsTest, AResumedRequestThatLacksNoneUsesTheCache) {
  core_.AddRequest(MakeRequest({.prompt = 20, .max_tokens = 2}));
  RunToEnd();
  Request request = Scored({.prompt = 20, .max_tokens = 4});
  request.id = RequestId(2);
  request.is_resumed = true;
  request.resumed = {{.token_ids = {5}}};
  request.num_known_prompt_logprobs = 19;
  core_.AddRequest(request);

  Step();

  EXPECT_EQ(num_planned_tokens_, 1);
  EXPECT_TRUE(scored_.empty());
}

TEST_F(PromptLogprobsTest, ANumberThatIsNotFiniteIsComputedAgainAndThenEndsTheRequest) {
  const Request request = Scored({.prompt = 12, .max_tokens = 2});
  core_.AddRequest(request);
  Step();
  for (int i = 0; i < 2; ++i) {
    StepResult result = PlanAndExecute();
    result.scored.at(0).prompt.logprobs.back() = std::numeric_limits<float>::quiet_NaN();
    Apply(result);
    if (i == 0) {
      EXPECT_TRUE(reasons_.empty());
      Step();  // the prompt's first slice, again
    }
  }

  EXPECT_EQ(reasons_, std::vector<FinishReason>{FinishReason::kNonFinite});
  EXPECT_EQ(NumScored(), 8);
}

TEST_F(PromptLogprobsTest, AnswersThatLackOrExceedWhatWasAskedForAreRefused) {
  core_.AddRequest(Scored({.prompt = 12, .max_tokens = 2}));
  const StepResult right = PlanAndExecute();
  const std::vector<void (*)(StepResult&)> spoilers = {
      [](StepResult& r) { r.scored.clear(); },
      [](StepResult& r) { r.scored.push_back(r.scored.front()); },
      [](StepResult& r) { ++r.scored.front().handle; },
      [](StepResult& r) { r.scored.front().prompt.first_position = 0; },
      [](StepResult& r) { r.scored.front().prompt.TakeFront(1); },
      [](StepResult& r) { r.scored.front().prompt.num_top = 1; },
      [](StepResult& r) { r.scored.front().prompt.top.pop_back(); },
      [](StepResult& r) { r.scored.front().prompt.top.back().token_id = 1000; },
      [](StepResult& r) { r.scored.front().prompt.top.back().token_id = -1; }};
  for (const auto spoil : spoilers) {
    StepResult wrong = right;
    spoil(wrong);
    EXPECT_FALSE(core_.ApplyStepResult(wrong).ok());
  }

  Apply(right);

  EXPECT_EQ(NumScored(), 8);
}

class SwappedPromptTest : public PromptLogprobsTest {
 protected:
  SwappedPromptTest()
      : PromptLogprobsTest({.preemption_mode = PreemptionMode::kSwap, .prefix_caching = true}) {}
};

// Two requests whose prompts and outputs do not fit together: the younger one is swapped out, or
// waits, in the middle of its prompt.
TEST_F(SwappedPromptTest, APromptThatWasSwappedOutGoesOnWhereItWas) {
  core_.AddRequest(MakeRequest({.id = 1, .prompt = 30, .max_tokens = 30}));
  for (int i = 0; i < 20; ++i) {
    Step();
  }
  const Request request = Scored({.id = 2, .prompt = 56, .max_tokens = 2});
  core_.AddRequest(request);
  core_.AddRequest(MakeRequest({.id = 3, .prompt = 30, .max_tokens = 30}));

  RunToEnd();

  EXPECT_EQ(AllScored(), Expected(request));
}

}  // namespace
}  // namespace quire
