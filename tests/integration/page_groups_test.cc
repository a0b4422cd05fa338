// Blocks of 16 tokens of the bundled model, 32 KiB each, in windows of 2 MiB pages: 64 blocks share
// a page. A scheduler core and a worker on the emulated GPU, whose page size the environment sets.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/engine.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr char kModelDir[] = "deploy/model";
constexpr int32_t kBlockSize = 16;
constexpr int32_t kBlocksPerPage = 64;

class PageGroupsTest : public testing::Test, public StepObserver {
 protected:
  void OnEpoch(const EpochObservation& epoch) override { pools_ = epoch.pools; }
  void OnStep(const ExecutedStep& step) override {
    counts_.num_found += step.windows.num_found;
    counts_.num_mapped += step.windows.num_mapped;
    counts_.num_mapped_ahead += step.windows.num_mapped_ahead;
    num_steps_ += step.num_tokens > 0 ? 1 : 0;
    num_refused_ += step.windows.was_refused ? 1 : 0;
    num_prepared_ += step.was_prepared ? 1 : 0;
  }

  EngineOptions Options(KvBackend kv_backend, bool prefix_caching) {
    counts_ = {};
    num_steps_ = 0;
    num_refused_ = 0;
    num_prepared_ = 0;
    return {.kv_backend = kv_backend,
            .is_on_emulated_gpu = true,
            .observer = this,
            .num_blocks = 12 * kBlocksPerPage,
            .block_size_tokens = kBlockSize,
            .max_sequences = 6,
            .max_tokens_per_step = 256,
            .max_model_len = 1200,
            .core = {.prefix_caching = prefix_caching}};
  }

  std::unique_ptr<Engine> MakeEngine(KvBackend kv_backend, bool prefix_caching) {
    auto engine = Engine::Create(kModelDir, Options(kv_backend, prefix_caching));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  // The first num_common tokens are the same for all requests.
  static Request MakeRequest(uint64_t id,
                             int32_t num_prompt_tokens,
                             int32_t num_common = 0,
                             int32_t max_tokens = 4) {
    Random common(1);
    Random own(id + 7);
    Request request{.id = RequestId(id)};
    for (int32_t i = 0; i < num_prompt_tokens; ++i) {
      request.prompt_token_ids.push_back((i < num_common ? common : own).Below(4096));
    }
    request.max_tokens = max_tokens;
    request.sampling.seed = id;
    return request;
  }

  // Requests of several lengths at once, one of more than a page, then one whose beginning, of 3
  // blocks, another one has already computed and still holds.
  static Answers Run(Engine& engine) {
    engine.Add(MakeRequest(1, 1060));
    engine.Add(MakeRequest(2, 60, 50, /*max_tokens=*/12));
    engine.Add(MakeRequest(3, 15));
    for (int32_t i = 0; i < 5; ++i) {
      engine.Step();
    }
    engine.Add(MakeRequest(4, 70, 50));
    return engine.RunToEnd();
  }

  WorkerPools pools_;
  WindowCounts counts_;
  int32_t num_steps_ = 0;
  int32_t num_refused_ = 0;
  int32_t num_prepared_ = 0;
};

TEST_F(PageGroupsTest, SmallBlocksInPagesGiveTheAnswersOfBlockTables) {
  const Answers in_tables = Run(*MakeEngine(KvBackend::kPaged, true));
  EXPECT_EQ(pools_.max_places, 0);
  EXPECT_GT(num_prepared_, 0);

  const auto engine = MakeEngine(KvBackend::kVmm, true);
  EXPECT_EQ(pools_.block_bytes, (2 << 20) / kBlocksPerPage);
  EXPECT_EQ(pools_.padding_bytes, 0);
  EXPECT_EQ(pools_.max_places, 6 * 2) << "two pages a sequence";
  const Answers in_windows = Run(*engine);

  EXPECT_EQ(in_windows, in_tables);
  EXPECT_EQ(in_windows.size(), 4U);
  EXPECT_GT(engine->stats().num_prefix_hit_tokens, 0);
  EXPECT_EQ(engine->stats().num_blocks_copied, 3) << "to the page of the sequence that shared them";
  EXPECT_GT(num_steps_, 8);
  EXPECT_EQ(num_refused_, 0) << "each step read windows";
  EXPECT_EQ(num_prepared_, 0) << "a window must be mapped for the plan";
  EXPECT_EQ(counts_.num_mapped + counts_.num_mapped_ahead + counts_.num_found, 5);
}

TEST_F(PageGroupsTest, TheFirstStepOfANewSequenceMapsNothing) {
  const auto engine = MakeEngine(KvBackend::kVmm, false);
  engine->Add(MakeRequest(1, 20));
  engine->RunToEnd();
  counts_ = {};

  for (uint64_t id = 2; id <= 9; ++id) {
    engine->Add(MakeRequest(id, 16 * static_cast<int32_t>(id) - 3));
    for (int32_t i = 0; i < 3; ++i) {
      engine->Step();
    }
  }

  EXPECT_EQ(counts_.num_mapped, 0);
  EXPECT_EQ(counts_.num_mapped_ahead, 8);
  EXPECT_EQ(num_refused_, 0);
}

TEST_F(PageGroupsTest, SequencesOfOneRequestHavePagesOfTheirOwn) {
  const auto run = [](Engine& engine) {
    Request request = MakeRequest(1, 40);
    request.num_sequences = 3;
    request.sampling.temperature = 1.0F;
    engine.Add(std::move(request));
    return engine.RunToEnd();
  };
  const Answers in_tables = run(*MakeEngine(KvBackend::kPaged, true));

  EXPECT_EQ(run(*MakeEngine(KvBackend::kVmm, true)), in_tables);
  EXPECT_EQ(in_tables.size(), 3U);
  EXPECT_EQ(num_refused_, 0);
}

// The second request shares blocks that the first one's step computes, so these are not copied. It
// cannot grow in their page.
TEST_F(PageGroupsTest, WhatCannotBeShownReadsBlockTables) {
  const auto run = [](Engine& engine) {
    engine.Add(MakeRequest(1, 60, 50));
    engine.Add(MakeRequest(2, 70, 50));
    engine.RunToEnd();
    engine.Add(MakeRequest(3, 20));
    return engine.RunToEnd();
  };
  const Answers in_tables = run(*MakeEngine(KvBackend::kPaged, true));

  EXPECT_EQ(run(*MakeEngine(KvBackend::kVmm, true)), in_tables);
  EXPECT_GT(num_refused_, 0);
  EXPECT_LT(num_refused_, num_steps_);
}

}  // namespace
}  // namespace quire
