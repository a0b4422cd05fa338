#include "worker/rpc/worker_service.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "proto/v1/generation.grpc.pb.h"

#include "common/base/clock.h"
#include "common/wire/worker_protocol.h"
#include "tests/support/random.h"
#include "tests/support/with_digest.h"
#include "tests/worker/rpc/worker_service_fixture.h"
#include "worker/rpc/message_reader.h"

namespace quire {
namespace {

constexpr int kNumHostileMessages = 2000;

TEST_F(WorkerServiceTest, HandshakeSaysWhatTheWorkerIs) {
  v1::HandshakeResponse response;

  absl::Status status = Handshake(GoodHandshake(), &response);

  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(response.protocol_version(), kWorkerProtocolVersion);
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
  EXPECT_EQ(response.full_step_tokens(), 256);
  EXPECT_EQ(response.kv_backend(), v1::KV_BACKEND_PAGED);
  EXPECT_EQ(response.window_page_bytes(), 0);
  EXPECT_EQ(response.block_padding_bytes(), 0);
  EXPECT_FALSE(response.has_max_window_places());
}

TEST_F(WindowedWorkerServiceTest, HandshakeSaysWhatWindowsCost) {
  v1::HandshakeResponse response;

  absl::Status status = Handshake(GoodHandshake(), &response);

  ASSERT_TRUE(status.ok()) << status;
  const int64_t page_bytes = backend_->window_page_bytes();
  EXPECT_EQ(response.kv_backend(), v1::KV_BACKEND_VMM);
  EXPECT_EQ(response.window_page_bytes(), page_bytes);
  EXPECT_EQ(response.block_bytes(), page_bytes);
  EXPECT_EQ(response.block_padding_bytes(), page_bytes - 64);
  auto windows = backend_->AllocateWindows(
      {.block_bytes = page_bytes, .num_blocks = 1, .num_places = 1'000'000});
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ(response.max_window_places(), (*windows)->max_mapped_places());
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

// One call with 2^63 - 2 once locked the worker until it was started again.
TEST_F(WorkerServiceTest, AnIncarnationThatNoClockGivesBeginsNoEpoch) {
  const uint64_t now = WallClockNanos();
  for (const uint64_t absurd :
       {now + kNanosPerYear + 3600 * kNanosPerSecond, ~uint64_t{0} / 2 - 1, ~uint64_t{0}}) {
    EXPECT_EQ(ReasonOf(BeginEpoch(absurd, 1)), "PROTOCOL_VIOLATION") << absurd;
  }
  EXPECT_TRUE(BeginEpoch(now, 1).ok());
  EXPECT_TRUE(BeginEpoch(now + kNanosPerYear, 1).ok());
}

struct BadHandshake {
  std::string reason;
  std::string field;
  std::function<void(v1::HandshakeRequest&)> spoil;
};

TEST_F(WorkerServiceTest, HandshakesThatDoNotFitAreRefused) {
  const std::vector<BadHandshake> cases = {
      {"CONFIG_MISMATCH", "protocol_version", [](auto& r) { r.set_protocol_version(1); }},
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

TEST_F(WorkerServiceTest, ARefusedWorkerIsNotReadyUntilASchedulerUsesIt) {
  v1::HandshakeResponse response;
  ASSERT_TRUE(Handshake(GoodHandshake(), &response).ok());
  EXPECT_TRUE(service_.is_ready());
  v1::HandshakeRequest request = GoodHandshake();
  request.set_refusal("CONFIG_MISMATCH model_hash: another model");
  request.set_refused_uuid("another process");
  EXPECT_TRUE(Handshake(request, &response).ok());
  EXPECT_EQ(service_.refusal(), "");

  request.set_refused_uuid(response.worker_uuid());
  EXPECT_TRUE(Handshake(request, &response).ok());

  EXPECT_EQ(service_.refusal(), "CONFIG_MISMATCH model_hash: another model");
  EXPECT_FALSE(service_.is_ready());
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  EXPECT_TRUE(service_.is_ready());
}

TEST_F(WorkerServiceTest, AWorkerThatRefusesASchedulerIsNotReadyEither) {
  v1::HandshakeRequest request = GoodHandshake();
  request.set_tensor_parallel_size(4);
  v1::HandshakeResponse response;

  EXPECT_FALSE(Handshake(request, &response).ok());

  EXPECT_EQ(
      service_.refusal(),
      "CONFIG_MISMATCH tensor_parallel_size: does not match the worker (got 4, the worker has "
      "1)");
}

TEST_F(WorkerServiceTest, ASchedulerThatIsWrongDoesNotHarmAWorkerThatServesAnother) {
  ASSERT_TRUE(BeginEpoch(7, 1).ok());
  v1::HandshakeRequest request = GoodHandshake();
  request.set_tensor_parallel_size(4);
  v1::HandshakeResponse response;

  EXPECT_FALSE(Handshake(request, &response).ok());

  EXPECT_TRUE(service_.is_ready());
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
  EXPECT_EQ(model_.num_runs(), 1);
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

TEST_F(WorkerServiceTest, NextBlocksAreTakenInAnEpochThatBeganWithThem) {
  for (const bool wants_next_blocks : {false, true}) {
    const uint64_t epoch = wants_next_blocks ? 2 : 1;
    ASSERT_TRUE(BeginEpoch(1, epoch, 20, 0, wants_next_blocks).ok());
    StepPlan plan = Prefill(1, epoch, {4, 5, 6});
    plan.slices[0].next_block_id = 7;
    StepsConversation steps(*stub_);

    absl::Status status = steps.Exchange(plan).status();

    EXPECT_EQ(ReasonOf(status), wants_next_blocks ? "" : "BLOCK_RANGE") << status;
  }
}

TEST_F(WorkerServiceTest, APlanWithTheDigestOfAnotherIsNotExecuted) {
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation steps(*stub_);
  steps.Send(Prefill(1, 1, {1, 2}), 12345);

  absl::Status status = steps.Receive().status();

  EXPECT_EQ(ReasonOf(status), "PROTOCOL_VIOLATION") << status;
  EXPECT_EQ(model_.num_runs(), 0);
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
  EXPECT_TRUE(Handshake(GoodHandshake(), &response).ok()) << "a standby is an older one, too";
}

// Two schedulers that started together once ended each other's epochs for ever.
TEST_F(WorkerServiceTest, ANewerSchedulerHasTheWorkerAsSoonAsItAsks) {
  absl::Notification is_running;
  absl::Notification may_end;
  model_.OnRun([&](const Batch& /*batch*/) {
    is_running.Notify();
    may_end.WaitForNotification();
  });
  ASSERT_TRUE(BeginEpoch(1, 1).ok());
  StepsConversation steps(*stub_);
  ASSERT_TRUE(steps.Send(Prefill(1, 1, {1, 2})));
  is_running.WaitForNotification();
  ASSERT_TRUE(steps.Send(Decode(1, 1, 2)));
  while (progress_.Read().num_tasks < 2) {  // the worker has not received the second step yet
    std::this_thread::yield();
  }
  std::thread newer([&] { EXPECT_TRUE(BeginEpoch(2, 1).ok()); });

  // Its epoch cannot begin before the step has ended.
  EXPECT_EQ(AwaitReportOf(2).group_epoch(), 1U);
  EXPECT_EQ(ReasonOf(BeginEpoch(1, 2)), "STALE_SCHEDULER");
  may_end.Notify();

  EXPECT_TRUE(steps.Receive().ok()) << "it was asked for before";
  EXPECT_EQ(ReasonOf(steps.Receive().status()), "STALE_SCHEDULER");
  newer.join();
  EXPECT_EQ(model_.num_runs(), 1);
}

TEST_F(WorkerServiceTest, ReportsSayWhetherTheHolderIsThere) {
  const Instant begin = SteadyNow();
  ASSERT_TRUE(BeginEpoch(7, 1).ok());
  v1::WatchReport report;
  v1::WatchRequest request;
  {
    grpc::ClientContext holder;
    holder.set_deadline(std::chrono::system_clock::now() + kDeadline);
    request.set_scheduler_incarnation(7);
    auto watch = stub_->Watch(&holder, request);
    // The watch itself breaks the silence, which would last since the epoch began.
    int64_t since_begin_ms = 0;
    do {
      ASSERT_TRUE(watch->Read(&report));
      EXPECT_EQ(report.holder_incarnation(), 7U);
      since_begin_ms = (SteadyNow() - begin) / kNanosPerMilli;
    } while (since_begin_ms < 500 || report.holder_silence_ms() > since_begin_ms / 2);
    holder.TryCancel();
    static_cast<void>(watch->Finish());
  }
  grpc::ClientContext other;
  other.set_deadline(std::chrono::system_clock::now() + kDeadline);
  request.set_scheduler_incarnation(8);
  auto watch = stub_->Watch(&other, request);
  do {
    ASSERT_TRUE(watch->Read(&report));
    EXPECT_EQ(report.holder_incarnation(), 7U);
  } while (report.holder_silence_ms() < 500);
  other.TryCancel();
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
  model_.OnRun([&](const Batch&) {
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
  model_.OnRun([&](const Batch& /*batch*/) {
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
  EXPECT_TRUE(older.ok()) << older;
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
    EncodePlan(WithDigest(plan), &request);
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
    v1::SequenceIntroduction& introduction = *request.add_introductions();
    introduction.set_handle(static_cast<uint32_t>(i));
    introduction.mutable_sampling()->set_seed(7);
    request.add_slice_handle(1);
    request.add_releases(1);
  }
  v1::StepRequest back;

  EXPECT_TRUE(ReadMessage(WriteMessage(request), &back).ok());
  EXPECT_EQ(back.introductions_size(), 4096);
}

TEST(MessageReaderTest, WhatWouldTakeManyTimesItsSizeIsRefusedUnparsed) {
  std::string introductions;
  std::string unknown;
  for (int i = 0; i < 1 << 20; ++i) {
    introductions += std::string("\x3A\x00", 2);
    unknown += std::string("\xA2\x06\x00", 3);  // field 100
  }
  const std::string nested = "\x3A\x80\x80\xC0\x01" + unknown;  // 3 MiB in one introduction
  for (const std::string& bytes : {introductions, unknown, nested}) {
    const grpc::Slice slice(bytes);
    v1::StepRequest request;

    EXPECT_EQ(ReasonOf(ReadMessage(grpc::ByteBuffer(&slice, 1), &request)), "MALFORMED_PROTO");
    EXPECT_LT(request.SpaceUsedLong(), 10'000U);
  }
}

}  // namespace
}  // namespace quire
