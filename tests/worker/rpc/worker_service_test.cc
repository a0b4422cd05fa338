// WorkerService behind a real gRPC server on a Unix socket, driven with the generated client.
#include "worker/rpc/worker_service.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "proto/v1/generation.grpc.pb.h"

#include "common/base/error.h"
#include "common/wire/channel.h"
#include "common/wire/grpc_status.h"
#include "common/wire/step_codec.h"
#include "common/wire/watch_stream.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/random.h"
#include "tests/worker/runtime/fake_model.h"
#include "worker/rpc/message_reader.h"
#include "worker/rpc/worker_server.h"

namespace quire {
namespace {

// A call that hangs must fail the test, not stop the run.
constexpr std::chrono::seconds kDeadline(20);
constexpr int kNumHostileMessages = 2000;

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
    EncodePlan(plan, digest, &request);
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
  LoadingWorkerTest()
      : backend_(CreateReferenceBackend()),
        executor_(model_,
                  *backend_,
                  {.bytes = 1 << 20, .swap_space_bytes = 1 << 16, .num_blocks_override = 0}),
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
    request.set_protocol_version(1);
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
                          int32_t num_host_blocks = 0) {
    v1::BeginEpochRequest request;
    request.set_scheduler_incarnation(incarnation);
    request.set_group_epoch(epoch);
    request.set_num_blocks(num_blocks);
    request.set_num_host_blocks(num_host_blocks);
    request.set_block_size_tokens(4);
    request.set_max_sequences(4);
    request.set_max_tokens_per_step(32);
    request.set_max_model_len_tokens(40);
    v1::BeginEpochResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    return FromGrpcStatus(stub_->BeginEpoch(&context, request, &response));
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

TEST_F(WorkerServiceTest, HandshakeSaysWhatTheWorkerIs) {
  v1::HandshakeResponse response;

  absl::Status status = Handshake(GoodHandshake(), &response);

  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(response.protocol_version(), 1U);
  EXPECT_EQ(response.worker_uuid().size(), 16U);
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.config_hash(), HashOf(model_.config()));
  EXPECT_EQ(response.model_hash(), 77U);
  EXPECT_EQ(response.block_bytes(), 64);
  EXPECT_EQ(response.num_blocks_max(), (1 << 20) / 64);
  EXPECT_EQ(response.num_host_blocks_max(), (1 << 16) / 64);
  EXPECT_EQ(response.kv_cache_dtype(), v1::DTYPE_F32);  // the model's
  EXPECT_EQ(response.determinism_fingerprint(), "reference");
  EXPECT_EQ(response.vocab_size(), FakeModel::kVocabSize);
}

TEST_F(WorkerServiceTest, ABlockOfEightBitsHasRoomForItsScales) {
  for (const v1::DType dtype : {v1::DTYPE_F8_E4M3, v1::DTYPE_INT8}) {
    v1::HandshakeRequest request = GoodHandshake();
    request.set_kv_cache_dtype(dtype);
    v1::HandshakeResponse response;

    absl::Status status = Handshake(request, &response);

    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(response.kv_cache_dtype(), dtype);
    EXPECT_EQ(response.block_bytes(), 16 + 4 * 2 * 4);  // 16 numbers; 2 scales for each of 4 tokens
    EXPECT_EQ(response.num_blocks_max(), (1 << 20) / 48);
  }
}

TEST_F(WorkerServiceTest, TwoWorkersHaveTwoUuids) {
  EXPECT_NE(WorkerProgress(*backend_).uuid(), WorkerProgress(*backend_).uuid());
}

TEST_F(WorkerServiceTest, AnEpochTakesNoMoreThanTheSwapSpace) {
  EXPECT_TRUE(BeginEpoch(1, 1, 20, (1 << 16) / 64).ok());
  const absl::Status status = BeginEpoch(1, 2, 20, (1 << 16) / 64 + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "MEMORY");
  EXPECT_EQ(ReasonOf(BeginEpoch(1, 2, 20, -1)), "STEP_LIMITS");
}

struct BadHandshake {
  std::string reason;
  std::string field;
  std::function<void(v1::HandshakeRequest&)> spoil;
};

TEST_F(WorkerServiceTest, HandshakesThatDoNotFitAreRefused) {
  const std::vector<BadHandshake> cases = {
      {"CONFIG_MISMATCH", "protocol_version", [](auto& r) { r.set_protocol_version(2); }},
      {"CONFIG_MISMATCH", "tensor_parallel_size", [](auto& r) { r.set_tensor_parallel_size(2); }},
      {"CONFIG_MISMATCH", "rank", [](auto& r) { r.set_rank(1); }},
      {"CONFIG_MISMATCH", "rank", [](auto& r) { r.set_rank(-1); }},
      {"STEP_LIMITS", "block_size_tokens", [](auto& r) { r.set_block_size_tokens(0); }},
      {"STEP_LIMITS", "block_size_tokens", [](auto& r) { r.set_block_size_tokens(-16); }},
      {"STEP_LIMITS", "block_size_tokens", [](auto& r) { r.set_block_size_tokens(24); }},
      {"ENUM_VALUE",
       "kv_cache_dtype",
       [](auto& r) { r.set_kv_cache_dtype(static_cast<v1::DType>(99)); }},
  };
  for (const BadHandshake& bad : cases) {
    v1::HandshakeRequest request = GoodHandshake();
    bad.spoil(request);
    v1::HandshakeResponse response;

    absl::Status status = Handshake(request, &response);

    EXPECT_EQ(ReasonOf(status), bad.reason) << bad.field << ": " << status;
    EXPECT_EQ(std::string(status.message()).substr(0, bad.field.size() + 2), bad.field + ": ");
  }
}

TEST_F(WorkerServiceTest, DecodesOverOneStream) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation steps(*stub_);
  std::vector<TokenId> tokens = {4, 5, 6};
  for (uint64_t step = 1; step <= 8; ++step) {
    auto result = steps.Exchange(step == 1 ? Prefill(1, 1, tokens) : Decode(1, 1, step));

    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->sampled.size(), 1U);
    EXPECT_EQ(result->sampled[0].token_id, FakeModel::NextToken(tokens));
    EXPECT_EQ(result->header.step_id, step);
    tokens.push_back(result->sampled[0].token_id);
  }
  EXPECT_TRUE(steps.Close().ok());
}

TEST_F(WorkerServiceTest, AStepMayBeSentWhileAnotherRuns) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation steps(*stub_);
  ASSERT_TRUE(steps.Send(Prefill(1, 1, {4, 5, 6})));
  ASSERT_TRUE(steps.Send(Decode(1, 1, 2)));
  ASSERT_TRUE(steps.Send(Decode(1, 1, 3)));

  for (uint64_t step = 1; step <= 3; ++step) {
    auto result = steps.Receive();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->header.step_id, step);
  }
  EXPECT_TRUE(steps.Close().ok());
}

TEST_F(WorkerServiceTest, AStepRepeatedOnAnotherConnectionIsNotExecutedAgain) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepPlan plan = Prefill(1, 1, {4, 5, 6});
  StepsConversation lost(*stub_);
  auto first = lost.Exchange(plan);
  ASSERT_TRUE(first.ok()) << first.status();
  lost.Cancel();
  auto other = NewStub();
  StepsConversation steps(*other);

  auto again = steps.Exchange(plan);

  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(model_.num_forwards(), 1);
  EXPECT_TRUE(steps.Exchange(Decode(1, 1, 2)).ok());
}

struct RefusedStep {
  std::string reason;
  absl::StatusCode code;
  StepPlan plan;
};

TEST_F(WorkerServiceTest, ARefusedStepEndsItsStreamWithTheReason) {
  ASSERT_TRUE(BeginEpoch(2, 2).ok());
  StepPlan bad_block = Prefill(2, 2, {1, 2});
  bad_block.slices[0].new_block_ids = {20};
  StepPlan too_many = Prefill(2, 2, {1, 2});
  too_many.slices[0].num_tokens = 33;
  const std::vector<RefusedStep> cases = {
      {"STALE_SCHEDULER", absl::StatusCode::kFailedPrecondition, Ping(1, 2, 1)},
      {"STALE_GROUP", absl::StatusCode::kFailedPrecondition, Ping(2, 1, 1)},
      {"STALE_GROUP", absl::StatusCode::kFailedPrecondition, Ping(3, 2, 1)},
      {"STEP_GAP", absl::StatusCode::kOutOfRange, Ping(2, 2, 2)},
      {"BLOCK_RANGE", absl::StatusCode::kInvalidArgument, bad_block},
      {"STEP_LIMIT", absl::StatusCode::kResourceExhausted, too_many},
  };
  for (const RefusedStep& refused : cases) {
    StepsConversation steps(*stub_);

    absl::Status status = steps.Exchange(refused.plan).status();

    EXPECT_EQ(ReasonOf(status), refused.reason) << status;
    EXPECT_EQ(status.code(), refused.code);
  }
  StepsConversation steps(*stub_);
  EXPECT_TRUE(steps.Exchange(Prefill(2, 2, {1, 2})).ok());
}

TEST_F(WorkerServiceTest, APlanWithTheDigestOfAnotherIsNotExecuted) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation steps(*stub_);
  steps.Send(Prefill(1, 1, {1, 2}), 12345);

  absl::Status status = steps.Receive().status();

  EXPECT_EQ(ReasonOf(status), "PROTOCOL_VIOLATION") << status;
  EXPECT_EQ(model_.num_forwards(), 0);
}

TEST_F(WorkerServiceTest, AStreamBeforeAnyEpochIsStale) {
  StepsConversation steps(*stub_);

  EXPECT_EQ(ReasonOf(steps.Exchange(Ping(1, 1, 1)).status()), "STALE_GROUP");
}

TEST_F(WorkerServiceTest, ANewerSchedulerTakesTheWorkerOver) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation old_steps(*stub_);
  ASSERT_TRUE(old_steps.Exchange(Prefill(1, 1, {1, 2})).ok());
  auto other = NewStub();

  ASSERT_TRUE(BeginEpoch(2, 1).ok());
  absl::Status ended = old_steps.Receive().status();
  StepsConversation new_steps(*other);
  auto result = new_steps.Exchange(Prefill(2, 1, {7, 8}));

  EXPECT_EQ(ReasonOf(ended), "STALE_GROUP") << ended;
  EXPECT_EQ(ended.code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sampled[0].token_id, FakeModel::NextToken(std::vector<TokenId>{7, 8}));
  absl::Status stale = BeginEpoch(1, 9);
  EXPECT_EQ(ReasonOf(stale), "STALE_SCHEDULER");
  EXPECT_EQ(MetadataOf(stale, "scheduler_incarnation"), "2");
  v1::HandshakeResponse response;
  EXPECT_EQ(ReasonOf(Handshake(GoodHandshake(), &response)), "STALE_SCHEDULER");
}

TEST_F(WorkerServiceTest, AnEpochIsBegunOnce) {
  ASSERT_TRUE(BeginEpoch(1, 3).ok());

  EXPECT_EQ(ReasonOf(BeginEpoch(1, 3)), "STALE_GROUP");
  EXPECT_EQ(ReasonOf(BeginEpoch(1, 2)), "STALE_GROUP");
  EXPECT_TRUE(BeginEpoch(1, 4).ok());
}

TEST_F(WorkerServiceTest, EpochsThatCannotBeAreRefused) {
  EXPECT_EQ(ReasonOf(BeginEpoch(1, 1, (1 << 20) / 64 + 1)), "MEMORY");
  EXPECT_EQ(ReasonOf(BeginEpoch(1, 1, 2147483647)), "STEP_LIMITS");
  EXPECT_EQ(ReasonOf(BeginEpoch(1, 1, 1)), "STEP_LIMITS");
  EXPECT_EQ(ReasonOf(BeginEpoch(1, 1, -5)), "STEP_LIMITS");

  EXPECT_TRUE(BeginEpoch(1, 1).ok());
}

TEST_F(WorkerServiceTest, ACancelledStreamLeavesTheWorkerServing) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  absl::Notification is_running;
  absl::Notification may_end;
  model_.OnForward([&](const Batch&) {
    if (!is_running.HasBeenNotified()) {  // the first step only
      is_running.Notify();
      may_end.WaitForNotification();
    }
  });
  StepsConversation steps(*stub_);
  ASSERT_TRUE(steps.Send(Prefill(1, 1, {1, 2})));
  is_running.WaitForNotification();

  steps.Cancel();
  absl::Status status = steps.Receive().status();
  may_end.Notify();

  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  ExpectServes(2);
}

TEST_F(WorkerServiceTest, StoppingEndsOpenStreamsWithUnavailable) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation steps(*stub_);
  ASSERT_TRUE(steps.Exchange(Ping(1, 1, 1)).ok());

  std::thread stopper([this] { server_->Shutdown(); });
  absl::Status status = steps.Receive().status();
  stopper.join();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), "SHUTTING_DOWN");
}

TEST_F(WorkerServiceTest, AHandshakeIsAnsweredWhileAStepRuns) {
  absl::Notification is_running;
  absl::Notification may_end;
  model_.OnForward([&](const Batch& /*batch*/) {
    is_running.Notify();
    may_end.WaitForNotification();
  });
  ASSERT_TRUE(BeginEpoch(2, 1).ok());
  StepsConversation steps(*stub_);
  ASSERT_TRUE(steps.Send(Prefill(2, 1, {4, 5, 6})));
  is_running.WaitForNotification();
  v1::HandshakeRequest request = GoodHandshake();
  v1::HandshakeResponse response;

  request.set_scheduler_incarnation(3);
  absl::Status newer = Handshake(request, &response);
  request.set_scheduler_incarnation(1);
  absl::Status older = Handshake(request, &response);
  may_end.Notify();

  EXPECT_TRUE(newer.ok()) << newer;
  EXPECT_EQ(ReasonOf(older), "STALE_SCHEDULER") << older;
  EXPECT_TRUE(steps.Receive().ok());
}

TEST_F(LoadingWorkerTest, EverythingButWatchWaitsForTheModel) {
  v1::HandshakeResponse response;
  StepsConversation steps(*stub_);

  for (const absl::Status& status : {Handshake(GoodHandshake(), &response),
                                     BeginEpoch(1, 1),
                                     steps.Exchange(Ping(1, 1, 1)).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ReasonOf(status), "LOADING") << status;
  }
  Serve();
  ExpectServes(1);
}

// The reports of one Watch call, and how it ended.
class Watcher {
 public:
  explicit Watcher(Stub& stub)
      : stream_(stub,
                {.on_report = [this](const v1::WatchReport& report) { Add(report); },
                 .on_end = [this](const absl::Status& status) { End(status); }}) {}

  ~Watcher() {
    stream_.Cancel();
    ended_.WaitForNotification();
  }

  // The first report, past or future, that is as the test wants it.
  template <typename Predicate>
  v1::WatchReport WaitFor(const Predicate& is_wanted) {
    std::unique_lock<std::mutex> lock(mutex_);
    size_t seen = 0;
    std::optional<v1::WatchReport> found;
    auto look = [&] {
      for (; seen < reports_.size() && !found.has_value(); ++seen) {
        if (is_wanted(reports_[seen])) {
          found = reports_[seen];
        }
      }
      return found.has_value();
    };
    EXPECT_TRUE(changed_.wait_for(lock, kDeadline, look));
    return found.value_or(v1::WatchReport());
  }

  v1::WatchReport WaitForPhase(v1::WorkerPhase phase) {
    return WaitFor([phase](const v1::WatchReport& report) { return report.phase() == phase; });
  }

  absl::Status WaitForEnd() {
    EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(absl::FromChrono(kDeadline)));
    return end_;
  }

 private:
  void Add(const v1::WatchReport& report) {
    const std::lock_guard<std::mutex> lock(mutex_);
    reports_.push_back(report);
    changed_.notify_all();
  }
  void End(const absl::Status& status) {
    end_ = status;
    ended_.Notify();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::WatchReport> reports_;  // under mutex_
  absl::Notification ended_;
  absl::Status end_;  // written before ended_
  WatchStream stream_;
};

TEST_F(LoadingWorkerTest, WatchersSeeTheLoadAndThenAnIdleWorker) {
  Watcher watcher(*stub_);

  const v1::WatchReport first = watcher.WaitForPhase(v1::WORKER_PHASE_LOADING);
  progress_.Load(300, 1000);
  const v1::WatchReport later =
      watcher.WaitFor([](const v1::WatchReport& report) { return report.loaded_bytes() > 0; });
  Serve();
  const v1::WatchReport last = watcher.WaitForPhase(v1::WORKER_PHASE_IDLE);

  EXPECT_EQ(first.worker_uuid(), progress_.uuid());
  EXPECT_EQ(first.loaded_bytes(), 0);
  EXPECT_EQ(later.loaded_bytes(), 300);
  EXPECT_EQ(later.total_bytes(), 1000);
  EXPECT_NE(later.progress(), first.progress());
  EXPECT_NE(last.progress(), later.progress());
  EXPECT_EQ(last.num_steps(), 0U);
}

TEST_F(WorkerServiceTest, WatchersSeeEpochsAndSteps) {
  Watcher watcher(*stub_);
  Watcher other(*stub_);
  absl::Notification is_running;
  absl::Notification may_end;
  ASSERT_TRUE(BeginEpoch(3, 7).ok());
  StepsConversation steps(*stub_);
  ASSERT_TRUE(steps.Exchange(Prefill(3, 7, {4, 5, 6})).ok());
  model_.OnForward([&](const Batch& /*batch*/) {
    is_running.Notify();
    may_end.WaitForNotification();
  });

  ASSERT_TRUE(steps.Send(Decode(3, 7, 2)));
  is_running.WaitForNotification();
  const v1::WatchReport during = watcher.WaitForPhase(v1::WORKER_PHASE_EXECUTING);
  const v1::WatchReport for_other = other.WaitForPhase(v1::WORKER_PHASE_EXECUTING);
  may_end.Notify();
  ASSERT_TRUE(steps.Receive().ok());
  const v1::WatchReport after =
      watcher.WaitFor([](const v1::WatchReport& report) { return report.num_steps() == 2; });

  EXPECT_EQ(during.scheduler_incarnation(), 3U);
  EXPECT_EQ(during.group_epoch(), 7U);
  EXPECT_EQ(during.step_id(), 2U);
  EXPECT_EQ(during.num_steps(), 1U);
  EXPECT_EQ(for_other.progress(), during.progress());  // the step stands still
  EXPECT_EQ(after.phase(), v1::WORKER_PHASE_IDLE);
  EXPECT_EQ(after.step_id(), 2U);
  EXPECT_NE(after.progress(), during.progress());
}

TEST_F(WorkerServiceTest, ARefusedOrRepeatedStepIsNotCounted) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation steps(*stub_);
  const StepPlan first = Prefill(1, 1, {4, 5, 6});
  ASSERT_TRUE(steps.Exchange(first).ok());
  ASSERT_TRUE(steps.Exchange(first).ok());
  StepPlan bad = Decode(1, 1, 2);
  bad.slices[0].handle = 3;  // of no sequence
  ASSERT_FALSE(steps.Exchange(bad).ok());

  Watcher watcher(*stub_);
  const v1::WatchReport report = watcher.WaitForPhase(v1::WORKER_PHASE_IDLE);

  EXPECT_EQ(report.num_steps(), 1U);
  EXPECT_EQ(report.step_id(), 1U);
}

TEST_F(WorkerServiceTest, StoppingEndsWatches) {
  Watcher watcher(*stub_);
  watcher.WaitForPhase(v1::WORKER_PHASE_IDLE);

  server_->Shutdown();

  EXPECT_EQ(ReasonOf(watcher.WaitForEnd()), "SHUTTING_DOWN");
}

TEST_F(WorkerServiceTest, AWatcherThatLeavesMakesRoomForAnother) {
  // More in all than may watch at once, and than one connection carries.
  for (size_t i = 0; i <= WorkerReporter::kMaxCalls; ++i) {
    Watcher watcher(*stub_);
    watcher.WaitForPhase(v1::WORKER_PHASE_IDLE);
  }
}

TEST_F(WorkerServiceTest, TooManyWatchersAreRefused) {
  constexpr size_t kCallsPerConnection = 8;
  std::vector<std::unique_ptr<Stub>> stubs;
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (size_t i = 0; i < WorkerReporter::kMaxCalls; ++i) {
    if (i % kCallsPerConnection == 0) {
      stubs.push_back(NewStub());
    }
    watchers.push_back(std::make_unique<Watcher>(*stubs.back()));
    watchers.back()->WaitForPhase(v1::WORKER_PHASE_IDLE);
  }

  Watcher refused(*stub_);

  EXPECT_EQ(ReasonOf(refused.WaitForEnd()), "QUEUE_FULL");
}

TEST_F(WorkerServiceTest, ThePublicServiceIsNotHere) {
  auto stub = v1::GenerationService::NewStub(DialWorker(server_->address()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  v1::GetServerInfoResponse response;

  grpc::Status status = stub->GetServerInfo(&context, v1::GetServerInfoRequest(), &response);

  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// Calls a method with any bytes, and gives the status.
class RawCaller {
 public:
  explicit RawCaller(const Address& address) : stub_(DialWorker(address)) {}

  absl::Status Call(const std::string& method, const std::string& bytes) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    grpc::CompletionQueue queue;
    grpc::Slice slice(bytes);
    auto call = stub_.PrepareCall(&context, "/quire.v1.WorkerService/" + method, &queue);
    call->StartCall(Tag());
    Await(queue);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, Tag());
    Await(queue);
    grpc::ByteBuffer response;
    call->Read(&response, Tag());
    Await(queue);
    grpc::Status status;
    call->Finish(&status, Tag());
    Await(queue);
    queue.Shutdown();
    return FromGrpcStatus(status);
  }

 private:
  static void* Tag() { return nullptr; }
  static void Await(grpc::CompletionQueue& queue) {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  }

  grpc::GenericStub stub_;
};

TEST_F(WorkerServiceTest, BytesThatAreNoMessageAreRefusedByEveryMethod) {
  RawCaller caller(server_->address());
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  const std::vector<std::string> junk = {"\xFF\xFF\xFF\xFF",
                                         std::string("\x42\x7F\x01", 3),
                                         std::string(1000, '\x0B'),
                                         "\x08",
                                         std::string("\x00\x00", 2)};
  for (const char* method : {"Handshake", "BeginEpoch", "Steps", "Watch"}) {
    for (const std::string& bytes : junk) {
      absl::Status status = caller.Call(method, bytes);

      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << method << ": " << status;
      EXPECT_EQ(ReasonOf(status), "MALFORMED_PROTO") << method;
    }
  }
  ExpectServes(2);
}

TEST_F(WorkerServiceTest, AMessageOfMillionsOfEmptyIntroductionsIsRefusedUnparsed) {
  RawCaller caller(server_->address());
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  std::string bytes;
  for (int i = 0; i < 10'000'000; ++i) {
    bytes += std::string("\x3A\x00", 2);
  }

  absl::Status status = caller.Call("Steps", bytes);

  EXPECT_EQ(ReasonOf(status), "MALFORMED_PROTO") << status;
  ExpectServes(2);
}

// Well-formed and damaged steps, in any order: each call ends, and the worker goes on.
TEST_F(WorkerServiceTest, DamagedStepsNeverEndTheWorker) {
  RawCaller caller(server_->address());
  Random random(5);
  uint64_t epoch = 1;
  ASSERT_TRUE(BeginEpoch(1, epoch).ok());
  v1::StepRequest request;
  for (int i = 0; i < kNumHostileMessages; ++i) {
    StepPlan plan = Prefill(1, epoch, {1, 2, 3});
    EncodePlan(plan, DigestOf(plan), &request);
    std::string bytes = request.SerializeAsString();
    // Past the header half of the time, so that not only stale headers are tried.
    int32_t first = random.OneIn(2) ? 15 : 0;
    bytes[static_cast<size_t>(random.Between(first, static_cast<int32_t>(bytes.size()) - 1))] =
        static_cast<char>(random.Next());
    if (caller.Call("Steps", bytes).ok()) {
      ASSERT_TRUE(BeginEpoch(1, ++epoch).ok());  // the byte was as before: the step was done
    }
  }

  ExpectServes(2);
}

TEST(MessageReaderTest, WritesWhatItReads) {
  v1::HandshakeRequest request;
  request.set_scheduler_incarnation(~uint64_t{0});
  v1::HandshakeRequest back;

  absl::Status status = ReadMessage(WriteMessage(request), &back);

  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(back.SerializeAsString(), request.SerializeAsString());
}

TEST(MessageReaderTest, TheLargestHonestMessageIsRead) {
  v1::StepRequest request;
  for (int i = 0; i < 4096; ++i) {
    request.add_introductions()->set_handle(static_cast<uint32_t>(i));
    request.add_slice_handle(1);
    request.add_releases(1);
  }
  v1::StepRequest back;

  EXPECT_TRUE(ReadMessage(WriteMessage(request), &back).ok());
  EXPECT_EQ(back.introductions_size(), 4096);
}

}  // namespace
}  // namespace quire
