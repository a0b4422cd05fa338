// Requests arrive steadily at a scheduler core and a worker on the CPU backend. The first step of a
// new sequence of up to kMaxSpareBlocks blocks maps nothing, because its blocks were mapped to the
// spare window before the request came (kv_windows.h).
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "tests/support/engine.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr char kModelDir[] = "tests/worker/model/testdata/llama";
constexpr int32_t kBlockSize = 4;
constexpr int32_t kNumRequests = 120;
constexpr int32_t kNumWarmUp = 20;

struct Load {
  std::string name;
  int32_t max_sequences = 0;
  int32_t max_steps_apart = 0;  // of arrivals; 0: each request waits for the end of the one before
};

class SteadyArrivalTest : public testing::TestWithParam<Load>, public StepObserver {
 protected:
  void SetUp() override {
    auto engine = Engine::Create(kModelDir,
                                 {.kv_backend = KvBackend::kVmm,
                                  .observer = this,
                                  .num_blocks = 151,
                                  .block_size_tokens = kBlockSize,
                                  .max_sequences = GetParam().max_sequences,
                                  .max_tokens_per_step = 96,
                                  .max_model_len = 120,
                                  .core = {.prefix_caching = true}});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  void OnEpoch(const EpochObservation& /*epoch*/) override {}
  void OnStep(const ExecutedStep& step) override {
    counts_.num_found += step.windows.num_found;
    counts_.num_mapped += step.windows.num_mapped;
    counts_.num_mapped_ahead += step.windows.num_mapped_ahead;
    EXPECT_FALSE(step.windows.was_refused);
  }

  // A prompt of up to kMaxSpareBlocks blocks that shares no block with others.
  Request MakeRequest(uint64_t id) {
    Request request{.id = RequestId(id)};
    request.prompt_token_ids.resize(
        static_cast<size_t>(random_.Between(1, kMaxSpareBlocks * kBlockSize)));
    for (TokenId& token_id : request.prompt_token_ids) {
      token_id = random_.Below(engine_->config().vocab_size);
    }
    request.max_tokens = random_.Between(1, 40);
    request.sampling.seed = id;
    return request;
  }

  void StepUntilNextArrival() {
    const int32_t apart = GetParam().max_steps_apart;
    for (int32_t i = apart == 0 ? 1000 : random_.Between(1, apart); i > 0 && engine_->Step(); --i) {
    }
  }

  std::unique_ptr<Engine> engine_;
  Random random_{5};
  WindowCounts counts_;
};

TEST_P(SteadyArrivalTest, NoStepMapsABlock) {
  for (uint64_t id = 1; id <= kNumRequests; ++id) {
    if (id == kNumWarmUp) {
      counts_ = {};
    }
    engine_->Add(MakeRequest(id));
    StepUntilNextArrival();
  }

  EXPECT_EQ(counts_.num_mapped, 0);
  EXPECT_GT(counts_.num_mapped_ahead, 1000);
  EXPECT_GT(engine_->stats().num_blocks_evicted, 500) << "blocks of ended sequences are reused";
  EXPECT_GT(engine_->stats().num_blocks_allocated, 1500);
  EXPECT_EQ(engine_->stats().num_preemptions, 0);
}

INSTANTIATE_TEST_SUITE_P(Loads,
                         SteadyArrivalTest,
                         testing::Values(Load{"side_by_side", 32, 12},
                                         Load{"one_after_the_other", 1, 0}),
                         [](const auto& load) { return load.param.name; });

}  // namespace
}  // namespace quire
