#include "deploy/cli/load_generator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"

#include "proto/v1/generation.grpc.pb.h"

#include "common/wire/grpc_status.h"
#include "deploy/cli/server_access.h"

namespace quire {
namespace {

// Streams per connection; more only if kMaxConnections connections are too few. A server admits
// 128 streams on a connection. Further streams would wait inside the client, and the wait would be
// measured as slowness of the server.
constexpr int32_t kStreamsPerConnection = 64;
constexpr int32_t kMaxConnections = 64;

// Counts running streams. Enter waits until fewer than `limit` streams run (0: no limit), and
// counts one more. AwaitEmpty waits until all streams have ended.
class Gate {
 public:
  explicit Gate(int32_t limit) : limit_(limit) {}

  void Enter() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Gate::HasRoom));
    ++running_;
  }
  void Leave() {
    absl::MutexLock lock(&mutex_);
    --running_;
  }
  void AwaitEmpty() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Gate::IsEmpty));
  }

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return limit_ == 0 || running_ < limit_;
  }
  bool IsEmpty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return running_ == 0; }

  const int32_t limit_;
  absl::Mutex mutex_;
  int32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The stream of one request. The object must exist until gRPC has called OnDone, its last call.
class Stream : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(v1::GenerationService::Stub& stub,
         const std::string& api_key,
         const v1::GenerateRequest& request,
         RequestRecord& record,
         Gate& gate)
      : request_(request), record_(record), gate_(gate) {
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
    gate_.Leave();
  }

 private:
  const v1::GenerateRequest& request_;
  RequestRecord& record_;
  Gate& gate_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
};

std::vector<std::unique_ptr<v1::GenerationService::Stub>> Connect(const LoadTarget& target,
                                                                  size_t num_streams) {
  const auto wanted = static_cast<int32_t>(num_streams / kStreamsPerConnection) + 1;
  const int32_t num_connections = std::min(wanted, kMaxConnections);
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs;
  stubs.reserve(static_cast<size_t>(num_connections));
  for (int32_t i = 0; i < num_connections; ++i) {
    stubs.push_back(v1::GenerationService::NewStub(target.dial()));
  }
  return stubs;
}

}  // namespace

std::vector<RequestRecord> RunLoad(const LoadTarget& target,
                                   const std::vector<v1::GenerateRequest>& requests,
                                   const LoadOptions& options) {
  const size_t most_at_once =
      options.max_concurrency > 0 ? static_cast<size_t>(options.max_concurrency) : requests.size();
  auto stubs = Connect(target, std::min(most_at_once, requests.size()));
  std::vector<RequestRecord> records(requests.size());
  std::vector<std::unique_ptr<Stream>> streams(requests.size());
  Gate gate(options.max_concurrency);
  std::mt19937_64 random(options.seed);
  const bool open_loop = std::isfinite(options.requests_per_second);
  std::gamma_distribution<double> gap_seconds(
      options.burstiness,
      open_loop ? 1.0 / (options.requests_per_second * options.burstiness) : 1.0);
  absl::Time next = absl::Now();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (open_loop) {
      absl::SleepFor(next - absl::Now());
      next += absl::Seconds(gap_seconds(random));
    }
    gate.Enter();
    streams[i] = std::make_unique<Stream>(
        *stubs[i % stubs.size()], target.api_key, requests[i], records[i], gate);
  }
  gate.AwaitEmpty();
  return records;
}

}  // namespace quire
