// The server's answers about itself: its limits, its load, and the map of its blocks.
#include <cstdint>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/client_context.h>

#include "proto/v1/admin.grpc.pb.h"

#include "common/base/error.h"
#include "tests/scheduler/loop/fake_worker_client.h"
#include "tests/scheduler/rpc/generation_service_fixture.h"
#include "tests/scheduler/rpc/tiny_served_model.h"

namespace quire {
namespace {

using testing::ElementsAre;

TEST_F(GenerationServiceTest, ServerInfoTellsTheLimitsAndTheLoad) {
  Run();
  state_.SetRanks({{.address = "unix:/a"}, {.address = "unix:/b", .phase = RankPhase::kLoading}});
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;

  ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());

  EXPECT_EQ(info.model(), "tiny");
  EXPECT_EQ(info.max_model_len_tokens(), 100);
  EXPECT_EQ(info.num_blocks(), 63);
  EXPECT_TRUE(info.ready());
  EXPECT_TRUE(info.has_tokenizer());
  EXPECT_THAT(info.eos_token_ids(), ElementsAre(kTinyEos));
  EXPECT_EQ(info.tensor_parallel_size(), 2);
}

TEST_F(GenerationServiceTest, LoadTellsWhereRequestsAndBlocksAre) {
  Run();
  Generate(Prompt("hello", 4));
  state_.SetRanks({{.address = "unix:/a"}, {.address = "unix:/b", .phase = RankPhase::kLoading}});
  const auto admin = v1::AdminService::NewStub(channel_);
  v1::GetLoadResponse load;

  // A client receives its last message before the loop publishes the remaining load.
  do {
    grpc::ClientContext context;
    ASSERT_TRUE(admin->GetLoad(&context, {}, &load).ok());
  } while (load.num_running_requests() > 0);

  EXPECT_TRUE(load.ready());
  EXPECT_EQ(load.num_waiting_requests(), 0);
  EXPECT_EQ(load.kv_blocks().num_blocks(), 63);
  EXPECT_EQ(load.kv_blocks().num_free() + load.kv_blocks().num_cached() +
                load.kv_blocks().num_active() + load.kv_blocks().num_pending(),
            63);
  EXPECT_EQ(load.kv_blocks().block_size_tokens(), 4);
  EXPECT_EQ(load.kv_blocks().block_bytes(), FakeWorkerClient::kBlockBytes);
  EXPECT_EQ(load.kv_blocks().num_stored_tokens(), 0);
  ASSERT_EQ(load.ranks_size(), 2);
  EXPECT_EQ(load.ranks(0).phase(), v1::Rank::AWAY);
  EXPECT_EQ(load.ranks(1).phase(), v1::Rank::LOADING);
  EXPECT_EQ(load.ranks(1).address(), "unix:/b");
}

TEST_F(GenerationServiceTest, LoadTellsHowWorkersKeepBlocks) {
  Run();
  Generate(Prompt("hello", 4));
  state_.SetRanks({{.address = "unix:/a",
                    .kv_memory = {.backend = KvBackend::kVmm,
                                  .page_bytes = 4096,
                                  .padding_bytes = 96,
                                  .num_places = 12,
                                  .max_places = 30'717}},
                   {.address = "unix:/b", .kv_memory = {.backend = KvBackend::kPaged}},
                   {.address = "unix:/c", .kv_memory = {.num_places = 5}}});
  const auto admin = v1::AdminService::NewStub(channel_);
  grpc::ClientContext context;
  v1::GetLoadResponse load;

  ASSERT_TRUE(admin->GetLoad(&context, {}, &load).ok());

  ASSERT_EQ(load.ranks_size(), 3);
  const v1::KvMemory& windows = load.ranks(0).kv_memory();
  EXPECT_EQ(windows.backend(), v1::KV_BACKEND_VMM);
  EXPECT_EQ(windows.page_bytes(), 4096);
  EXPECT_EQ(windows.padding_bytes(), 96 * (64 + load.host_blocks().num_blocks()));
  EXPECT_EQ(windows.num_places(), 12);
  EXPECT_EQ(windows.max_places(), 30'717);
  const v1::KvMemory& paged = load.ranks(1).kv_memory();
  EXPECT_EQ(paged.backend(), v1::KV_BACKEND_PAGED);
  EXPECT_EQ(paged.padding_bytes(), 0);
  EXPECT_FALSE(paged.has_max_places());
  EXPECT_FALSE(load.ranks(2).has_kv_memory()) << "it does not say";
}

TEST_F(GenerationServiceTest, StateIsTheLoadWithAMapOfItsBlocks) {
  Run();
  v1::GenerateRequest request = Prompt("hello", 90);
  request.set_request_id("one-that-runs");
  const auto admin = v1::AdminService::NewStub(channel_);
  grpc::ClientContext generate_context;
  const auto reader = stub_->Generate(&generate_context, request);
  v1::GenerateResponse first;
  ASSERT_TRUE(reader->Read(&first));
  grpc::ClientContext context;
  v1::GetStateResponse state;

  ASSERT_TRUE(admin->GetState(&context, {}, &state).ok());
  const Answer answer = Finish(generate_context, *reader);

  EXPECT_TRUE(answer.status.ok());
  EXPECT_EQ(state.model(), "tiny");
  EXPECT_TRUE(state.load().ready());
  EXPECT_GT(state.time_us(), 0);
  EXPECT_EQ(state.load().kv_blocks().num_blocks(), 63);
  const v1::BlockMap& map = state.block_map();
  EXPECT_EQ(map.blocks_per_cell(), 1);
  ASSERT_EQ(map.num_active_size(), 63);
  EXPECT_EQ(std::accumulate(map.num_active().begin(), map.num_active().end(), 0U),
            static_cast<uint32_t>(state.load().kv_blocks().num_active()));
  if (state.load().num_running_requests() == 1) {  // it may have ended
    ASSERT_EQ(map.holders_size(), 1);
    EXPECT_EQ(map.holders(0).request_id(), "one-that-runs");
    EXPECT_EQ(map.holder(0), map.holders(0).number());
  }
}

TEST_F(GenerationServiceTest, BytesThatAreNoQuestionForTheStateAreRefused) {
  Run();

  EXPECT_EQ(ReasonOf(CallPath("/quire.v1.AdminService/GetState", "\xff")), "MALFORMED_PROTO");
}

}  // namespace
}  // namespace quire
