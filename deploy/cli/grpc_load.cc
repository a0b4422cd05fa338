#include "deploy/cli/grpc_load.h"

#include <algorithm>
#include <utility>

#include "grpcpp/grpcpp.h"

#include "common/wire/grpc_status.h"
#include "deploy/cli/server_access.h"

namespace quire {
namespace {

// Streams per connection, unless kMaxConnections connections are too few. A server admits 128
// streams on a connection. Further streams would wait inside the client, and the wait would be
// measured as slowness of the server.
constexpr size_t kStreamsPerConnection = 64;
constexpr size_t kMaxConnections = 64;

}  // namespace

// The stream of one request. REQUIRES: the object lives until gRPC calls OnDone, the last callback.
class GrpcLoad::Stream : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(v1::GenerationService::Stub& stub,
         const std::string& api_key,
         const v1::GenerateRequest& request,
         RequestRecord& record,
         std::function<void()> done)
      : request_(request), record_(record), done_(std::move(done)) {
    AddApiKey(api_key, context_);
    record_.start = SteadyNow();
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      return;
    }
    if (response_.has_started()) {
      record_.num_prompt_tokens = response_.started().num_prompt_tokens();
    }
    const auto& token_ids = response_.chunk().token_ids();
    if (!token_ids.empty()) {
      record_.arrivals.push_back(SteadyNow());
      record_.num_output_tokens += token_ids.size();
      record_.output_token_ids.insert(
          record_.output_token_ids.end(), token_ids.begin(), token_ids.end());
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    record_.end = SteadyNow();
    record_.status = FromGrpcStatus(status);
    const std::function<void()> done = std::move(done_);
    done();  // the object may be gone now
  }

 private:
  const v1::GenerateRequest& request_;
  RequestRecord& record_;
  std::function<void()> done_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
};

GrpcLoad::GrpcLoad(const GrpcTarget& target,
                   const std::vector<v1::GenerateRequest>& requests,
                   int32_t max_concurrency)
    : api_key_(target.api_key), requests_(requests), streams_(requests.size()) {
  size_t most_at_once = requests.size();
  if (max_concurrency > 0) {
    most_at_once = std::min(most_at_once, static_cast<size_t>(max_concurrency));
  }
  const size_t num_connections =
      std::min(most_at_once / kStreamsPerConnection + 1, kMaxConnections);
  for (size_t i = 0; i < num_connections; ++i) {
    stubs_.push_back(v1::GenerationService::NewStub(target.dial()));
  }
}

GrpcLoad::~GrpcLoad() = default;

void GrpcLoad::Start(size_t index, RequestRecord& record, std::function<void()> done) {
  streams_[index] = std::make_unique<Stream>(
      *stubs_[index % stubs_.size()], api_key_, requests_[index], record, std::move(done));
}

}  // namespace quire
