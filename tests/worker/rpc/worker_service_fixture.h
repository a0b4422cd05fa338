// WorkerService behind a real gRPC server on a Unix socket, driven with the generated client:
// before its model is loaded (LoadingWorkerTest) and after (WorkerServiceTest).
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_WORKER_RPC_WORKER_SERVICE_FIXTURE_H_
#define QUIRE_TESTS_WORKER_RPC_WORKER_SERVICE_FIXTURE_H_

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/wire/channel.h"
#include "common/wire/grpc_status.h"
#include "common/wire/step_codec.h"
#include "common/wire/worker_protocol.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/runtime/fake_model.h"
#include "worker/rpc/worker_server.h"
#include "worker/rpc/worker_service.h"

namespace quire {

// A call that hangs must fail the test, not stop the run.
inline constexpr std::chrono::seconds kDeadline(20);

using Stub = v1::WorkerService::Stub;
using StepsClient = grpc::ClientReaderWriter<v1::StepRequest, v1::StepResponse>;

// A Steps call as a scheduler makes it.
class StepsConversation {
 public:
  explicit StepsConversation(Stub& stub) {
    context_.set_deadline(std::chrono::system_clock::now() + kDeadline);
    stream_ = stub.Steps(&context_);
  }

  bool Send(const StepPlan& plan) { return Send(plan, DigestOf(plan)); }
  bool Send(const StepPlan& plan, uint64_t digest) {
    v1::StepRequest request;
    EncodePlan(plan, &request);
    request.set_plan_digest(digest);
    return stream_->Write(request);
  }

  // The next result, or how the stream ended.
  absl::StatusOr<StepResult> Receive() {
    v1::StepResponse response;
    if (stream_->Read(&response)) {
      return DecodeResult(response);
    }
    absl::Status status = FromGrpcStatus(stream_->Finish());
    return status.ok() ? absl::OutOfRangeError("the stream ended well") : status;
  }

  absl::StatusOr<StepResult> Exchange(const StepPlan& plan) {
    Send(plan);
    return Receive();
  }

  absl::Status Close() {
    stream_->WritesDone();
    return FromGrpcStatus(stream_->Finish());
  }

  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<StepsClient> stream_;
};

// Before the model is loaded.
class LoadingWorkerTest : public testing::Test {
 protected:
  explicit LoadingWorkerTest(KvBackend kv_backend = KvBackend::kPaged)
      : backend_(CreateReferenceBackend()),
        executor_(model_,
                  *backend_,
                  {.bytes = 1 << 20,
                   .swap_space_bytes = 1 << 16,
                   .num_blocks_override = 0,
                   .backend = kv_backend}),
        progress_(*backend_),
        service_(progress_) {
    std::string path = "/tmp/quire_worker_test_" + std::to_string(getpid()) + ".sock";
    auto server = WorkerServer::Start({.unix_path = path, .host = "", .port = 0}, service_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = NewStub();
  }

  void Serve() {
    service_.Serve(
        {.version = "1.2.3", .model_hash = 77, .determinism_fingerprint = backend_->name()},
        executor_);
  }

  std::unique_ptr<Stub> NewStub() {
    return v1::WorkerService::NewStub(DialWorker(server_->address()));
  }

  static v1::HandshakeRequest GoodHandshake() {
    v1::HandshakeRequest request;
    request.set_protocol_version(kWorkerProtocolVersion);
    request.set_scheduler_incarnation(1);
    request.set_block_size_tokens(4);
    request.set_tensor_parallel_size(1);
    return request;
  }

  absl::Status Handshake(const v1::HandshakeRequest& request, v1::HandshakeResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    return FromGrpcStatus(stub_->Handshake(&context, request, response));
  }

  absl::Status BeginEpoch(uint64_t incarnation,
                          uint64_t epoch,
                          int32_t num_blocks = 20,
                          int32_t num_host_blocks = 0,
                          bool wants_next_blocks = false) {
    v1::BeginEpochRequest request;
    request.set_scheduler_incarnation(incarnation);
    request.set_group_epoch(epoch);
    request.set_num_blocks(num_blocks);
    request.set_num_host_blocks(num_host_blocks);
    request.set_block_size_tokens(4);
    request.set_max_sequences(4);
    request.set_max_tokens_per_step(32);
    request.set_max_model_len_tokens(40);
    request.set_wants_next_blocks(wants_next_blocks);
    v1::BeginEpochResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    return FromGrpcStatus(stub_->BeginEpoch(&context, request, &response));
  }

  // The first report that names this scheduler as the one that has the worker.
  v1::WatchReport AwaitReportOf(uint64_t holder_incarnation) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    const auto watch = stub_->Watch(&context, v1::WatchRequest());
    v1::WatchReport report;
    while (report.holder_incarnation() != holder_incarnation && watch->Read(&report)) {
    }
    EXPECT_EQ(report.holder_incarnation(), holder_incarnation);
    context.TryCancel();
    return report;
  }

  static StepPlan Ping(uint64_t incarnation, uint64_t epoch, uint64_t step) {
    StepPlan plan;
    plan.header = {.scheduler_incarnation = incarnation, .group_epoch = epoch, .step_id = step};
    return plan;
  }

  // Step 1: introduces handle 0 and computes it whole.
  static StepPlan Prefill(uint64_t incarnation,
                          uint64_t epoch,
                          const std::vector<TokenId>& tokens) {
    StepPlan plan = Ping(incarnation, epoch, 1);
    SequenceIntroduction introduction;
    introduction.token_ids = tokens;
    introduction.num_prompt_tokens = static_cast<int32_t>(tokens.size());
    introduction.sampling.temperature = 0.0F;
    plan.introductions = {introduction};
    plan.slices = {{.handle = 0,
                    .num_tokens = static_cast<int32_t>(tokens.size()),
                    .new_block_ids = {5, 6, 7}}};
    return plan;
  }

  static StepPlan Decode(uint64_t incarnation, uint64_t epoch, uint64_t step) {
    StepPlan plan = Ping(incarnation, epoch, step);
    plan.slices = {{.handle = 0, .num_tokens = 1, .new_block_ids = {}}};
    return plan;
  }

  // The worker still serves: a new epoch prefills and decodes rightly.
  void ExpectServes(uint64_t incarnation) {
    ASSERT_TRUE(BeginEpoch(incarnation, 1).ok());
    StepsConversation steps(*stub_);
    std::vector<TokenId> tokens = {1, 2, 3};
    auto first = steps.Exchange(Prefill(incarnation, 1, tokens));
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_EQ(first->sampled.size(), 1U);
    EXPECT_EQ(first->sampled[0].token_id, FakeModel::NextToken(tokens));
    EXPECT_TRUE(steps.Close().ok());
  }

  FakeModel model_;
  std::unique_ptr<KernelBackend> backend_;
  StepExecutor executor_;
  WorkerProgress progress_;
  WorkerService service_;
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<Stub> stub_;
};

class WorkerServiceTest : public LoadingWorkerTest {
 protected:
  WorkerServiceTest() { Serve(); }
};

// With windows.
class WindowedWorkerServiceTest : public LoadingWorkerTest {
 protected:
  WindowedWorkerServiceTest() : LoadingWorkerTest(KvBackend::kVmm) { Serve(); }
};

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_RPC_WORKER_SERVICE_FIXTURE_H_
