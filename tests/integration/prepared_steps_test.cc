// A worker on the emulated GPU that uploads the inputs of the probable next step while it waits for
// the plan gives the answers of a worker that does not.
#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

#include "tests/support/engine.h"
#include "tests/support/random.h"

namespace quire {
namespace {

class PreparedStepsTest : public testing::Test, public StepObserver {
 protected:
  void OnEpoch(const EpochObservation& /*epoch*/) override {}
  void OnStep(const ExecutedStep& step) override {
    ++num_steps_;
    num_prepared_ += step.was_prepared ? 1 : 0;
  }

  EngineOptions Options(bool lets_workers_prepare) {
    num_steps_ = 0;
    num_prepared_ = 0;
    return {.is_on_emulated_gpu = true,
            .observer = this,
            .num_blocks = 40,
            .block_size_tokens = 8,
            .max_sequences = 8,
            .max_tokens_per_step = 48,
            .max_model_len = 160,
            .num_host_blocks = 40,
            .lets_workers_prepare = lets_workers_prepare};
  }

  static Request MakeRequest(uint64_t id, int32_t num_prompt_tokens, int32_t max_tokens) {
    Random random(id);
    Request request{.id = RequestId(id)};
    for (int32_t i = 0; i < num_prompt_tokens; ++i) {
      request.prompt_token_ids.push_back(random.Below(4096));
    }
    request.max_tokens = max_tokens;
    request.sampling.seed = id;
    request.sampling.num_logprobs = 0;
    return request;
  }

  int num_steps_ = 0;
  int num_prepared_ = 0;
};

// Requests arrive and end while others decode. Their sampling differs: in the step's graph, after
// the graph with penalties, and with forks, which share blocks.
Answers RunMixed(Engine& engine, Request (*make)(uint64_t, int32_t, int32_t)) {
  engine.Add(make(1, 30, 90));
  engine.Add(make(2, 7, 40));
  for (int step = 0; step < 20; ++step) {
    engine.Step();
  }
  Request penalized = make(3, 21, 20);
  penalized.sampling.presence_penalty = 1.5F;
  penalized.sampling.num_logprobs = 3;
  engine.Add(std::move(penalized));
  for (int step = 0; step < 30; ++step) {
    engine.Step();
  }
  Request forked = make(4, 60, 30);
  forked.num_sequences = 3;
  engine.Add(std::move(forked));
  return engine.RunToEnd();
}

TEST_F(PreparedStepsTest, AnswersAreThoseOfStepsThatWereNotPrepared) {
  const auto engine = Engine::Create("deploy/model", Options(false)).value();
  const Answers expected = RunMixed(*engine, &MakeRequest);
  EXPECT_EQ(num_prepared_, 0);
  const int num_steps = num_steps_;

  ASSERT_TRUE(engine->Reset(Options(true)).ok());
  EXPECT_EQ(RunMixed(*engine, &MakeRequest), expected);
  EXPECT_EQ(num_steps_, num_steps);
  EXPECT_GT(num_prepared_, num_steps * 3 / 4) << "most steps only decode";
  EXPECT_EQ(expected.size(), 6U);
}

// The pool is too small for all, so groups are swapped out and in, or computed again.
TEST_F(PreparedStepsTest, AnswersAreTheSameUnderPreemption) {
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    const auto run = [&](bool prepares) {
      EngineOptions options = Options(prepares);
      options.core.preemption_mode = mode;
      const auto engine = Engine::Create("deploy/model", options).value();
      for (uint64_t id = 1; id <= 5; ++id) {
        engine->Add(MakeRequest(id, 20 + static_cast<int32_t>(id), 60));
      }
      Answers answers = engine->RunToEnd();
      EXPECT_GT(engine->stats().num_preemptions, 0);
      return answers;
    };
    const Answers expected = run(false);
    EXPECT_EQ(run(true), expected);
    EXPECT_GT(num_prepared_, num_steps_ / 2);
  }
}

}  // namespace
}  // namespace quire
