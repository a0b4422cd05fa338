#include "tests/scheduler/rpc/generation_service_fixture.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>

#include "common/base/clock.h"
#include "common/json/json.h"
#include "common/wire/grpc_status.h"
#include "tests/scheduler/rpc/tiny_served_model.h"
#include "tests/support/fake_worker.h"

namespace quire {

std::vector<TokenId> Answer::Tokens(int32_t index, int first_position) const {
  std::vector<TokenId> tokens;
  for (const v1::GenerateResponse& response : responses) {
    if (response.has_chunk() && response.chunk().index() == index) {
      EXPECT_EQ(response.chunk().first_position(),
                first_position + static_cast<int32_t>(tokens.size()));
      tokens.insert(
          tokens.end(), response.chunk().token_ids().begin(), response.chunk().token_ids().end());
    }
  }
  return tokens;
}

std::string Answer::Text(int32_t index, int position) const {
  std::string text;
  for (const v1::GenerateResponse& response : responses) {
    const v1::Chunk& chunk = response.chunk();
    if (response.has_chunk() && chunk.index() == index &&
        chunk.first_position() + chunk.token_ids_size() > position) {
      const int num_before = std::max(0, position - chunk.first_position());
      text += chunk.text().substr(num_before == 0 ? 0 : chunk.text_ends(num_before - 1));
    }
    if (response.has_finished() && response.finished().index() == index) {
      text += response.finished().text();
    }
  }
  return text;
}

std::unique_ptr<Tokenizer> LongTokenTokenizer() {
  auto tokenizer = Tokenizer::FromJson(
      {{"decoder", {{"type", "ByteLevel"}}},
       {"model", {{"vocab", {{std::string(4096, 'a'), 0}}}, {"merges", Json::array()}}}});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

GenerationServiceTest::GenerationServiceTest(bool with_tokenizer, const LoopConfig& config)
    : model_(TinyServedModel(with_tokenizer)),
      workers_(&inbox_, kLimits),
      loop_(config,
            {.inbox = &inbox_,
             .workers = &workers_,
             .state = &state_,
             .observer = &observer_,
             .clock = SteadyNow}),
      tasks_(std::make_unique<TaskPool>(1, TenantShares::Bounds{})),
      parts_{.model = &model_,
             .inbox = &inbox_,
             .state = &state_,
             .tasks = tasks_.get(),
             .live_requests = &live_requests_,
             .observer = &observer_,
             .unread = &unread_,
             .outbox_limits = {}} {
  Restart();
}

GenerationServiceTest::~GenerationServiceTest() {
  inbox_.Post(Stop{});
  if (loop_thread_.joinable()) {
    loop_thread_.join();
  } else {
    loop_.Turn(absl::ZeroDuration());
  }
  server_->Shutdown();
}

void GenerationServiceTest::Restart() {
  stub_.reset();
  channel_.reset();
  server_.reset();
  service_ = std::make_unique<GenerationService>(parts_);
  admin_service_ = std::make_unique<AdminService>(parts_, prefix_store_.get());
  grpc::ServerBuilder builder;
  builder.RegisterService(service_.get());
  builder.RegisterService(admin_service_.get());
  builder.experimental().SetInterceptorCreators(std::move(interceptors_));
  server_ = builder.BuildAndStart();
  channel_ = server_->InProcessChannel(grpc::ChannelArguments());
  stub_ = v1::GenerationService::NewStub(channel_);
}

void GenerationServiceTest::Run() {
  workers_.RunByItself();
  loop_.Turn(absl::ZeroDuration());
  loop_thread_ = std::thread([this] { loop_.Run(); });
}

Answer GenerationServiceTest::Generate(const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  return Finish(context, *stub_->Generate(&context, request));
}

Answer GenerationServiceTest::Finish(grpc::ClientContext& context,
                                     grpc::ClientReader<v1::GenerateResponse>& reader) {
  Answer answer;
  v1::GenerateResponse response;
  while (reader.Read(&response)) {
    answer.responses.push_back(response);
  }
  answer.wire_status = reader.Finish();
  answer.status = FromGrpcStatus(answer.wire_status);
  const auto& trailers = context.GetServerTrailingMetadata();
  if (auto it = trailers.find("x-request-id"); it != trailers.end()) {
    answer.request_id = std::string(it->second.data(), it->second.size());
  }
  return answer;
}

absl::Status GenerationServiceTest::CallRaw(const std::string& method, const std::string& bytes) {
  return CallPath("/quire.v1.GenerationService/" + method, bytes);
}

absl::Status GenerationServiceTest::CallPath(const std::string& path, const std::string& bytes) {
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  absl::Mutex mutex;
  std::optional<grpc::Status> status;
  stub.UnaryCall(&context, path, {}, &request, &response, [&](grpc::Status done) {
    absl::MutexLock lock(&mutex);
    status = std::move(done);
  });
  absl::MutexLock lock(&mutex);
  const auto is_done = [&status] { return status.has_value(); };
  mutex.Await(absl::Condition(&is_done));
  return FromGrpcStatus(*status);
}

v1::GenerateRequest GenerationServiceTest::Prompt(const std::string& text, int32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(5);
  return request;
}

std::vector<TokenId> GenerationServiceTest::Expected(const std::string& text,
                                                     int32_t max_tokens,
                                                     int32_t index) {
  std::vector<TokenId> tokens = Letters(text);
  for (int32_t i = 0; i < max_tokens; ++i) {
    tokens.push_back(ExpectedToken(tokens, /*seed=*/5, index, kLetterVocabSize));
  }
  return {tokens.begin() + static_cast<ptrdiff_t>(text.size()), tokens.end()};
}

}  // namespace quire
