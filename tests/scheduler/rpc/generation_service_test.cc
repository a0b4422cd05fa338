// The public service over an in-process channel, with the real loop and a worker that computes
// without a model.
#include "scheduler/rpc/generation_service.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_interceptor.h>

#include "common/base/error.h"
#include "common/wire/grpc_status.h"
#include "scheduler/loop/scheduler_loop.h"
#include "scheduler/rpc/admin_service.h"
#include "scheduler/rpc/wire_message.h"
#include "tests/scheduler/loop/fake_worker_client.h"
#include "tests/scheduler/rpc/tiny_served_model.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr StepLimits kLimits = {.num_blocks = 64,
                                .block_size_tokens = 4,
                                .max_sequences = 32,
                                .max_tokens_per_step = 64,
                                .max_model_len = 100,
                                .vocab_size = kLetterVocabSize};

struct Answer {
  std::vector<v1::GenerateResponse> responses;
  absl::Status status;
  grpc::Status wire_status;
  std::string request_id;  // of the trailing metadata

  std::vector<TokenId> Tokens(int32_t index = 0, int first_position = 0) const {
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
  // Of a sequence, from this position on.
  std::string Text(int32_t index, int position) const {
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
};

class GenerationServiceTest : public testing::Test {
 public:
  explicit GenerationServiceTest(bool with_tokenizer = true)
      : model_(TinyServedModel(with_tokenizer)),
        workers_(&inbox_, kLimits),
        loop_(LoopConfig{},
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
  ~GenerationServiceTest() override {
    inbox_.Post(Stop{});
    if (loop_thread_.joinable()) {
      loop_thread_.join();
    } else {
      loop_.Turn(absl::ZeroDuration());
    }
    server_->Shutdown();
  }

 protected:
  // A server for parts_.
  void Restart() {
    stub_.reset();
    channel_.reset();
    server_.reset();
    service_ = std::make_unique<GenerationService>(parts_);
    admin_service_ = std::make_unique<AdminService>(parts_, /*store=*/nullptr);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    builder.RegisterService(admin_service_.get());
    builder.experimental().SetInterceptorCreators(std::move(interceptors_));
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel(grpc::ChannelArguments());
    stub_ = v1::GenerationService::NewStub(channel_);
  }
  // A group is there, and the loop turns until the end of the test.
  void Run() {
    workers_.RunByItself();
    loop_.Turn(absl::ZeroDuration());
    loop_thread_ = std::thread([this] { loop_.Run(); });
  }
  Answer Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    return Finish(context, *stub_->Generate(&context, request));
  }
  static Answer Finish(grpc::ClientContext& context,
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
  // Bytes of any kind to any method.
  absl::Status CallRaw(const std::string& method, const std::string& bytes) {
    return CallPath("/quire.v1.GenerationService/" + method, bytes);
  }
  absl::Status CallPath(const std::string& path, const std::string& bytes) {
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

  static v1::GenerateRequest Prompt(const std::string& text, int32_t max_tokens) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_sampling()->set_seed(5);
    return request;
  }
  static std::vector<TokenId> Expected(const std::string& text,
                                       int32_t max_tokens,
                                       int32_t index = 0) {
    std::vector<TokenId> tokens = Letters(text);
    for (int32_t i = 0; i < max_tokens; ++i) {
      tokens.push_back(ExpectedToken(tokens, /*seed=*/5, index, kLetterVocabSize));
    }
    return {tokens.begin() + static_cast<ptrdiff_t>(text.size()), tokens.end()};
  }

  ServedModel model_;
  Inbox inbox_;
  FakeWorkerClient workers_;
  ServingState state_;
  LoopObserver observer_;
  SchedulerLoop loop_;
  std::unique_ptr<TaskPool> tasks_;
  LiveRequests live_requests_;
  UnreadAnswers unread_;
  ServiceParts parts_;
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors_;
  std::unique_ptr<GenerationService> service_;
  std::unique_ptr<AdminService> admin_service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  std::thread loop_thread_;
};

TEST_F(GenerationServiceTest, StreamsStartTokensTextAndEnd) {
  Run();

  const Answer answer = Generate(Prompt("hello", 6));

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.Tokens(), Expected("hello", 6));
  const v1::GenerateResponse& first = answer.responses.front();
  ASSERT_TRUE(first.has_started());
  EXPECT_EQ(first.started().num_prompt_tokens(), 5);
  EXPECT_EQ(first.started().seed(), 5U);
  EXPECT_EQ(first.started().request_id(), answer.request_id);
  EXPECT_FALSE(answer.request_id.empty());
  const v1::GenerateResponse& last = answer.responses.back();
  ASSERT_TRUE(last.has_finished());
  EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(last.finished().num_output_tokens(), 6);
}

TEST_F(GenerationServiceTest, EverySequenceOfARequestIsStreamed) {
  Run();
  v1::GenerateRequest request = Prompt("ab", 5);
  request.set_n(3);

  const Answer answer = Generate(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  for (int32_t index = 0; index < 3; ++index) {
    EXPECT_EQ(answer.Tokens(index), Expected("ab", 5, index));
  }
}

TEST_F(GenerationServiceTest, AFreshSeedIsReportedAndRepeatsTheAnswer) {
  Run();
  v1::GenerateRequest request = Prompt("ab", 5);
  request.mutable_sampling()->clear_seed();

  const Answer first = Generate(request);
  request.mutable_sampling()->set_seed(first.responses.front().started().seed());
  const Answer second = Generate(request);

  EXPECT_EQ(first.Tokens(), second.Tokens());
}

TEST_F(GenerationServiceTest, BytesThatAreNoMessageAreAnsweredAsSuchByEveryMethod) {
  Run();

  for (const char* method : {"Generate", "Abort", "Tokenize", "Detokenize", "GetServerInfo"}) {
    const absl::Status status = CallRaw(method, "\xFF\xFF\xFF");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << method << status;
    EXPECT_EQ(ReasonOf(status), "MALFORMED_PROTO") << method;
  }
}

TEST_F(GenerationServiceTest, ARefusalNamesTheFieldAndTheRequest) {
  Run();
  v1::GenerateRequest request = Prompt("ab", 0);
  request.set_request_id("mine");

  const Answer answer = Generate(request);

  EXPECT_EQ(ReasonOf(answer.status), "MAX_TOKENS_RANGE");
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("stopping.max_tokens"));
  EXPECT_EQ(answer.request_id, "mine");
  EXPECT_THAT(answer.responses, IsEmpty());
}

TEST_F(GenerationServiceTest, BeforeTheFirstGroupRequestsAreToldToComeBack) {
  const Answer answer = Generate(Prompt("ab", 3));

  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(answer.status), "LOADING");
  EXPECT_TRUE(RetryDelayOf(answer.wire_status).has_value());
}

TEST_F(GenerationServiceTest, WhileDrainingRequestsAreRefused) {
  Run();
  state_.SetDraining();

  EXPECT_EQ(ReasonOf(Generate(Prompt("ab", 3)).status), "DRAINING");
}

// Bytes on their way to a server in this process are not copied, so it shows when they are freed.
TEST_F(GenerationServiceTest, ACallThatIsUnderWayHoldsNoBytesOfItsMessage) {
  workers_.BeginEpoch();
  loop_.Turn(absl::ZeroDuration());  // ready; the steps stay unanswered
  std::string bytes = Prompt("ab", 3).SerializeAsString();
  absl::Notification is_freed;
  absl::Notification is_over;
  const auto notify = [](void* notification) {
    static_cast<absl::Notification*>(notification)->Notify();
  };
  grpc::ByteBuffer request;
  {
    const grpc::Slice slice(bytes.data(), bytes.size(), notify, &is_freed);
    request = grpc::ByteBuffer(&slice, 1);
  }
  grpc::ByteBuffer response;
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  stub.UnaryCall(&context,
                 "/quire.v1.GenerationService/Generate",
                 {},
                 &request,
                 &response,
                 [&is_over](const grpc::Status& /*status*/) { is_over.Notify(); });
  request.Clear();
  while (state_.Get().num_open_requests == 0) {
    loop_.Turn(absl::Milliseconds(1));
  }

  EXPECT_TRUE(is_freed.WaitForNotificationWithTimeout(absl::Seconds(5)));
  EXPECT_FALSE(is_over.HasBeenNotified());

  context.TryCancel();
  is_over.WaitForNotification();
  while (state_.Get().num_open_requests > 0) {
    loop_.Turn(absl::Milliseconds(1));
  }
}

TEST_F(GenerationServiceTest, ALiveRequestIdIsTakenAndAFreedOneIsNot) {
  workers_.BeginEpoch();
  loop_.Turn(absl::ZeroDuration());  // ready; the steps stay unanswered
  v1::GenerateRequest request = Prompt("ab", 3);
  request.set_request_id("one");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  while (state_.Get().num_open_requests == 0) {
    loop_.Turn(absl::Milliseconds(1));
  }

  EXPECT_EQ(ReasonOf(Generate(request).status), "REQUEST_ID_IN_USE");
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (state_.Get().num_open_requests > 0) {
    loop_.Turn(absl::Milliseconds(1));
  }
  request.mutable_stopping()->set_max_tokens(0);

  EXPECT_EQ(ReasonOf(Generate(request).status), "MAX_TOKENS_RANGE");
}

TEST_F(GenerationServiceTest, AbortEndsTheStreamOfAnother) {
  workers_.BeginEpoch();
  loop_.Turn(absl::ZeroDuration());
  v1::GenerateRequest request = Prompt("ab", 3);
  request.set_request_id("one");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  while (state_.Get().num_open_requests == 0) {
    loop_.Turn(absl::Milliseconds(1));
  }

  grpc::ClientContext abort_context;
  v1::AbortRequest abort;
  abort.set_request_id("one");
  v1::AbortResponse abort_response;
  const grpc::Status aborted = stub_->Abort(&abort_context, abort, &abort_response);
  while (state_.Get().num_open_requests > 0) {
    loop_.Turn(absl::Milliseconds(1));
  }
  const Answer answer = Finish(context, *reader);

  EXPECT_TRUE(aborted.ok());
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ReasonOf(answer.status), "ADMIN");
}

TEST_F(GenerationServiceTest, HoweverOftenAClientAbortsTheLoopHearsItOnce) {
  workers_.BeginEpoch();
  loop_.Turn(absl::ZeroDuration());
  v1::GenerateRequest request = Prompt("ab", 3);
  request.set_request_id("one");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  while (state_.Get().num_open_requests == 0) {
    loop_.Turn(absl::Milliseconds(1));
  }

  v1::AbortRequest abort;
  abort.set_request_id("one");
  for (int i = 0; i < 100; ++i) {
    grpc::ClientContext abort_context;
    v1::AbortResponse abort_response;
    EXPECT_TRUE(stub_->Abort(&abort_context, abort, &abort_response).ok());
  }
  context.TryCancel();
  EXPECT_EQ(Finish(context, *reader).status.code(), absl::StatusCode::kCancelled);
  std::deque<LoopEvent> events = inbox_.TakeAll(absl::ZeroDuration());

  const auto is_abort = [](const LoopEvent& event) {
    return std::holds_alternative<AbortRequest>(event);
  };
  EXPECT_EQ(std::count_if(events.begin(), events.end(), is_abort), 1);
  for (LoopEvent& event : events) {
    inbox_.Post(std::move(event));
  }
}

// What comes of the rest, behind so many tokens of each sequence of a whole answer.
v1::GenerateRequest BehindTokens(v1::GenerateRequest request, const Answer& whole, int num_tokens) {
  const v1::Started& started = whole.responses.front().started();
  v1::Resume& resume = *request.mutable_resume();
  resume.set_seed(started.seed());
  resume.set_determinism_fingerprint(started.determinism_fingerprint());
  for (int32_t index = 0; index < std::max(1, request.n()); ++index) {
    const std::vector<TokenId> tokens = whole.Tokens(index);
    resume.add_sequences()->mutable_token_ids()->Add(tokens.begin(), tokens.begin() + num_tokens);
  }
  return request;
}

TEST_F(GenerationServiceTest, AResumedRequestGetsTheRestWhereverItsStreamBroke) {
  Run();
  v1::GenerateRequest request = Prompt("ab", 9);
  request.set_n(2);
  request.mutable_sampling()->clear_seed();
  const Answer whole = Generate(request);
  EXPECT_EQ(whole.responses.front().started().determinism_fingerprint(),
            DeterminismFingerprint(model_, FakeWorkerClient::kFingerprint));

  for (int num_tokens = 0; num_tokens < 9; ++num_tokens) {
    const Answer rest = Generate(BehindTokens(request, whole, num_tokens));

    ASSERT_TRUE(rest.status.ok()) << rest.status;
    EXPECT_EQ(rest.responses.front().started().seed(), whole.responses.front().started().seed());
    for (int32_t index = 0; index < 2; ++index) {
      const std::vector<TokenId> all = whole.Tokens(index);
      EXPECT_EQ(rest.Tokens(index, num_tokens),
                std::vector<TokenId>(all.begin() + num_tokens, all.end()));
      EXPECT_EQ(whole.Text(index, num_tokens), rest.Text(index, 0)) << num_tokens;
    }
  }
}

TEST_F(GenerationServiceTest, StartedTellsTheLengthAndAResumedRequestKeepsIt) {
  Run();
  v1::GenerateRequest request = Prompt("ab", 9);
  request.mutable_stopping()->clear_max_tokens();
  const Answer whole = Generate(request);
  EXPECT_EQ(whole.responses.front().started().max_tokens(), kLimits.max_model_len - 2);
  EXPECT_EQ(whole.Tokens().size(), 98U);

  v1::GenerateRequest again = BehindTokens(request, whole, 5);
  again.mutable_resume()->set_max_tokens(8);
  const Answer rest = Generate(again);

  ASSERT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_EQ(rest.responses.front().started().max_tokens(), 8);
  EXPECT_EQ(rest.Tokens(0, 5).size(), 3U);
}

TEST_F(GenerationServiceTest, WhoHasAllGetsAnEmptyStream) {
  Run();
  const v1::GenerateRequest request = Prompt("ab", 3);
  v1::GenerateRequest again = BehindTokens(request, Generate(request), 3);
  EXPECT_EQ(ReasonOf(Generate(again).status), "RESUME");
  again.mutable_resume()->mutable_sequences(0)->set_has_ended(true);

  const Answer answer = Generate(again);

  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_THAT(answer.responses, IsEmpty());
}

TEST_F(GenerationServiceTest, AResumedRequestTakesThePlaceOfTheOneThatStillLives) {
  workers_.BeginEpoch();
  loop_.Turn(absl::ZeroDuration());  // ready; the steps stay unanswered
  v1::GenerateRequest request = Prompt("ab", 3);
  request.set_request_id("one");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  while (state_.Get().num_open_requests == 0) {
    loop_.Turn(absl::Milliseconds(1));
  }
  request.mutable_resume();
  grpc::ClientContext second_context;
  auto second = stub_->Generate(&second_context, request);
  bool has_ended = false;
  std::thread waits([&] {
    EXPECT_EQ(ReasonOf(Finish(context, *reader).status), "RESUMED");
    has_ended = true;
  });
  while (state_.Get().num_open_requests != 1 || workers_.num_steps() < 1) {
    loop_.Turn(absl::Milliseconds(1));
  }
  loop_thread_ = std::thread([this] { loop_.Run(); });
  waits.join();

  request.clear_resume();
  EXPECT_EQ(ReasonOf(Generate(request).status), "REQUEST_ID_IN_USE");  // the second one's by now
  second_context.TryCancel();
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(has_ended);
}

// New requests fill the way to the core; a resumed one finds a place all the same.
TEST_F(GenerationServiceTest, AFullPoolHasAPlaceForAResumedRequest) {
  tasks_ =
      std::make_unique<TaskPool>(1, TenantShares::Bounds{.fresh = {1, 1000}, .resumed = {1, 1000}});
  parts_.tasks = tasks_.get();
  Restart();
  Run();
  absl::Notification is_busy;
  absl::Notification may_go_on;
  const absl::Status busy = tasks_->Submit({.run = [&] {
    is_busy.Notify();
    may_go_on.WaitForNotification();
  }});
  ASSERT_TRUE(busy.ok());
  is_busy.WaitForNotification();
  ASSERT_TRUE(tasks_->Submit({.run = [] {}}).ok());

  EXPECT_EQ(ReasonOf(Generate(Prompt("ab", 3)).status), "QUEUE_FULL");
  v1::GenerateRequest resumed = Prompt("ab", 3);
  resumed.mutable_resume();
  Answer answers[2];
  std::once_flag is_one_refused;
  const auto run = [&](Answer& answer) {
    answer = Generate(resumed);
    if (ReasonOf(answer.status) == "QUEUE_FULL") {
      std::call_once(is_one_refused, [&] { may_go_on.Notify(); });
    }
  };
  std::thread first(run, std::ref(answers[0]));
  std::thread second(run, std::ref(answers[1]));
  first.join();
  second.join();

  const Answer& taken = answers[answers[0].status.ok() ? 0 : 1];
  EXPECT_TRUE(taken.status.ok()) << taken.status;
  EXPECT_EQ(taken.Tokens(), Expected("ab", 3));
}

// Holds the only thread of the pool until it goes away.
class BusyPool {
 public:
  explicit BusyPool(TaskPool* tasks) {
    const absl::Status status = tasks->Submit({.run = [state = state_] {
      state->is_busy.Notify();
      state->may_go_on.WaitForNotification();
    }});
    EXPECT_TRUE(status.ok());
    state_->is_busy.WaitForNotification();
  }
  ~BusyPool() { state_->may_go_on.Notify(); }

 private:
  // The thread wakes up after the object has gone.
  struct State {
    absl::Notification is_busy;
    absl::Notification may_go_on;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST_F(GenerationServiceTest, TextThatWaitsToBeTokenizedIsBoundedByItsBytes) {
  tasks_ = std::make_unique<TaskPool>(1, TenantShares::Bounds{.fresh = {100, 10}});
  parts_.tasks = tasks_.get();
  Restart();
  Run();
  v1::TokenizeRequest request;
  request.set_text("abcdefgh");
  v1::TokenizeResponse responses[3];
  grpc::Status statuses[2];
  std::thread first;
  {
    const BusyPool busy(tasks_.get());
    first = std::thread([&] {
      grpc::ClientContext context;
      statuses[0] = stub_->Tokenize(&context, request, &responses[0]);
    });
    while (tasks_->num_bytes() == 0) {
      std::this_thread::yield();
    }
    grpc::ClientContext contexts[2];
    for (grpc::ClientContext& context : contexts) {  // one that waits would wait for us
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    }
    statuses[1] = stub_->Tokenize(&contexts[0], request, &responses[1]);
    const auto reader = stub_->Generate(&contexts[1], Prompt("abc", 3));
    EXPECT_EQ(ReasonOf(Finish(contexts[1], *reader).status), "QUEUE_FULL");
  }
  first.join();
  while (tasks_->num_bytes() > 0) {
    std::this_thread::yield();
  }
  grpc::ClientContext context;

  EXPECT_TRUE(statuses[0].ok()) << statuses[0].error_message();
  EXPECT_EQ(ReasonOf(FromGrpcStatus(statuses[1])), "QUEUE_FULL");
  EXPECT_TRUE(RetryDelayOf(statuses[1]).has_value());
  EXPECT_TRUE(stub_->Tokenize(&context, request, &responses[2]).ok());  // there is room again
}

TEST_F(GenerationServiceTest, OutputThatIsBroughtIsBoundedByItsBytesWhileItWaits) {
  tasks_ = std::make_unique<TaskPool>(1, TenantShares::Bounds{.resumed = {100, 2 + 2 * 4}});
  parts_.tasks = tasks_.get();
  Restart();
  Run();
  const v1::GenerateRequest request = Prompt("ab", 9);  // of two bytes
  const Answer whole = Generate(request);

  EXPECT_TRUE(Generate(BehindTokens(request, whole, 2)).status.ok());
  EXPECT_EQ(ReasonOf(Generate(BehindTokens(request, whole, 3)).status), "QUEUE_FULL");
}

TEST_F(GenerationServiceTest, TokenizeRefusesWhatIsWrongBeforeItWaits) {
  Run();
  const BusyPool busy(tasks_.get());
  v1::TokenizeRequest request;
  request.set_text(std::string(kMaxPromptBytes + 1, 'a'));
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));

  const absl::Status status = FromGrpcStatus(stub_->Tokenize(&context, request, &response));

  EXPECT_EQ(ReasonOf(status), "PROMPT_BYTES");
}

// "AB" has no token, which only who reads it can know.
TEST_F(GenerationServiceTest, TextWhoseDeadlinePassesInTheQueueIsNotRead) {
  Run();
  v1::GenerateRequest request = Prompt("AB", 3);
  request.set_timeout_ms(1);
  auto busy = std::make_unique<BusyPool>(tasks_.get());
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  while (tasks_->num_bytes() == 0) {
    std::this_thread::yield();
  }
  const Instant passed = SteadyNow() + 2 * kNanosPerMilli;
  while (SteadyNow() < passed) {
    std::this_thread::yield();
  }
  busy.reset();

  EXPECT_EQ(ReasonOf(Finish(context, *reader).status), "EXPIRED_QUEUED");
}

TEST_F(GenerationServiceTest, TextWhoseRequestIsAbortedInTheQueueIsNotRead) {
  Run();
  v1::GenerateRequest request = Prompt("AB", 3);
  request.set_request_id("one");
  auto busy = std::make_unique<BusyPool>(tasks_.get());
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  while (tasks_->num_bytes() == 0) {
    std::this_thread::yield();
  }
  grpc::ClientContext abort_context;
  v1::AbortRequest abort;
  abort.set_request_id("one");
  v1::AbortResponse response;
  EXPECT_TRUE(stub_->Abort(&abort_context, abort, &response).ok());
  busy.reset();

  EXPECT_EQ(ReasonOf(Finish(context, *reader).status), "ADMIN");
}

TEST_F(GenerationServiceTest, AResumedRequestThatWaitsForThePoolHasItsId) {
  Run();
  v1::GenerateRequest request = Prompt("AB", 3);
  request.set_request_id("one");
  request.mutable_resume();
  auto busy = std::make_unique<BusyPool>(tasks_.get());
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  while (tasks_->num_bytes() == 0) {
    std::this_thread::yield();
  }

  request.clear_resume();
  EXPECT_EQ(ReasonOf(Generate(request).status), "REQUEST_ID_IN_USE");
  grpc::ClientContext abort_context;
  v1::AbortRequest abort;
  abort.set_request_id("one");
  v1::AbortResponse response;
  EXPECT_TRUE(stub_->Abort(&abort_context, abort, &response).ok());
  busy.reset();

  EXPECT_EQ(ReasonOf(Finish(context, *reader).status), "ADMIN");
}

// What a unary call ended with on this side, also when its client has left.
class StatusRecorder : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* /*info*/) override {
    return new Recorder(this);
  }
  void WaitForClose() { closed_.WaitForNotification(); }  // the client has left, and we know
  grpc::Status WaitForEnd() {
    ended_.WaitForNotification();
    return status_;
  }

 private:
  class Recorder : public grpc::experimental::Interceptor {
   public:
    explicit Recorder(StatusRecorder* owner) : owner_(owner) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      if (methods->QueryInterceptionHookPoint(
              grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
        owner_->status_ = methods->GetSendStatus();
        owner_->ended_.Notify();
      }
      if (methods->QueryInterceptionHookPoint(
              grpc::experimental::InterceptionHookPoints::POST_RECV_CLOSE)) {
        owner_->closed_.Notify();
      }
      methods->Proceed();
    }

   private:
    StatusRecorder* owner_;
  };

  grpc::Status status_;
  absl::Notification ended_;
  absl::Notification closed_;
};

TEST_F(GenerationServiceTest, TextWhoseClientLeavesTheQueueIsNotRead) {
  auto recorder = std::make_unique<StatusRecorder>();
  StatusRecorder* recorded = recorder.get();
  interceptors_.push_back(std::move(recorder));
  Restart();
  auto busy = std::make_unique<BusyPool>(tasks_.get());
  v1::TokenizeRequest request;
  request.set_text("ab");
  grpc::ClientContext context;
  std::thread client([&] {
    v1::TokenizeResponse response;
    EXPECT_EQ(stub_->Tokenize(&context, request, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  while (tasks_->num_bytes() == 0) {
    std::this_thread::yield();
  }
  context.TryCancel();
  client.join();
  recorded->WaitForClose();
  busy.reset();

  EXPECT_EQ(recorded->WaitForEnd().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerationServiceTest, TokensThatAreTooManyToBeSentAreRefusedByTokenize) {
  v1::TokenizeResponse response;
  const auto tokenize = [this, &response](size_t num_bytes) {
    v1::TokenizeRequest request;
    request.set_text(std::string(num_bytes, 'b'));
    grpc::ClientContext context;
    return FromGrpcStatus(stub_->Tokenize(&context, request, &response));
  };

  EXPECT_TRUE(tokenize(kMaxPromptBytes - 100).ok());  // a byte for each of them
  EXPECT_EQ(static_cast<size_t>(response.token_ids_size()), kMaxPromptBytes - 100);
  EXPECT_EQ(ReasonOf(tokenize(kMaxPromptBytes)), "PROMPT_TOO_LONG");
}

// Its token 0 is 4 KiB of text.
std::unique_ptr<Tokenizer> LongTokenTokenizer() {
  auto tokenizer = Tokenizer::FromJson(
      {{"decoder", {{"type", "ByteLevel"}}},
       {"model", {{"vocab", {{std::string(4096, 'a'), 0}}}, {"merges", Json::array()}}}});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST_F(GenerationServiceTest, TextThatIsTooLongToBeSentIsRefusedByDetokenize) {
  model_.tokenizer = LongTokenTokenizer();
  const auto detokenize = [this](int num_ids, v1::DetokenizeResponse* response) {
    v1::DetokenizeRequest request;
    request.mutable_token_ids()->Resize(num_ids, 0);
    grpc::ClientContext context;
    return FromGrpcStatus(stub_->Detokenize(&context, request, response));
  };
  v1::DetokenizeResponse response;

  EXPECT_TRUE(detokenize(255, &response).ok());
  EXPECT_EQ(response.text().size(), size_t{255} * 4096);
  EXPECT_EQ(ReasonOf(detokenize(256, &response)), "TEXT_BYTES");
  EXPECT_EQ(ReasonOf(detokenize(1 << 18, &response)), "TEXT_BYTES");
}

// A call whose answer is not read.
class UnreadCall {
 public:
  UnreadCall(const std::shared_ptr<grpc::Channel>& channel,
             const std::string& method,
             const grpc::ByteBuffer& request)
      : stub_(channel),
        stream_(stub_.PrepareCall(&context_, "/quire.v1.GenerationService/" + method, &queue_)) {
    stream_->StartCall(this);
    Wait();
    stream_->WriteLast(request, grpc::WriteOptions(), this);
    Wait();
  }
  ~UnreadCall() { context_.TryCancel(); }

  // After all, one answer.
  void Read() {
    grpc::ByteBuffer answer;
    stream_->Read(&answer, this);
    Wait();
  }
  grpc::Status Finish() {
    grpc::Status status;
    stream_->Finish(&status, this);
    Wait();
    return status;
  }

 private:
  void Wait() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

class UnreadAnswersTest : public GenerationServiceTest {
 protected:
  static constexpr int kNumIds = 255;
  static constexpr int64_t kNumBytes = int64_t{kNumIds} * 4096;  // and a few for the field

  UnreadAnswersTest() {
    model_.tokenizer = LongTokenTokenizer();
    request_.mutable_token_ids()->Resize(kNumIds, 0);
  }

  // An answer of almost 1 MiB that is there, and not read.
  std::unique_ptr<UnreadCall> Hold() {
    const int64_t num_before = unread_.num_bytes();
    auto call = std::make_unique<UnreadCall>(channel_, "Detokenize", SerializeMessage(request_));
    while (unread_.num_bytes() <= num_before) {
      std::this_thread::yield();
    }
    absl::Notification is_begun;  // behind the end of the task that made the answer
    EXPECT_TRUE(tasks_->Submit({.run = [&is_begun] { is_begun.Notify(); }}).ok());
    is_begun.WaitForNotification();
    return call;
  }

  absl::Status Detokenize() {
    v1::DetokenizeResponse response;
    grpc::ClientContext context;
    return FromGrpcStatus(stub_->Detokenize(&context, request_, &response));
  }

  v1::DetokenizeRequest request_;
};

TEST_F(UnreadAnswersTest, WhoHasWaitedLongestEndsWhereThereAreTooMany) {
  constexpr int64_t kNumHeld = UnreadAnswers::kMaxBytes / (kNumBytes + 16);
  std::deque<std::unique_ptr<UnreadCall>> calls;
  for (int64_t i = 0; i < kNumHeld; ++i) {
    calls.push_back(Hold());
  }
  EXPECT_GE(unread_.num_bytes(), kNumHeld * kNumBytes);

  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Detokenize().ok());  // who reads is answered
    EXPECT_EQ(calls.front()->Finish().error_code(), grpc::StatusCode::CANCELLED);
    calls.pop_front();
    while (unread_.num_bytes() >= kNumHeld * kNumBytes) {
      std::this_thread::yield();
    }
    calls.push_back(Hold());
  }
  EXPECT_LE(unread_.num_bytes(), UnreadAnswers::kMaxBytes + kNumBytes + 16);
  calls[0]->Read();
  EXPECT_TRUE(calls[0]->Finish().ok());
}

TEST_F(UnreadAnswersTest, WhoIsNotReadForAMinuteEnds) {
  const std::unique_ptr<UnreadCall> read = Hold();
  const std::unique_ptr<UnreadCall> unread = Hold();
  const Instant now = SteadyNow();

  unread_.CancelOld(now);
  read->Read();
  EXPECT_TRUE(read->Finish().ok());
  unread_.CancelOld(now + UnreadAnswers::kLongestNs);
  EXPECT_EQ(unread->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (unread_.num_bytes() > 0) {
    std::this_thread::yield();
  }
}

// What the library has not let go of yet, although its calls are cancelled.
TEST(UnreadBytesTest, AtTwiceAsManyNoMoreAreTaken) {
  v1::DetokenizeResponse answer;
  answer.set_text(std::string(1 << 20, 'a'));
  std::vector<grpc::ByteBuffer> held;
  auto unread = std::make_unique<UnreadAnswers>();
  for (absl::StatusOr<grpc::ByteBuffer> bytes = unread->Take(answer); bytes.ok();
       bytes = unread->Take(answer)) {
    held.push_back(*std::move(bytes));
  }
  EXPECT_EQ(held.size(), 127U);
  EXPECT_EQ(ReasonOf(unread->Take(answer).status()), "UNREAD_ANSWERS");
  EXPECT_TRUE(unread->Take(v1::AbortResponse()).ok());  // small ones are

  held.pop_back();
  EXPECT_TRUE(unread->Take(answer).ok());
  unread.reset();
  held.clear();  // the bytes outlive who counts them
}

TEST_F(GenerationServiceTest, AbortOfAnUnknownRequestIsNotFound) {
  grpc::ClientContext context;
  v1::AbortRequest abort;
  abort.set_request_id("nobody");
  v1::AbortResponse response;

  const absl::Status status = FromGrpcStatus(stub_->Abort(&context, abort, &response));

  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
}

TEST_F(GenerationServiceTest, ATimeoutEndsARequestThatWaits) {
  workers_.BeginEpoch();
  loop_.Turn(absl::ZeroDuration());
  v1::GenerateRequest request = Prompt("ab", 3);
  request.set_timeout_ms(1);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, request);
  std::atomic<bool> is_done = false;
  std::thread turner([this, &is_done] {
    while (!is_done) {
      loop_.Turn(absl::Milliseconds(1));
      if (workers_.unanswered().has_value()) {
        workers_.LoseGroup();  // the request was quicker than its timeout, and now it waits
      }
    }
  });

  const Answer answer = Finish(context, *reader);
  is_done = true;
  turner.join();

  EXPECT_EQ(answer.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(ReasonOf(answer.status), HasSubstr("EXPIRED"));
}

TEST_F(GenerationServiceTest, AClientThatGoesAwayFreesWhatItHeld) {
  Run();
  for (int i = 0; i < 20; ++i) {
    v1::GenerateRequest request = Prompt("ab", 90);
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    for (int read = 0; read < i % 4; ++read) {
      reader->Read(&response);
    }
    context.TryCancel();
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED);
  }

  EXPECT_TRUE(Generate(Prompt("ab", 3)).status.ok());
  while (state_.Get().num_open_requests > 0) {
    std::this_thread::yield();
  }
  EXPECT_EQ(state_.Get().stats.num_free_blocks, kLimits.num_blocks - 1);
}

TEST_F(GenerationServiceTest, AClientThatDoesNotReadIsCutAndNobodyElse) {
  // In process a write goes through when it is read: the outbox fills at once.
  parts_.outbox_limits.max_tokens = 8;
  Restart();
  Run();
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, Prompt("hello", 90));
  while (state_.Get().stats.num_tokens_committed == 0 || state_.Get().num_open_requests > 0) {
    std::this_thread::yield();
  }

  const Answer other = Generate(Prompt("ab", 5));
  const Answer cut = Finish(context, *reader);

  EXPECT_TRUE(other.status.ok()) << other.status;
  EXPECT_EQ(cut.status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(cut.status), "SLOW_CONSUMER");
  EXPECT_LT(cut.Tokens().size(), 90U);
  while (state_.Get().num_open_requests > 0) {  // figures come behind the ends of streams
    std::this_thread::yield();
  }
  EXPECT_EQ(state_.Get().stats.num_free_blocks, kLimits.num_blocks - 1);
}

TEST_F(GenerationServiceTest, StreamsGoOnWhenTheGroupIsLost) {
  Run();
  for (int i = 0; i < 10; ++i) {
    workers_.LoseGroupSoon();
    const Answer answer = Generate(Prompt("hello", 8));

    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.Tokens(), Expected("hello", 8));
  }
}

TEST_F(GenerationServiceTest, TokenizeAndDetokenizeAreInverse) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hi you");
  v1::TokenizeResponse tokens;
  grpc::ClientContext first;
  ASSERT_TRUE(stub_->Tokenize(&first, tokenize, &tokens).ok());
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext second;
  ASSERT_TRUE(stub_->Detokenize(&second, detokenize, &text).ok());

  EXPECT_THAT(tokens.token_ids(), ElementsAre(7, 8, kSpaceId, 24, 14, 20));
  EXPECT_EQ(text.text(), "hi you");
}

TEST_F(GenerationServiceTest, TokenizeAndDetokenizeRefuseWhatIsNoText) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("\x80");
  v1::TokenizeResponse tokens;
  grpc::ClientContext first;
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(kTinyVocabSize);
  v1::DetokenizeResponse text;
  grpc::ClientContext second;

  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->Tokenize(&first, tokenize, &tokens))), "INVALID_UTF8");
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->Detokenize(&second, detokenize, &text))),
            "TOKEN_ID_RANGE");
}

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

class ServiceWithoutTokenizerTest : public GenerationServiceTest {
 protected:
  ServiceWithoutTokenizerTest() : GenerationServiceTest(/*with_tokenizer=*/false) {}
};

TEST_F(ServiceWithoutTokenizerTest, TokenIdsAreServedAndTextIsNot) {
  Run();
  v1::GenerateRequest request = Prompt("", 4);
  request.clear_text();
  for (TokenId id : Letters("hello")) {
    request.mutable_token_ids()->add_ids(id);
  }
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;

  const Answer answer = Generate(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.Tokens(), Expected("hello", 4));
  EXPECT_EQ(ReasonOf(Generate(Prompt("hello", 4)).status), "NO_TOKENIZER");
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stub_->Tokenize(&context, tokenize, &tokens))), "NO_TOKENIZER");
}

TEST_F(GenerationServiceTest, LoadTellsWhereRequestsAndBlocksAre) {
  Run();
  Generate(Prompt("hello", 4));
  state_.SetRanks({{.address = "unix:/a"}, {.address = "unix:/b", .phase = RankPhase::kLoading}});
  const auto admin = v1::AdminService::NewStub(channel_);
  v1::GetLoadResponse load;

  // A client has its last message before the loop says what is left.
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
