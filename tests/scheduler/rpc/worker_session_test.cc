#include "scheduler/rpc/worker_session.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"

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

v1::HandshakeResponse GoodResponse() {
  v1::HandshakeResponse response;
  response.set_protocol_version(1);
  response.set_config_hash(HashOf(Settings().model));
  response.set_model_hash(77);
  response.set_num_blocks_max(101);
  response.set_kv_cache_dtype(v1::DTYPE_F32);
  response.set_vocab_size(100);
  return response;
}

TEST(CheckHandshakeTest, AWorkerWithTheSameModelIsWelcome) {
  EXPECT_TRUE(CheckHandshake(GoodResponse(), Settings(), {}).ok());
  EXPECT_TRUE(CheckHandshake(GoodResponse(), Settings(), {.model_hash = 77}).ok());
}

struct WrongWorker {
  std::string field;
  std::function<void(v1::HandshakeResponse&)> spoil;
};

class CheckHandshakeRefusalTest : public testing::TestWithParam<WrongWorker> {};

TEST_P(CheckHandshakeRefusalTest, NamesTheFieldThatDiffers) {
  GroupSettings settings = Settings();
  settings.kv_cache_dtype = DType::kF32;
  v1::HandshakeResponse response = GoodResponse();
  GetParam().spoil(response);

  const absl::Status status = CheckHandshake(response, settings, {.model_hash = 77});

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "CONFIG_MISMATCH");
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().field + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    EveryField,
    CheckHandshakeRefusalTest,
    testing::Values(WrongWorker{"protocol_version", [](auto& r) { r.set_protocol_version(2); }},
                    WrongWorker{"vocab_size", [](auto& r) { r.set_vocab_size(101); }},
                    WrongWorker{"config_hash", [](auto& r) { r.set_config_hash(1); }},
                    WrongWorker{"model_hash", [](auto& r) { r.set_model_hash(78); }},
                    WrongWorker{"kv_cache_dtype",
                                [](auto& r) { r.set_kv_cache_dtype(v1::DTYPE_BF16); }}),
    [](const auto& param) { return param.param.field; });

TEST(AgreeLimitsTest, TakesWhatTheWorkerHasAndTheModelAllows) {
  const auto limits = AgreeLimits(GoodResponse(), Settings());

  ASSERT_TRUE(limits.ok());
  EXPECT_EQ(limits->num_blocks, 101);
  EXPECT_EQ(limits->max_model_len, 1000);
  EXPECT_EQ(limits->vocab_size, 100);
}

TEST(AgreeLimitsTest, ASequenceIsNeverLongerThanThePool) {
  v1::HandshakeResponse response = GoodResponse();
  response.set_num_blocks_max(11);

  EXPECT_EQ(AgreeLimits(response, Settings())->max_model_len, 160);
}

GroupSettings WindowedSettings(int32_t window, std::vector<bool> layers) {
  GroupSettings settings = Settings();
  settings.model.sliding_window = window;
  settings.model.layer_uses_sliding_window = std::move(layers);
  settings.max_tokens_per_step = 64;
  return settings;
}

TEST(AgreeLimitsTest, BehindAWindowASequenceMayBeLongerThanThePool) {
  v1::HandshakeResponse response = GoodResponse();
  const GroupSettings settings = WindowedSettings(32, {true, true});
  response.set_num_blocks_max(8);  // 7 for 31 tokens before a step of 64
  EXPECT_EQ(AgreeLimits(response, settings)->max_model_len, 1000);
  EXPECT_EQ(AgreeLimits(response, settings)->sliding_window, 32);

  response.set_num_blocks_max(7);

  EXPECT_EQ(AgreeLimits(response, settings)->max_model_len, 96);
}

TEST(AgreeLimitsTest, AWindowThatFreesNothingIsNone) {
  EXPECT_EQ(AgreeLimits(GoodResponse(), WindowedSettings(32, {true, false}))->sliding_window, 0);
  EXPECT_EQ(AgreeLimits(GoodResponse(), WindowedSettings(1000, {true, true}))->sliding_window, 0);
  EXPECT_EQ(AgreeLimits(GoodResponse(), WindowedSettings(999, {true, true}))->sliding_window, 999);
}

TEST(AgreeLimitsTest, TheOverrideUsesFewerBlocksAndNeverMore) {
  GroupSettings settings = Settings();
  settings.num_blocks_override = 5;
  EXPECT_EQ(AgreeLimits(GoodResponse(), settings)->num_blocks, 5);
  settings.num_blocks_override = 500;
  EXPECT_EQ(AgreeLimits(GoodResponse(), settings)->num_blocks, 101);
}

TEST(AgreeLimitsTest, HostBlocksAreTakenWhenWantedAndNoMoreThanThePoolHas) {
  GroupSettings settings = Settings();
  v1::HandshakeResponse response = GoodResponse();
  response.set_num_host_blocks_max(40);
  EXPECT_EQ(AgreeLimits(response, settings)->num_host_blocks, 0);
  settings.wants_host_blocks = true;
  EXPECT_EQ(AgreeLimits(response, settings)->num_host_blocks, 40);
  response.set_num_host_blocks_max(4000);
  EXPECT_EQ(AgreeLimits(response, settings)->num_host_blocks, 101);
}

TEST(AgreeLimitsTest, AWorkerWithoutMemoryIsRefused) {
  v1::HandshakeResponse response = GoodResponse();
  response.set_num_blocks_max(1);

  EXPECT_EQ(ReasonOf(AgreeLimits(response, Settings()).status()), "NO_MEMORY");
}

}  // namespace
}  // namespace quire
