// StepExecutor with KvBackend::kVmm gives the tokens of block tables in every state of its windows,
// and also if there is no room for them.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "common/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/with_digest.h"
#include "tests/worker/kv_cache/watched_windows.h"
#include "tests/worker/runtime/fake_model.h"
#include "tests/worker/runtime/late_backend.h"
#include "tests/worker/runtime/swap_traffic.h"
#include "worker/model/model.h"
#include "worker/runtime/step_executor.h"

namespace quire {
namespace {

constexpr char kModelDir[] = "tests/worker/model/testdata/llama";

KvCacheBudget Budget(KvBackend backend) {
  return {.bytes = 64 << 20,
          .swap_space_bytes = 64 << 20,
          .num_blocks_override = 0,
          .backend = backend};
}

// Windows of which only so many places may show something.
class TightWindows : public WatchedWindows {
 public:
  TightWindows(std::unique_ptr<WindowMemory> below, int64_t max_mapped_places)
      : WatchedWindows(*below), below_(std::move(below)) {
    LimitTo(max_mapped_places);
  }

 private:
  const std::unique_ptr<WindowMemory> below_;
};

// The reference, with such windows and late transfers.
class TightBackend : public LateBackend {
 public:
  explicit TightBackend(int64_t max_mapped_places)
      : LateBackend(CreateReferenceBackend()), max_mapped_places_(max_mapped_places) {}

  absl::StatusOr<std::unique_ptr<WindowMemory>> AllocateWindows(const WindowShape& shape) override {
    auto below = LateBackend::AllocateWindows(shape);
    EXPECT_TRUE(below.ok()) << below.status();
    return std::make_unique<TightWindows>(*std::move(below), max_mapped_places_);
  }

 private:
  const int64_t max_mapped_places_;
};

class WindowTrafficTest : public testing::Test {
 protected:
  WindowTrafficTest() {
    model_.OnRun([this](const Batch& batch) {
      ++(batch.first_places.empty() ? num_by_tables_ : num_by_windows_);
      EXPECT_EQ(batch.block_tables.empty(), !batch.first_places.empty());
    });
  }

  static void ExpectRightTokens(StepExecutor& executor, const SwapTrafficOptions& options) {
    SwapTraffic traffic(executor, DType::kF32, options);
    for (const std::vector<TokenId>& tokens : traffic.Run()) {
      const size_t first = tokens.size() - static_cast<size_t>(options.num_output_tokens);
      for (size_t i = first; i < tokens.size(); ++i) {
        ASSERT_EQ(tokens[i], FakeModel::NextToken(std::span(tokens).first(i))) << "token " << i;
      }
    }
  }

  FakeModel model_;
  int num_by_tables_ = 0;
  int num_by_windows_ = 0;
};

TEST_F(WindowTrafficTest, SequencesAreReadThroughWindows) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    auto backend = CreateReferenceBackend();
    StepExecutor executor(model_, *backend, Budget(KvBackend::kVmm));

    ExpectRightTokens(executor, {.seed = seed});
  }
  EXPECT_GT(num_by_windows_, 100);
  EXPECT_EQ(num_by_tables_, 0);
}

TEST_F(WindowTrafficTest, SwapsMayBeLate) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    LateBackend backend(CreateReferenceBackend());
    StepExecutor executor(model_, backend, Budget(KvBackend::kVmm));

    ExpectRightTokens(executor, {.seed = seed, .waits_for_swaps = false});
  }
  EXPECT_EQ(num_by_tables_, 0);
}

TEST_F(WindowTrafficTest, EpochsOfTheSameLimitsFollowEachOther) {
  auto backend = CreateReferenceBackend();
  StepExecutor executor(model_, *backend, Budget(KvBackend::kVmm));
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);

    ExpectRightTokens(executor, {.seed = seed});
  }
  EXPECT_EQ(num_by_tables_, 0);
}

TEST_F(WindowTrafficTest, AnEpochMayBringOtherLimits) {
  auto backend = CreateReferenceBackend();
  StepExecutor executor(model_, *backend, Budget(KvBackend::kVmm));
  for (const SwapTrafficOptions& options :
       {SwapTrafficOptions{.seed = 1},
        SwapTrafficOptions{.seed = 2, .num_sequences = 7, .num_blocks = 60},
        SwapTrafficOptions{.seed = 3, .num_sequences = 2},
        SwapTrafficOptions{.seed = 4, .max_prompt_tokens = 60, .num_output_tokens = 3},
        SwapTrafficOptions{.seed = 5, .block_size_tokens = 16},
        SwapTrafficOptions{.seed = 6, .num_host_blocks = 30}}) {
    SCOPED_TRACE(options.seed);

    ExpectRightTokens(executor, options);
  }
  EXPECT_EQ(num_by_tables_, 0);
}

TEST_F(WindowTrafficTest, WhereThereIsNoRoomTablesAreRead) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    TightBackend backend(12);
    StepExecutor executor(model_, backend, Budget(KvBackend::kVmm));

    ExpectRightTokens(executor, {.seed = seed});
  }
  EXPECT_GT(num_by_tables_, 50);
  EXPECT_GT(num_by_windows_, 50);
}

TEST(WindowsOfARealModelTest, GiveTheTokensOfBlockTables) {
  for (const bool is_reference : {true, false}) {
    auto backend =
        is_reference ? CreateReferenceBackend() : *CreateCpuBackend({.num_threads = 2, .isa = ""});
    const auto model = LoadModel(kModelDir, *backend, nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    StepExecutor paged(**model, *backend, Budget(KvBackend::kPaged));
    StepExecutor windowed(**model, *backend, Budget(KvBackend::kVmm));
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE(backend->name() + ", seed " + std::to_string(seed));
      const SwapTrafficOptions options = {.seed = seed};

      const auto expected = SwapTraffic(paged, DType::kF32, options).Run();

      EXPECT_EQ(SwapTraffic(windowed, DType::kF32, options).Run(), expected);
    }
  }
}

// One step after another, and what each did to the windows.
class WindowStepTest : public testing::Test, public StepObserver {
 protected:
  explicit WindowStepTest(int64_t max_mapped_places = 1000)
      : backend_(max_mapped_places),
        executor_(model_, backend_, Budget(KvBackend::kVmm), nullptr, nullptr, this) {
    EXPECT_TRUE(executor_
                    .BeginEpoch({.scheduler_incarnation = 1,
                                 .group_epoch = 1,
                                 .limits = {.num_blocks = 20,
                                            .block_size_tokens = 2,
                                            .max_sequences = 4,
                                            .max_tokens_per_step = 32,
                                            .max_model_len = 40,
                                            .wants_next_blocks = true},
                                 .kv_cache_dtype = DType::kF32})
                    .ok());
  }

  void OnEpoch(const EpochObservation& epoch) override { pools_ = epoch.pools; }
  void OnStep(const ExecutedStep& step) override { last_ = step; }

  TokenId Execute(StepPlan plan) {
    plan.header = {
        .scheduler_incarnation = 1, .group_epoch = 1, .step_id = executor_.order().last_done() + 1};
    auto result = executor_.Execute(WithDigest(plan));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() && (*result)->sampled.size() == 1 ? (*result)->sampled[0].token_id : -1;
  }

  // A sequence of two tokens in block 7; behind it block `next` is to come.
  void Begin(std::optional<BlockId> next, SequenceHandle handle = 1, SpareWindow spare = {}) {
    SamplingParams greedy;
    greedy.temperature = 0.0F;
    StepPlan plan;
    plan.introductions = {{.handle = handle,
                           .token_ids = tokens_,
                           .num_prompt_tokens = 2,
                           .num_computed_tokens = 0,
                           .block_ids = {},
                           .sequence_index = 0,
                           .sampling = greedy}};
    plan.slices = {
        {.handle = handle, .num_tokens = 2, .new_block_ids = {7}, .next_block_id = next}};
    plan.spare = std::move(spare);
    tokens_.push_back(Execute(plan));
  }
  void Release(SequenceHandle handle) {
    StepPlan plan;
    plan.releases = {handle};
    Execute(plan);
    tokens_ = {3, 1};
  }
  // The sequence gets this block.
  void ExpectGoesOnIn(BlockId block) {
    StepPlan plan;
    plan.slices = {{.handle = 1, .num_tokens = 1, .new_block_ids = {block}}};
    EXPECT_EQ(Execute(plan), FakeModel::NextToken(tokens_));
  }

  FakeModel model_;
  TightBackend backend_;
  StepExecutor executor_;
  WorkerPools pools_;
  ExecutedStep last_;
  std::vector<TokenId> tokens_ = {3, 1};
};

TEST_F(WindowStepTest, ANewBlockIsMapped) {
  Begin(std::nullopt);

  ExpectGoesOnIn(9);

  EXPECT_EQ(last_.windows.num_mapped, 1);
  EXPECT_EQ(last_.windows.num_mapped_ahead, 0);
  EXPECT_EQ(last_.holdings.num_places, 2);
}

TEST_F(WindowStepTest, ABlockThatWasNamedBeforeItsStepIsMappedAhead) {
  Begin(9);

  ExpectGoesOnIn(9);

  EXPECT_EQ(last_.windows.num_mapped, 0);
  EXPECT_EQ(last_.windows.num_mapped_ahead, 1);
}

TEST_F(WindowStepTest, ABlockThatWasNamedInVainIsMappedAnew) {
  Begin(9);

  ExpectGoesOnIn(8);

  EXPECT_EQ(last_.windows.num_mapped, 1);
  EXPECT_EQ(last_.windows.num_mapped_ahead, 0);
}

TEST_F(WindowStepTest, AReleasedSequenceLeavesItsBlocksInPlace) {
  Begin(std::nullopt);
  Release(1);
  EXPECT_EQ(last_.holdings.num_places, 1);

  Begin(std::nullopt);

  EXPECT_EQ(last_.windows.num_found, 1);
  EXPECT_EQ(last_.windows.num_mapped, 0);
}

TEST_F(WindowStepTest, TheFirstStepOfASequenceMapsNothingInTheSpareWindow) {
  StepPlan plan;
  plan.spare = {.handle = 1, .block_ids = {7, 8}};
  Execute(plan);

  Begin(std::nullopt);

  EXPECT_EQ(last_.windows.num_mapped, 0);
  EXPECT_EQ(last_.windows.num_mapped_ahead, 1);
}

// The worker forgets a released sequence only after the slices, but no slice reads its window.
TEST_F(WindowStepTest, AHandleThatIsReleasedMayBeTheSpareOne) {
  Begin(std::nullopt);
  StepPlan plan;
  plan.releases = {1};
  plan.spare = {.handle = 1, .block_ids = {9, 7}};
  Execute(plan);
  tokens_ = {3, 1};

  Begin(std::nullopt);
  EXPECT_EQ(last_.windows.num_mapped, 1) << "place 0 shows 9 and not 7";
  ExpectGoesOnIn(7 + 2);

  EXPECT_EQ(last_.windows.num_mapped, 1);
}

TEST_F(WindowStepTest, TheWindowOfASliceIsNotSpare) {
  Begin(std::nullopt, 1, {.handle = 1, .block_ids = {8, 9}});
  EXPECT_EQ(last_.holdings.num_places, 1);

  ExpectGoesOnIn(9);

  EXPECT_EQ(last_.windows.num_mapped, 1);
  EXPECT_EQ(last_.windows.num_mapped_ahead, 0);
}

TEST_F(WindowStepTest, ASequenceWhoseWindowWasTakenForSpareReadsItsOwnBlocks) {
  Begin(std::nullopt);
  StepPlan plan;
  plan.spare = {.handle = 1, .block_ids = {8, 9}};
  Execute(plan);

  ExpectGoesOnIn(9);

  EXPECT_EQ(last_.windows.num_mapped, 1) << "block 7 again";
  EXPECT_EQ(last_.windows.num_mapped_ahead, 1) << "block 9";
}

TEST_F(WindowStepTest, BlocksFillPages) {
  EXPECT_EQ(pools_.block_bytes, backend_.window_page_bytes());
  EXPECT_EQ(pools_.padding_bytes, backend_.window_page_bytes() - 32)
      << "K and V of 2 tokens of 2 floats";
  EXPECT_EQ(pools_.max_places, 1000);
}

class OnePlaceTest : public WindowStepTest {
 protected:
  OnePlaceTest() : WindowStepTest(1) {}
};

TEST_F(OnePlaceTest, AReleasedSequenceMakesRoomForAnother) {
  Begin(std::nullopt, 1);
  Release(1);

  Begin(std::nullopt, 2);

  EXPECT_FALSE(last_.windows.was_refused);
  EXPECT_EQ(last_.windows.num_taken_down, 1);
  EXPECT_EQ(last_.holdings.num_places, 1);
}

TEST_F(OnePlaceTest, ASpareWindowWithoutRoomIsNotMapped) {
  Begin(std::nullopt, 1, {.handle = 2, .block_ids = {8}});

  EXPECT_FALSE(last_.windows.was_refused);
  EXPECT_EQ(last_.holdings.num_places, 1);
}

TEST_F(OnePlaceTest, AStepWithoutRoomSaysSo) {
  Begin(std::nullopt);
  EXPECT_FALSE(last_.windows.was_refused);

  ExpectGoesOnIn(9);

  EXPECT_TRUE(last_.windows.was_refused);
}

}  // namespace
}  // namespace quire
