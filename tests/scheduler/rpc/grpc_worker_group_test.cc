// The connection to a worker, against a worker service whose failures the test chooses.
#include "scheduler/rpc/grpc_worker_group.h"

#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "proto/v1/worker.grpc.pb.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/wire/channel.h"
#include "common/wire/grpc_status.h"
#include "common/wire/step_codec.h"
#include "common/wire/worker_protocol.h"
#include "tests/support/with_digest.h"

namespace quire {
namespace {

// The fake worker's reaction to the next step; kAnswer by default.
enum class OnStep { kAnswer, kAnswerNonsense, kAnswerAnother, kBreakBefore, kBreakAfter, kRefuse };

class ScriptedWorker final : public v1::WorkerService::Service {
 public:
  void Next(OnStep action) {
    absl::MutexLock lock(&mutex_);
    script_.push_back(action);
  }
  void SetModelHash(uint64_t hash) {
    absl::MutexLock lock(&mutex_);
    model_hash_ = hash;
  }
  // Pretends that another scheduler holds the worker and was last heard of silence_ms ago.
  void BeHeldBy(uint64_t incarnation, int64_t silence_ms) {
    absl::MutexLock lock(&mutex_);
    incarnation_ = incarnation;
    silence_ms_ = silence_ms;
  }
  void SetUuid(const std::string& uuid) {
    absl::MutexLock lock(&mutex_);
    uuid_ = uuid;
  }
  void WantNextBlocks() {
    absl::MutexLock lock(&mutex_);
    wants_next_blocks_ = true;
  }
  // Says these windows in the next handshake, and num_places from the next report on.
  void SetWindows(const v1::HandshakeResponse& hello, int64_t num_places) {
    absl::MutexLock lock(&mutex_);
    windows_ = hello;
    num_places_ = num_places;
  }
  bool are_next_blocks_coming() {
    absl::MutexLock lock(&mutex_);
    return are_next_blocks_coming_;
  }
  void FallSilent() {
    absl::MutexLock lock(&mutex_);
    is_silent_ = true;
  }
  // Makes streams of reports end.
  void End(bool is_ending) { is_ending_ = is_ending; }
  // The bytes of every step that arrived. num_executed counts the steps that were executed, not
  // answered from memory.
  std::vector<std::string> arrived() {
    absl::MutexLock lock(&mutex_);
    return arrived_;
  }
  int num_executed() {
    absl::MutexLock lock(&mutex_);
    return num_executed_;
  }
  int num_epochs() {
    absl::MutexLock lock(&mutex_);
    return num_epochs_;
  }
  int num_handshakes() {
    absl::MutexLock lock(&mutex_);
    return num_handshakes_;
  }

  grpc::Status Handshake(grpc::ServerContext* /*context*/,
                         const v1::HandshakeRequest* /*request*/,
                         v1::HandshakeResponse* response) override {
    absl::MutexLock lock(&mutex_);
    ++num_handshakes_;
    *response = windows_;
    response->set_protocol_version(kWorkerProtocolVersion);
    response->set_config_hash(
        HashOf(ModelConfig{.vocab_size = 100, .max_position_embeddings = 50}));
    response->set_worker_uuid(uuid_);
    response->set_model_hash(model_hash_);
    response->set_num_blocks_max(20);
    response->set_kv_cache_dtype(v1::DTYPE_F32);
    response->set_vocab_size(100);
    response->set_wants_next_blocks(wants_next_blocks_);
    return grpc::Status::OK;
  }
  grpc::Status BeginEpoch(grpc::ServerContext* /*context*/,
                          const v1::BeginEpochRequest* request,
                          v1::BeginEpochResponse* /*response*/) override {
    absl::MutexLock lock(&mutex_);
    if (const auto status = CheckNewest(request->scheduler_incarnation()); !status.ok()) {
      return status;
    }
    ++num_epochs_;
    incarnation_ = request->scheduler_incarnation();
    silence_ms_ = 0;
    are_next_blocks_coming_ = request->wants_next_blocks();
    return grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext* context,
                     const v1::WatchRequest* /*request*/,
                     grpc::ServerWriter<v1::WatchReport>* stream) override {
    v1::WatchReport report;
    report.set_phase(v1::WORKER_PHASE_EXECUTING);
    while (!context->IsCancelled() && !is_ending_) {
      {
        absl::MutexLock lock(&mutex_);
        report.set_worker_uuid(uuid_);
        report.set_holder_incarnation(incarnation_);
        report.set_holder_silence_ms(silence_ms_);
        report.set_num_window_places(num_places_);
        report.set_progress(report.progress() + 1);
        if (!is_silent_ && !stream->Write(report)) {
          break;
        }
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return grpc::Status::OK;
  }
  grpc::Status Steps(grpc::ServerContext* /*context*/,
                     grpc::ServerReaderWriter<v1::StepResponse, v1::StepRequest>* stream) override {
    v1::StepRequest request;
    while (stream->Read(&request)) {
      const OnStep action = Arrive(request);
      if (action == OnStep::kBreakBefore) {
        return {grpc::StatusCode::UNAVAILABLE, "the connection broke"};
      }
      if (action == OnStep::kRefuse) {
        return ToGrpcStatus(
            Error(absl::StatusCode::kOutOfRange, "STEP_GAP", "step_id: not the next"));
      }
      v1::StepResponse response = Execute(request, action == OnStep::kAnswerAnother ? 7 : 0);
      if (action == OnStep::kBreakAfter) {
        return {grpc::StatusCode::UNAVAILABLE, "the connection broke"};
      }
      if (action == OnStep::kAnswerNonsense) {
        response.add_handle(1);  // and no token
      }
      stream->Write(response);
      if (action == OnStep::kAnswerAnother) {
        return {grpc::StatusCode::UNAVAILABLE, "the connection broke"};
      }
    }
    return grpc::Status::OK;
  }

 private:
  grpc::Status CheckNewest(uint64_t incarnation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return incarnation >= incarnation_
               ? grpc::Status::OK
               : ToGrpcStatus(WithMetadata(Error(absl::StatusCode::kFailedPrecondition,
                                                 "STALE_SCHEDULER",
                                                 "scheduler: too old"),
                                           "scheduler_incarnation",
                                           absl::StrCat(incarnation_)));
  }
  OnStep Arrive(const v1::StepRequest& request) {
    absl::MutexLock lock(&mutex_);
    arrived_.push_back(request.SerializeAsString());
    if (script_.empty()) {
      return OnStep::kAnswer;
    }
    const OnStep action = script_.front();
    script_.pop_front();
    return action;
  }
  v1::StepResponse Execute(const v1::StepRequest& request, uint64_t steps_ahead) {
    absl::MutexLock lock(&mutex_);
    if (request.plan_digest() != last_digest_) {
      last_digest_ = request.plan_digest();
      ++num_executed_;
    }
    StepResult result;
    result.header = {.scheduler_incarnation = request.scheduler_incarnation(),
                     .group_epoch = request.group_epoch(),
                     .step_id = request.step_id() + steps_ahead};
    result.plan_digest = request.plan_digest();
    v1::StepResponse response;
    EncodeResult(result, &response);
    return response;
  }

  absl::Mutex mutex_;
  std::deque<OnStep> script_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> arrived_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_digest_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;  // of its holder
  int64_t silence_ms_ ABSL_GUARDED_BY(mutex_) = 0;    // of it
  std::string uuid_ ABSL_GUARDED_BY(mutex_) = "a worker";
  uint64_t model_hash_ ABSL_GUARDED_BY(mutex_) = 1;
  int num_executed_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_epochs_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_handshakes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_silent_ ABSL_GUARDED_BY(mutex_) = false;
  bool wants_next_blocks_ ABSL_GUARDED_BY(mutex_) = false;
  v1::HandshakeResponse windows_ ABSL_GUARDED_BY(mutex_);
  int64_t num_places_ ABSL_GUARDED_BY(mutex_) = 0;
  bool are_next_blocks_coming_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> is_ending_ = false;
};

class GrpcWorkerGroupTest : public testing::Test {
 public:
  GrpcWorkerGroupTest() {
    address_.unix_path = absl::StrCat(testing::TempDir(), "/quire-group-test-", getpid());
  }
  ~GrpcWorkerGroupTest() override {
    client_.reset();
    StopWorker();
    unlink(address_.unix_path.c_str());
  }

 protected:
  void StartWorker() {
    grpc::ServerBuilder builder;
    ConfigureWorkerServer(builder);
    builder.AddListeningPort(address_.ToString(), grpc::InsecureServerCredentials());
    builder.RegisterService(&worker_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    worker_.End(false);
  }
  void StopWorker() {
    if (server_ != nullptr) {
      worker_.End(true);
      server_->Shutdown(std::chrono::system_clock::now());
      server_.reset();
    }
  }
  void StartClient(const GroupTiming& timing = {}) {
    GroupSettings settings;
    settings.model = {.vocab_size = 100, .max_position_embeddings = 50};
    client_ = std::make_unique<GrpcWorkerGroup>(
        std::vector<Address>{address_},
        settings,
        timing,
        &inbox_,
        GroupListener{.on_refusal =
                          [this](const absl::Status& s) {
                            absl::MutexLock lock(&mutex_);
                            refusals_.push_back(ReasonOf(s));
                          },
                      .on_ranks =
                          [this](const std::vector<RankStatus>& ranks) {
                            absl::MutexLock lock(&mutex_);
                            phases_.push_back(ranks.front().phase);
                            kv_memory_ = ranks.front().kv_memory;
                          }});
    client_->Start();
  }
  // Returns the next event. Fails the test if none comes in time.
  template <typename Event>
  Event Await() {
    if (events_.empty()) {
      events_ = inbox_.TakeAll(absl::Seconds(30));
    }
    if (events_.empty() || !std::holds_alternative<Event>(events_.front())) {
      ADD_FAILURE() << "another event, or none: "
                    << (events_.empty() ? -1 : static_cast<int>(events_.front().index()));
      return Event();
    }
    Event event = std::get<Event>(std::move(events_.front()));
    events_.pop_front();
    return event;
  }
  void Send(uint64_t group_epoch, uint64_t step_id) {
    StepPlan plan;
    plan.header = {.scheduler_incarnation = 1, .group_epoch = group_epoch, .step_id = step_id};
    plan.slices.push_back({.handle = 3, .num_tokens = 2, .new_block_ids = {1, 2}});
    client_->SendStep(WithDigest(plan));
  }

  Address address_;
  ScriptedWorker worker_;
  std::unique_ptr<grpc::Server> server_;
  Inbox inbox_;
  std::deque<LoopEvent> events_;
  std::unique_ptr<GrpcWorkerGroup> client_;
  absl::Mutex mutex_;
  std::vector<std::string> refusals_;  // guarded by mutex_
  std::vector<RankPhase> phases_;      // guarded by mutex_
  KvMemory kv_memory_;                 // guarded by mutex_
};

// The group's view of its worker's blocks and places, after the worker has reported them.
class WindowsOfAWorkerTest : public GrpcWorkerGroupTest {
 protected:
  void SayAndAwait(const v1::HandshakeResponse& hello, int64_t num_places, const KvMemory& told) {
    worker_.SetWindows(hello, num_places);
    if (client_ == nullptr) {
      StartWorker();
      StartClient();
      Await<GroupReady>();
    }
    const auto is_told = [&] { return kv_memory_ == told; };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_told), absl::Seconds(20)))
        << kv_memory_.num_places << " places";
  }
};

TEST_F(WindowsOfAWorkerTest, TheyAreToldOnAndPlacesAreFollowed) {
  v1::HandshakeResponse hello;
  hello.set_block_bytes(8192);
  hello.set_kv_backend(v1::KV_BACKEND_VMM);
  hello.set_window_page_bytes(4096);
  hello.set_block_padding_bytes(1000);
  hello.set_max_window_places(0);
  const KvMemory told = {
      .backend = KvBackend::kVmm, .page_bytes = 4096, .padding_bytes = 1000, .max_places = 0};

  SayAndAwait(hello, 0, told);
  KvMemory later = told;
  later.num_places = 12;
  SayAndAwait(hello, 12, later);
}

TEST_F(WindowsOfAWorkerTest, AWorkerThatSaysNothingOrNonsenseIsServedWith) {
  SayAndAwait({}, 3, {.num_places = 3});
  SayAndAwait({}, -3, {});
}

TEST_F(WindowsOfAWorkerTest, ABackendThatIsUnknownHereIsNone) {
  v1::HandshakeResponse hello;
  hello.set_kv_backend(static_cast<v1::KvBackend>(77));

  SayAndAwait(hello, 3, {.num_places = 3});
}

TEST_F(WindowsOfAWorkerTest, AWorkerWhosePagesCannotBeIsRefused) {
  v1::HandshakeResponse hello;
  hello.set_window_page_bytes(4096);  // and a block of none
  worker_.SetWindows(hello, 0);
  StartWorker();
  StartClient();

  const auto is_refused = [this] { return !refusals_.empty(); };
  absl::MutexLock lock(&mutex_);
  ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_refused), absl::Seconds(20)));
  EXPECT_EQ(refusals_.front(), "CONFIG_MISMATCH");
}

TEST_F(WindowsOfAWorkerTest, AWorkerThatIsRefusedAgainIsReportedForAnotherReasonOnly) {
  v1::HandshakeResponse hello;
  hello.set_window_page_bytes(4096);
  worker_.SetWindows(hello, 0);
  StartWorker();
  StartClient();
  const auto await_handshakes = [this](int count) {
    while (worker_.num_handshakes() < count) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  };

  await_handshakes(3);
  hello.set_window_page_bytes(0);
  hello.set_block_padding_bytes(-1);
  worker_.SetWindows(hello, 0);
  await_handshakes(worker_.num_handshakes() + 3);

  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(refusals_, testing::SizeIs(2));
}

TEST_F(GrpcWorkerGroupTest, AStepIsAnsweredUnderTheEpochThatWasBegun) {
  StartWorker();
  StartClient();
  const auto ready = Await<GroupReady>();
  EXPECT_EQ(ready.limits.num_blocks, 20);
  EXPECT_EQ(ready.limits.max_model_len, 50);

  Send(ready.group_epoch, 1);
  Send(ready.group_epoch, Await<StepReply>().result.header.step_id + 1);

  EXPECT_EQ(Await<StepReply>().result.header.step_id, 2U);
}

TEST_F(GrpcWorkerGroupTest, AWorkerThatWantsNextBlocksIsToldThatTheyCome) {
  StartWorker();
  StartClient();
  const auto first = Await<GroupReady>();
  EXPECT_FALSE(first.limits.wants_next_blocks);
  EXPECT_FALSE(worker_.are_next_blocks_coming());
  worker_.WantNextBlocks();
  client_->AbandonEpoch(first.group_epoch);

  EXPECT_TRUE(Await<GroupReady>().limits.wants_next_blocks);
  EXPECT_TRUE(worker_.are_next_blocks_coming());
}

TEST_F(GrpcWorkerGroupTest, WaitsForAWorkerThatStartsLater) {
  StartClient();
  EXPECT_TRUE(inbox_.TakeAll(absl::Milliseconds(50)).empty());

  StartWorker();

  EXPECT_GT(Await<GroupReady>().group_epoch, 0U);
}

TEST_F(GrpcWorkerGroupTest, EachChangeOfARankIsToldOnce) {
  StartWorker();
  StartClient();
  const auto ready = Await<GroupReady>();
  Send(ready.group_epoch, 1);
  Await<StepReply>();
  StopWorker();
  Await<GroupLost>();

  // The group reports the loss before it publishes the list of ranks.
  client_.reset();
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(phases_,
              testing::ElementsAre(RankPhase::kWaiting, RankPhase::kReady, RankPhase::kAway));
}

TEST_F(GrpcWorkerGroupTest, ABrokenStreamIsMendedWithTheSameBytes) {
  for (OnStep breaks : {OnStep::kBreakBefore, OnStep::kBreakAfter, OnStep::kAnswerNonsense}) {
    worker_.Next(breaks);
  }
  StartWorker();
  StartClient();
  const auto ready = Await<GroupReady>();

  Send(ready.group_epoch, 1);

  EXPECT_EQ(Await<StepReply>().result.header.step_id, 1U);
  const std::vector<std::string> arrived = worker_.arrived();
  ASSERT_EQ(arrived.size(), 4U);
  EXPECT_THAT(arrived, testing::Each(arrived.front()));
  EXPECT_EQ(worker_.num_executed(), 1);
  EXPECT_EQ(worker_.num_epochs(), 1);
}

TEST_F(GrpcWorkerGroupTest, ARefusedStepLosesTheGroupAndTheNextEpochBegins) {
  worker_.Next(OnStep::kRefuse);
  StartWorker();
  StartClient();
  const auto first = Await<GroupReady>();

  Send(first.group_epoch, 1);
  const auto lost = Await<GroupLost>();
  const auto second = Await<GroupReady>();

  EXPECT_EQ(lost.group_epoch, first.group_epoch);
  EXPECT_EQ(ReasonOf(lost.status), "STEP_GAP");
  EXPECT_GT(second.group_epoch, first.group_epoch);
  EXPECT_EQ(worker_.arrived().size(), 1U);
  Send(second.group_epoch, 1);
  EXPECT_EQ(Await<StepReply>().result.header.group_epoch, second.group_epoch);
}

// The channel would refuse the plan. That looks like a broken connection, so the step would be sent
// again for ever.
TEST_F(GrpcWorkerGroupTest, APlanThatIsTooLongForAMessageIsAFailureAtTheStep) {
  StartWorker();
  StartClient();
  const uint64_t epoch = Await<GroupReady>().group_epoch;
  StepPlan plan;
  plan.header = {.scheduler_incarnation = 1, .group_epoch = epoch, .step_id = 1};
  plan.introductions.resize(1);
  plan.introductions.front().token_ids.assign(kWorkerMaxMessageBytes / 4, 7);

  client_->SendStep(WithDigest(plan));

  const GroupLost lost = Await<GroupLost>();
  EXPECT_EQ(lost.group_epoch, epoch);
  EXPECT_EQ(ReasonOf(lost.status), "STEP_TOO_LONG");
  EXPECT_TRUE(Await<GroupReady>().after_crash);
  EXPECT_THAT(worker_.arrived(), testing::IsEmpty());
}

TEST_F(GrpcWorkerGroupTest, AWorkerThatDiesIsLostWhenTheLeaseEndsAndFoundWhenItIsBack) {
  StartWorker();
  StartClient({.lease_ns = 200 * kNanosPerMilli});
  const auto first = Await<GroupReady>();

  StopWorker();
  EXPECT_EQ(Await<GroupLost>().group_epoch, first.group_epoch);
  StartWorker();

  EXPECT_GT(Await<GroupReady>().group_epoch, first.group_epoch);
}

TEST_F(GrpcWorkerGroupTest, AnAbandonedEpochIsFollowedByTheNextWithoutALoss) {
  StartWorker();
  StartClient();
  const auto first = Await<GroupReady>();

  client_->AbandonEpoch(first.group_epoch);

  EXPECT_GT(Await<GroupReady>().group_epoch, first.group_epoch);
}

// A stale answer once made the client forget its unanswered step, so that the step was never asked
// again.
TEST_F(GrpcWorkerGroupTest, AnAnswerToAnotherStepIsStaleAndTheStepIsAskedAgain) {
  worker_.Next(OnStep::kAnswerAnother);
  StartWorker();
  StartClient();
  const auto ready = Await<GroupReady>();

  Send(ready.group_epoch, 1);

  Await<StaleReply>();
  EXPECT_EQ(Await<StepReply>().result.header.step_id, 1U);
  EXPECT_EQ(worker_.num_epochs(), 1);
}

TEST_F(GrpcWorkerGroupTest, AWorkerWithoutReportsIsLost) {
  StartWorker();
  StartClient({.silence_ns = 200 * kNanosPerMilli});
  const auto first = Await<GroupReady>();

  worker_.FallSilent();

  const auto lost = Await<GroupLost>();
  EXPECT_EQ(lost.group_epoch, first.group_epoch);
  EXPECT_EQ(ReasonOf(lost.status), "WORKER_SILENT");
}

TEST_F(GrpcWorkerGroupTest, AWorkerWithOtherWeightsIsNotLetIn) {
  StartWorker();
  StartClient();
  const auto first = Await<GroupReady>();
  worker_.SetModelHash(2);

  client_->AbandonEpoch(first.group_epoch);
  EXPECT_TRUE(inbox_.TakeAll(absl::Milliseconds(200)).empty());
  {
    absl::MutexLock lock(&mutex_);
    EXPECT_THAT(refusals_, testing::ElementsAre("CONFIG_MISMATCH"));  // once, though it goes on
  }
  worker_.SetModelHash(1);

  EXPECT_GT(Await<GroupReady>().group_epoch, first.group_epoch);
}

TEST_F(GrpcWorkerGroupTest, ASchedulerThatIsSupersededStandsByAndLeavesTheWorkerAlone) {
  StartWorker();
  StartClient();
  const auto first = Await<GroupReady>();
  const uint64_t newer = first.scheduler_incarnation + 1;

  worker_.BeHeldBy(newer, /*silence_ms=*/0);

  Await<GroupLost>();
  EXPECT_EQ(Await<GroupStandby>().scheduler_incarnation, newer);
  EXPECT_TRUE(inbox_.TakeAll(absl::Milliseconds(200)).empty());
  EXPECT_EQ(worker_.num_epochs(), 1);
}

TEST_F(GrpcWorkerGroupTest, AWorkerThatComesBackAsAnotherProcessHasCrashed) {
  StartWorker();
  StartClient({.lease_ns = 200 * kNanosPerMilli});
  const auto first = Await<GroupReady>();
  EXPECT_FALSE(first.after_crash);
  StopWorker();
  Await<GroupLost>();
  worker_.SetUuid("another worker");
  StartWorker();

  EXPECT_TRUE(Await<GroupReady>().after_crash);
}

TEST_F(GrpcWorkerGroupTest, ASchedulerWhoseClockWentBackStillTakesOver) {
  const uint64_t tomorrow = WallClockNanos() + 24 * 3600 * kNanosPerSecond;
  worker_.BeHeldBy(tomorrow, /*silence_ms=*/3'000);
  StartWorker();
  StartClient();

  EXPECT_GT(Await<GroupReady>().scheduler_incarnation, tomorrow);
}

TEST_F(GrpcWorkerGroupTest, ASchedulerStandsByUntilTheOtherIsGone) {
  worker_.BeHeldBy(5, /*silence_ms=*/0);
  StartWorker();
  StartClient();
  EXPECT_EQ(Await<GroupStandby>().scheduler_incarnation, 5U);
  EXPECT_TRUE(inbox_.TakeAll(absl::Milliseconds(200)).empty());
  EXPECT_EQ(worker_.num_epochs(), 0);

  worker_.BeHeldBy(5, /*silence_ms=*/3'000);

  EXPECT_EQ(Await<GroupStandby>().scheduler_incarnation, 0U);
  Await<GroupReady>();
}

}  // namespace
}  // namespace quire
