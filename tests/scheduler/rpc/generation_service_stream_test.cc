// A stream's messages, the memory that it holds, and its end when the client or the group goes.
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include "common/base/error.h"
#include "common/model/sampling_params.h"
#include "common/wire/channel.h"
#include "scheduler/loop/outbox.h"
#include "scheduler/text/stop_matcher.h"
#include "scheduler/text/vocabulary.h"
#include "tests/scheduler/rpc/generation_service_fixture.h"

namespace quire {
namespace {

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

// A sequence that comes at once, as with best_of. It has the longest tokens that a vocabulary may
// have, and everything that a client may ask for.
TEST(FillResponseTest, WhatAnOutboxGivesOutFitsIntoAMessage) {
  constexpr int kNumTokens = 1500;
  constexpr size_t kStartedBytes = 2048;  // more than `started` has
  SequenceUpdate update;
  update.first_position = 1 << 24;
  for (int i = 0; i < kNumTokens; ++i) {
    update.token_ids.push_back(std::numeric_limits<TokenId>::max());
    update.text.append(i % 2 == 0 ? kMaxTokenBytes : 1, 'x');
    update.text_ends.push_back(static_cast<uint32_t>(update.text.size()));
    update.logprobs.push_back(
        {.logprob = -1.0F,
         .top = std::vector<TokenLogprob>(
             kMaxLogprobs, {.token_id = std::numeric_limits<TokenId>::max(), .logprob = -1.0F})});
  }
  update.end = SequenceEnd{.text = std::string(kMaxStopStringBytes + kMaxTokenBytes, 'x'),
                           .matched_stop = std::string(kMaxStopStringBytes, 'x')};
  Outbox outbox({});
  ASSERT_TRUE(outbox.Append(std::move(update), 1));

  int num_tokens = 0;
  while (const auto part = outbox.Take()) {
    v1::GenerateResponse response;
    FillResponse(*part, &response);
    EXPECT_LE(response.ByteSizeLong() + kStartedBytes, size_t{kPublicMaxSendBytes});
    num_tokens += response.chunk().token_ids_size();
  }
  EXPECT_EQ(num_tokens, kNumTokens);
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

// In-process calls do not copy a message's bytes, so the test sees when the server frees them.
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
  // In process a write completes only when it is read, so the outbox fills at once.
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

}  // namespace
}  // namespace quire
