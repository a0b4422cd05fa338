// Text that waits for the pool: its bounds, and its removal when the request has ended meanwhile.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include <grpcpp/client_context.h>
#include <grpcpp/support/server_interceptor.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/wire/grpc_status.h"
#include "scheduler/rpc/generate_request.h"
#include "scheduler/rpc/task_pool.h"
#include "tests/scheduler/rpc/generation_service_fixture.h"

namespace quire {
namespace {

// Holds the only thread of the pool during its lifetime.
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
  // Shared, because the thread wakes up after the object is destroyed.
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

class PinningServiceTest : public GenerationServiceTest {
 protected:
  PinningServiceTest()
      : GenerationServiceTest(/*with_tokenizer=*/true, {.core = {.prefix_caching = true}}) {}
};

// The disk may be slow. Tokenizing must not wait for it, nor saving for tokenizing.
TEST_F(PinningServiceTest, PinnedPrefixesAreSavedWithoutThePool) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "quire_pool_test.pins";
  std::filesystem::remove(path);
  prefix_store_ = PrefixStore::Open(path);
  Restart();
  Run();
  const BusyPool busy(tasks_.get());
  v1::PinPrefixRequest request;
  for (const TokenId id : {1, 2, 3, 4, 5, 6, 7, 8}) {
    request.mutable_token_ids()->add_ids(id);
  }
  v1::PinPrefixResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));

  const grpc::Status status =
      v1::AdminService::NewStub(channel_)->PinPrefix(&context, request, &response);

  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(PrefixStore::Open(path)->prefixes().size(), 1U);
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

// "AB" has no token; only a pool thread that reads the text can find that out.
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

// Records the status of a unary call on the server, also if the client has left.
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

}  // namespace
}  // namespace quire
