// Requests that resume behind the tokens that their clients have.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/client_context.h>

#include "common/base/error.h"
#include "scheduler/rpc/served_model.h"
#include "scheduler/rpc/task_pool.h"
#include "tests/scheduler/loop/fake_worker_client.h"
#include "tests/scheduler/rpc/generation_service_fixture.h"

namespace quire {
namespace {

using testing::IsEmpty;

// The request for the rest of a whole answer, behind the first num_tokens tokens of each sequence.
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

// New requests fill the queue to the core. A resumed request still finds a place.
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

}  // namespace
}  // namespace quire
