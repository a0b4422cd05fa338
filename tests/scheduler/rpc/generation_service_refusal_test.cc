// Calls that are refused, aborted or out of time, and how long a request has its id.
#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/client_context.h>

#include "common/base/error.h"
#include "common/wire/grpc_status.h"
#include "scheduler/loop/inbox.h"
#include "tests/scheduler/rpc/generation_service_fixture.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

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
  EXPECT_EQ(ReasonOf(CallRaw("Tokenize", "")), "DRAINING");
  EXPECT_EQ(ReasonOf(CallRaw("Detokenize", "")), "DRAINING");
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

}  // namespace
}  // namespace quire
