#include "scheduler/group/agreement.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/step/step_plan_check.h"

namespace quire {
namespace {

using testing::HasSubstr;

GroupSettings Settings() {
  GroupSettings settings;
  settings.model.vocab_size = 100;
  settings.model.max_position_embeddings = 1000;
  settings.block_size_tokens = 16;
  return settings;
}

WorkerHello GoodHello() {
  return {.uuid = "worker",
          .config_hash = HashOf(Settings().model),
          .model_hash = 77,
          .weights_sum = 5,
          .block_bytes = 64,
          .num_blocks_max = 101,
          .kv_cache_dtype = DType::kF32,
          .determinism_fingerprint = "cpu-avx512",
          .vocab_size = 100};
}

constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max();
constexpr uint64_t kModelHash = 77;
Numerics GoodNumerics() {
  return {.model_hash = kModelHash,
          .weights_sums = {5, 6},
          .backend = "cpu-avx512",
          .kv_cache_dtype = DType::kF32};
}

absl::StatusOr<StepLimits> LimitsWith(const WorkerHello& hello, const GroupSettings& settings) {
  const auto agreement = Agree({&hello, 1}, settings);
  if (!agreement.ok()) {
    return agreement.status();
  }
  return agreement->limits;
}

TEST(CheckHelloTest, AWorkerWithTheSameModelIsWelcome) {
  EXPECT_TRUE(CheckHello(GoodHello(), 0, Settings(), std::nullopt).ok());
  EXPECT_TRUE(CheckHello(GoodHello(), 0, Settings(), GoodNumerics()).ok());
}

TEST(CheckHelloTest, ABlockMayFillItsPagesOrLackAlmostOne) {
  for (const int64_t padding_bytes : {0, 31}) {
    WorkerHello hello = GoodHello();
    hello.kv_memory = {.backend = KvBackend::kVmm,
                       .page_bytes = 32,
                       .padding_bytes = padding_bytes,
                       .max_places = 0};

    EXPECT_TRUE(CheckHello(hello, 0, Settings(), std::nullopt).ok()) << padding_bytes;
  }
}

TEST(CheckHelloTest, SomeBlocksMayShareAPage) {
  WorkerHello hello = GoodHello();
  for (const int64_t num_blocks : {2, 32}) {
    hello.kv_memory = {.backend = KvBackend::kVmm, .page_bytes = num_blocks * hello.block_bytes};

    EXPECT_TRUE(CheckHello(hello, 0, Settings(), std::nullopt).ok()) << num_blocks;
  }
}

struct WrongWorker {
  std::string field;
  std::function<void(WorkerHello&)> spoil;
};

class CheckHelloRefusalTest : public testing::TestWithParam<WrongWorker> {};

TEST_P(CheckHelloRefusalTest, NamesTheFieldThatDiffers) {
  WorkerHello hello = GoodHello();
  GetParam().spoil(hello);

  const absl::Status status = CheckHello(hello, 0, Settings(), GoodNumerics());

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "CONFIG_MISMATCH");
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().field + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    EveryField,
    CheckHelloRefusalTest,
    testing::Values(
        WrongWorker{"vocab_size", [](auto& h) { h.vocab_size = 101; }},
        WrongWorker{"config_hash", [](auto& h) { h.config_hash = 1; }},
        WrongWorker{"model_hash", [](auto& h) { h.model_hash = 78; }},
        WrongWorker{"model_hash", [](auto& h) { h.weights_sum = 6; }},
        WrongWorker{"block_bytes", [](auto& h) { h.block_bytes = -1; }},
        WrongWorker{"window_page_bytes", [](auto& h) { h.kv_memory.page_bytes = -32; }},
        WrongWorker{"window_page_bytes", [](auto& h) { h.kv_memory.page_bytes = 48; }},
        WrongWorker{"window_page_bytes", [](auto& h) { h.kv_memory.page_bytes = 192; }},
        WrongWorker{"window_page_bytes",
                    [](auto& h) { h.kv_memory.page_bytes = 128 * int64_t{kMaxBlocksPerPage}; }},
        WrongWorker{"window_page_bytes",
                    [](auto& h) {
                      h.block_bytes = 0;
                      h.kv_memory.page_bytes = kMostBytes;
                    }},
        WrongWorker{"block_padding_bytes",
                    [](auto& h) { h.kv_memory = {.page_bytes = 32, .padding_bytes = 32}; }},
        WrongWorker{"block_padding_bytes",
                    [](auto& h) { h.kv_memory = {.page_bytes = 32, .padding_bytes = -1}; }},
        WrongWorker{"block_padding_bytes", [](auto& h) { h.kv_memory.padding_bytes = 1; }},
        WrongWorker{"max_window_places", [](auto& h) { h.kv_memory.max_places = -1; }},
        WrongWorker{"determinism_fingerprint",
                    [](auto& h) { h.determinism_fingerprint = "cpu-avx2"; }},
        WrongWorker{"kv_cache_dtype", [](auto& h) { h.kv_cache_dtype = DType::kBF16; }},
        WrongWorker{"kv_cache_dtype", [](auto& h) { h.kv_cache_dtype = std::nullopt; }}));

// Regression: a fingerprint of 3 MB was logged verbatim.
TEST(CheckHelloTest, ATextThatIsTooLongIsRefusedAndNotSaidAgain) {
  std::string WorkerHello::*const texts[] = {
      &WorkerHello::uuid, &WorkerHello::determinism_fingerprint, &WorkerHello::rendezvous};
  for (std::string WorkerHello::*const text : texts) {
    WorkerHello hello = GoodHello();
    hello.*text = std::string(3'000'000, 'x');

    const absl::Status status = CheckHello(hello, 0, Settings(), GoodNumerics());

    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(status), "PROTOCOL_VIOLATION");
    EXPECT_THAT(std::string(status.message()), HasSubstr("got 3000000 bytes"));
    EXPECT_LT(status.message().size(), 200U);
  }
}

TEST(CheckHelloTest, TheCacheTypeThatWasAskedForIsNeeded) {
  GroupSettings settings = Settings();
  settings.kv_cache_dtype = DType::kBF16;

  EXPECT_EQ(ReasonOf(CheckHello(GoodHello(), 0, settings, std::nullopt)), "CONFIG_MISMATCH");
}

TEST(CheckHelloTest, NumericsMayChangeWhenAllowedAndWeightsNever) {
  GroupSettings settings = Settings();
  settings.allow_changed_numerics = true;
  WorkerHello hello = GoodHello();
  hello.determinism_fingerprint = "cpu-avx2";
  hello.kv_cache_dtype = DType::kBF16;
  EXPECT_TRUE(CheckHello(hello, 0, settings, GoodNumerics()).ok());

  ++hello.model_hash;

  EXPECT_EQ(ReasonOf(CheckHello(hello, 0, settings, GoodNumerics())), "CONFIG_MISMATCH");
}

TEST(CheckHelloTest, EachRankHasItsOwnPartOfTheWeights) {
  WorkerHello hello = GoodHello();
  hello.weights_sum = 6;

  EXPECT_TRUE(CheckHello(hello, 1, Settings(), GoodNumerics()).ok());
  EXPECT_EQ(ReasonOf(CheckHello(GoodHello(), 1, Settings(), GoodNumerics())), "CONFIG_MISMATCH");
}

TEST(NumericsTest, TheFingerprintHoldsAllThatDecidesBits) {
  EXPECT_EQ(GoodNumerics().fingerprint(), "cpu-avx512/float32/0000000000000058");
}

TEST(NumericsTest, TheFingerprintIsTheSameForAnyNumberOfRanks) {
  Numerics one = GoodNumerics();
  one.weights_sums = {11};

  EXPECT_EQ(one.fingerprint(), GoodNumerics().fingerprint());
}

TEST(AgreeTest, TheNumericsKnowEachRanksPartOfTheWeights) {
  std::vector<WorkerHello> hellos = {GoodHello(), GoodHello()};
  hellos[1].uuid = "another";
  hellos[1].weights_sum = 6;

  const auto agreement = Agree(hellos, Settings());

  ASSERT_TRUE(agreement.ok()) << agreement.status();
  EXPECT_EQ(agreement->numerics.weights_sums, (std::vector<uint64_t>{5, 6}));
}

TEST(AgreeTest, ARopeThatDependsOnMaxModelLenBelongsToTheNumerics) {
  const WorkerHello hello = GoodHello();
  GroupSettings settings = Settings();
  settings.model.rope = RopeConfig{
      .scaling = RopeScalingKind::kDynamic, .factor = 2.0, .original_max_position_embeddings = 500};
  const auto numerics_at = [&](int32_t max_model_len) {
    settings.max_model_len = max_model_len;
    return Agree({&hello, 1}, settings)->numerics;
  };
  const Numerics long_numerics = numerics_at(1000);

  EXPECT_EQ(long_numerics.rope_length, 1000);
  EXPECT_NE(long_numerics.fingerprint(), numerics_at(999).fingerprint());
  EXPECT_EQ(numerics_at(400).fingerprint(), numerics_at(500).fingerprint());

  WorkerHello small_hello = hello;
  small_hello.num_blocks_max = 20;
  settings.max_model_len = 1000;
  const absl::StatusOr<Agreement> clipped = Agree({&small_hello, 1}, settings, long_numerics);
  ASSERT_TRUE(clipped.ok()) << clipped.status();
  EXPECT_LT(clipped->limits.max_model_len, 1000);
  EXPECT_EQ(clipped->numerics.rope_length, 1000) << "a smaller pool changes no bits";

  settings.max_model_len = 999;
  EXPECT_EQ(ReasonOf(Agree({&hello, 1}, settings, long_numerics).status()), "CONFIG_MISMATCH");
  settings.allow_changed_numerics = true;
  EXPECT_TRUE(Agree({&hello, 1}, settings, long_numerics).ok());
  settings.model.rope->scaling = RopeScalingKind::kYarn;
  EXPECT_EQ(numerics_at(1000).fingerprint(), numerics_at(999).fingerprint());
}

class AgreeRanksTest : public testing::TestWithParam<WrongWorker> {};

TEST_P(AgreeRanksTest, ARankThatDiffersFromTheFirstIsNamed) {
  std::vector<WorkerHello> hellos = {GoodHello(), GoodHello(), GoodHello()};
  hellos[1].uuid = "another";
  hellos[2].uuid = "a third";
  ASSERT_TRUE(Agree(hellos, Settings()).ok());
  GetParam().spoil(hellos[2]);

  const absl::Status status = Agree(hellos, Settings()).status();

  EXPECT_EQ(ReasonOf(status), "CONFIG_MISMATCH");
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2: " + GetParam().field + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    EveryField,
    AgreeRanksTest,
    testing::Values(WrongWorker{"uuid", [](auto& h) { h.uuid = "worker"; }},
                    WrongWorker{"model_hash", [](auto& h) { h.model_hash = 78; }},
                    WrongWorker{"determinism_fingerprint",
                                [](auto& h) { h.determinism_fingerprint = "cpu-avx2"; }},
                    WrongWorker{"kv_cache_dtype", [](auto& h) { h.kv_cache_dtype = DType::kBF16; }},
                    WrongWorker{"block_bytes", [](auto& h) { h.block_bytes = 65; }}));

TEST(AgreeTest, TheSmallestPoolIsEverybodys) {
  GroupSettings settings = Settings();
  settings.wants_host_blocks = true;
  std::vector<WorkerHello> hellos = {GoodHello(), GoodHello()};
  hellos[1].uuid = "another";
  hellos[0].num_host_blocks_max = 30;
  hellos[1].num_blocks_max = 50;
  hellos[1].num_host_blocks_max = 40;

  EXPECT_EQ(Agree(hellos, settings)->limits.num_blocks, 50);
  EXPECT_EQ(Agree(hellos, settings)->limits.num_host_blocks, 30);
}

TEST(AgreeTest, TakesWhatTheWorkerHasAndTheModelAllows) {
  const auto limits = LimitsWith(GoodHello(), Settings());

  ASSERT_TRUE(limits.ok());
  EXPECT_EQ(limits->num_blocks, 101);
  EXPECT_EQ(limits->max_model_len, 1000);
  EXPECT_EQ(limits->vocab_size, 100);
}

TEST(AgreeTest, ASequenceIsNeverLongerThanThePool) {
  WorkerHello hello = GoodHello();
  hello.num_blocks_max = 11;

  EXPECT_EQ(LimitsWith(hello, Settings())->max_model_len, 160);
}

TEST(AgreeTest, AStepHasAsManyTokensAsFillTheDeviceOfEveryRank) {
  GroupSettings settings = Settings();
  std::vector<WorkerHello> hellos = {GoodHello(), GoodHello()};
  hellos[1].uuid = "another";
  EXPECT_EQ(Agree(hellos, settings)->limits.max_tokens_per_step, 256) << "nobody says";
  hellos[0].full_step_tokens = 2048;
  EXPECT_EQ(Agree(hellos, settings)->limits.max_tokens_per_step, 256);
  hellos[1].full_step_tokens = 512;
  EXPECT_EQ(Agree(hellos, settings)->limits.max_tokens_per_step, 512);

  settings.max_tokens_per_step = 64;

  EXPECT_EQ(Agree(hellos, settings)->limits.max_tokens_per_step, 64);
}

TEST(AgreeTest, NextBlocksAreNamedWhereAnyRankWantsThem) {
  for (const bool first : {false, true}) {
    for (const bool second : {false, true}) {
      std::vector<WorkerHello> hellos = {GoodHello(), GoodHello()};
      hellos[1].uuid = "another";
      hellos[0].wants_next_blocks = first;
      hellos[1].wants_next_blocks = second;

      EXPECT_EQ(Agree(hellos, Settings())->limits.wants_next_blocks, first || second);
    }
  }
}

TEST(AgreeTest, TheLargestPageOfAnyRankDecidesHowManyBlocksAreLaidOutTogether) {
  std::vector<WorkerHello> hellos = {GoodHello(), GoodHello()};
  hellos[1].uuid = "another";
  EXPECT_EQ(Agree(hellos, Settings())->limits.blocks_per_page, 1);

  hellos[0].kv_memory.page_bytes = hellos[0].block_bytes / 2;
  EXPECT_EQ(Agree(hellos, Settings())->limits.blocks_per_page, 1);
  hellos[1].kv_memory.page_bytes = hellos[1].block_bytes * 8;
  EXPECT_EQ(Agree(hellos, Settings())->limits.blocks_per_page, 8);
  hellos[0].kv_memory.page_bytes = hellos[0].block_bytes * 32;
  EXPECT_EQ(Agree(hellos, Settings())->limits.blocks_per_page, 32);
}

TEST(AgreeTest, NoBlockIsNoMemory) {
  WorkerHello hello = GoodHello();
  hello.num_blocks_max = 1;

  EXPECT_EQ(ReasonOf(LimitsWith(hello, Settings()).status()), "NO_MEMORY");
}

TEST(AgreeTest, NumbersThatNoWorkerCanMeanAreBounded) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const int32_t num_blocks : {-5, std::numeric_limits<int32_t>::min()}) {
    WorkerHello hello = GoodHello();
    hello.num_blocks_max = num_blocks;
    EXPECT_EQ(ReasonOf(LimitsWith(hello, Settings()).status()), "NO_MEMORY");
  }
  GroupSettings settings = Settings();
  settings.wants_host_blocks = true;
  for (const int32_t num_host_blocks : {-5, std::numeric_limits<int32_t>::min(), kMost}) {
    WorkerHello hello = GoodHello();
    hello.num_host_blocks_max = num_host_blocks;
    const auto limits = LimitsWith(hello, settings);
    ASSERT_TRUE(limits.ok()) << limits.status();
    EXPECT_EQ(limits->num_host_blocks, num_host_blocks < 0 ? 0 : limits->num_blocks);
  }
  WorkerHello hello = GoodHello();
  hello.num_blocks_max = kMost;
  hello.full_step_tokens = kMost;
  EXPECT_EQ(LimitsWith(hello, Settings())->num_blocks, kMaxBlocksLimit);
  EXPECT_EQ(LimitsWith(hello, Settings())->max_tokens_per_step, kMaxTokensPerStepLimit);
  hello.full_step_tokens = -kMost;
  EXPECT_EQ(LimitsWith(hello, Settings())->max_tokens_per_step, 256);
}

TEST(AgreeTest, WhatNoWorkerTakesIsRefusedHere) {
  for (const auto& spoil : std::vector<std::function<void(GroupSettings&)>>{
           [](auto& s) { s.block_size_tokens = 24; },
           [](auto& s) { s.max_sequences = 8192; },
           [](auto& s) { s.max_tokens_per_step = 1 << 20; },
           [](auto& s) { s.max_model_len = 1001; }}) {
    GroupSettings settings = Settings();
    spoil(settings);
    EXPECT_EQ(ReasonOf(LimitsWith(GoodHello(), settings).status()), "STEP_LIMITS");
  }
}

GroupSettings WindowedSettings(int32_t window, std::vector<bool> layers) {
  GroupSettings settings = Settings();
  settings.model.sliding_window = window;
  settings.model.layer_uses_sliding_window = std::move(layers);
  settings.max_tokens_per_step = 64;
  return settings;
}

TEST(AgreeTest, BehindAWindowASequenceMayBeLongerThanThePool) {
  WorkerHello hello = GoodHello();
  const GroupSettings settings = WindowedSettings(32, {true, true});
  hello.num_blocks_max = 8;  // null block, and 7 for 31 tokens of the window and a step of 64
  EXPECT_EQ(LimitsWith(hello, settings)->max_model_len, 1000);
  EXPECT_EQ(LimitsWith(hello, settings)->sliding_window, 32);

  hello.num_blocks_max = 7;

  EXPECT_EQ(LimitsWith(hello, settings)->max_model_len, 96);
}

TEST(AgreeTest, AWindowThatFreesNothingIsNone) {
  EXPECT_EQ(LimitsWith(GoodHello(), WindowedSettings(32, {true, false}))->sliding_window, 0);
  EXPECT_EQ(LimitsWith(GoodHello(), WindowedSettings(1000, {true, true}))->sliding_window, 0);
  EXPECT_EQ(LimitsWith(GoodHello(), WindowedSettings(999, {true, true}))->sliding_window, 999);
}

TEST(AgreeTest, TheOverrideUsesFewerBlocksAndNeverMore) {
  GroupSettings settings = Settings();
  settings.num_blocks_override = 5;
  EXPECT_EQ(LimitsWith(GoodHello(), settings)->num_blocks, 5);
  settings.num_blocks_override = 500;
  EXPECT_EQ(LimitsWith(GoodHello(), settings)->num_blocks, 101);
}

TEST(AgreeTest, HostBlocksAreTakenWhenWantedAndNoMoreThanThePoolHas) {
  GroupSettings settings = Settings();
  WorkerHello hello = GoodHello();
  hello.num_host_blocks_max = 40;
  EXPECT_EQ(LimitsWith(hello, settings)->num_host_blocks, 0);
  settings.wants_host_blocks = true;
  EXPECT_EQ(LimitsWith(hello, settings)->num_host_blocks, 40);
  hello.num_host_blocks_max = 4000;
  EXPECT_EQ(LimitsWith(hello, settings)->num_host_blocks, 101);
}

}  // namespace
}  // namespace quire
