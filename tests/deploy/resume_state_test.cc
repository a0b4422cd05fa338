#include "deploy/clients/cpp/resume_state.h"

#include <chrono>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/deploy/generate_messages.h"

namespace quire {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

constexpr milliseconds kNoTime(0);

v1::GenerateRequest RequestOf(int64_t timeout_ms) {
  v1::GenerateRequest request;
  request.set_text("abc");
  request.set_timeout_ms(timeout_ms);
  return request;
}

// Gives a message to the attempt.
bool Take(ResumeState& state, v1::GenerateResponse response) { return state.Take(&response); }

TEST(ResumeStateTest, TheFirstAttemptSendsTheRequestUnchanged) {
  const v1::GenerateRequest request = RequestOf(-5);
  ResumeState state(request, {}, 1);

  EXPECT_TRUE(state.BeginAttempt(seconds(1)).ok());

  EXPECT_EQ(state.request().SerializeAsString(), request.SerializeAsString());
}

TEST(ResumeStateTest, TheNextAttemptSendsTheAnswerSoFarAndTheTimeLeft) {
  ResumeState state(RequestOf(10'000), {}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
  ASSERT_TRUE(Take(state, Started()));
  ASSERT_TRUE(Take(state, PromptScores(1, 2)));
  ASSERT_TRUE(Take(state, PromptScores(3, 1)));
  ASSERT_TRUE(Take(state, Tokens(0, {10, 11})));
  ASSERT_FALSE(state.EndAttempt(seconds(2), Unavailable()).end.has_value());

  ASSERT_TRUE(state.BeginAttempt(milliseconds(3001)).ok());

  EXPECT_EQ(state.request().text(), "abc");
  EXPECT_EQ(state.request().timeout_ms(), 6999);
  EXPECT_EQ(state.request().request_id(), "made-by-the-server");
  EXPECT_EQ(state.request().resume().seed(), 7U);
  EXPECT_EQ(state.request().resume().num_prompt_logprobs(), 3);
  ASSERT_EQ(state.request().resume().sequences_size(), 1);
  EXPECT_THAT(state.request().resume().sequences(0).token_ids(), ElementsAre(10, 11));
}

TEST(ResumeStateTest, EachAttemptGoesToTheNextServer) {
  ResumeState state({}, {}, 3);
  for (const size_t server : {0U, 1U, 2U, 0U}) {
    ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
    EXPECT_EQ(state.server(), server);
    state.EndAttempt(kNoTime, Unavailable());
  }
}

TEST(ResumeStateTest, TheWaitIsThatOfThePolicy) {
  ResumeState state({}, {.first_wait = seconds(8), .max_wait = seconds(8)}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());

  const ResumeState::Next next = state.EndAttempt(kNoTime, Unavailable());

  EXPECT_FALSE(next.end.has_value());
  EXPECT_GE(next.wait, seconds(4));
  EXPECT_LE(next.wait, seconds(8));
}

TEST(ResumeStateTest, TheWaitEndsAtTheDeadlineAndSoDoesTheRequest) {
  const RetryPolicy policy = {.first_wait = seconds(8), .max_wait = seconds(8)};
  ResumeState state(RequestOf(10'000), policy, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());

  EXPECT_EQ(state.EndAttempt(seconds(9), Unavailable()).wait, seconds(1));
  EXPECT_EQ(state.BeginAttempt(seconds(10)).error_code(), StatusCode::DEADLINE_EXCEEDED);
}

TEST(ResumeStateTest, AStreamThatEndsAfterTheDeadlineIsNotWaitedFor) {
  ResumeState state(RequestOf(10'000), {}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());

  EXPECT_EQ(state.EndAttempt(seconds(11), Unavailable()).wait, kNoTime);
}

TEST(ResumeStateTest, AnAttemptWithoutAMessageCountsAsUnanswered) {
  ResumeState state({}, {.max_unanswered = seconds(5)}, 1);
  ASSERT_TRUE(state.BeginAttempt(seconds(100)).ok());

  const ResumeState::Next next = state.EndAttempt(seconds(106), Unavailable());

  ASSERT_TRUE(next.end.has_value());
  EXPECT_EQ(next.end.value().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(next.end.value().error_message(), "gone (given up after 6 s without an answer)");
}

TEST(ResumeStateTest, AnAttemptWithAMessageDoesNot) {
  ResumeState state({}, {.max_unanswered = seconds(5)}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
  ASSERT_TRUE(Take(state, Started()));

  EXPECT_FALSE(state.EndAttempt(seconds(6), Unavailable()).end.has_value());

  // The second `started` brings nothing new.
  ASSERT_TRUE(state.BeginAttempt(seconds(10)).ok());
  ASSERT_TRUE(Take(state, Started()));
  EXPECT_TRUE(state.EndAttempt(seconds(16), Unavailable()).end.has_value());
}

TEST(ResumeStateTest, OnlyTheFirstStartedIsShown) {
  ResumeState state({}, {}, 1);
  v1::GenerateResponse first = Started();
  v1::GenerateResponse second = Started();

  EXPECT_TRUE(state.Take(&first));
  EXPECT_TRUE(state.Take(&second));

  EXPECT_TRUE(first.has_started());
  EXPECT_FALSE(second.has_started());
}

TEST(ResumeStateTest, AWrongMessageEndsTheRequestWhateverTheStatusOfTheStream) {
  for (const v1::GenerateResponse& wrong : {Tokens(1, {11}), PromptScores(2, 1)}) {
    ResumeState state({}, {}, 1);
    ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
    ASSERT_TRUE(Take(state, Started()));

    EXPECT_FALSE(Take(state, wrong));

    EXPECT_EQ(state.EndAttempt(kNoTime, Unavailable()).end.value().error_code(),
              StatusCode::DATA_LOSS);
  }
}

TEST(ResumeStateTest, ACompleteAnswerEndsTheRequestWhateverTheStatusOfTheStream) {
  v1::GenerateRequest request;
  request.set_n(2);
  ResumeState state(request, {}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
  ASSERT_TRUE(Take(state, Started()));
  ASSERT_TRUE(Take(state, Finished(0, 1)));
  ASSERT_FALSE(state.EndAttempt(kNoTime, Unavailable()).end.has_value());
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
  ASSERT_TRUE(Take(state, Finished(0, 0)));

  EXPECT_TRUE(state.EndAttempt(kNoTime, Unavailable()).end.value().ok());
}

TEST(ResumeStateTest, AStreamThatEndsBeforeTheAnswerDoesIsDataLoss) {
  ResumeState state({}, {}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
  ASSERT_TRUE(Take(state, Started()));

  EXPECT_EQ(state.EndAttempt(kNoTime, grpc::Status::OK).end.value().error_code(),
            StatusCode::DATA_LOSS);
}

TEST(ResumeStateTest, ARefusalEndsTheRequest) {
  ResumeState state({}, {}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());

  EXPECT_EQ(state.EndAttempt(kNoTime, Full()).end.value().error_message(), "full");
}

TEST(ResumeStateTest, AFullServerIsGivenTheTimeThatItAsksForOnceTheRequestIsResumed) {
  ResumeState state({}, {}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
  ASSERT_FALSE(state.EndAttempt(kNoTime, Unavailable()).end.has_value());
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());

  EXPECT_EQ(state.EndAttempt(kNoTime, Full(seconds(77))).wait, seconds(77));
}

TEST(ResumeStateTest, ACancelledRequestShowsNoMessageAndBeginsNoAttempt) {
  ResumeState reading({}, {}, 1);
  ASSERT_TRUE(reading.BeginAttempt(kNoTime).ok());
  ResumeState waiting = reading;
  ASSERT_FALSE(waiting.EndAttempt(kNoTime, Unavailable()).end.has_value());

  reading.Cancel();
  waiting.Cancel();

  EXPECT_FALSE(Take(reading, Started()));
  EXPECT_EQ(reading.EndAttempt(kNoTime, Unavailable()).end.value().error_code(),
            StatusCode::CANCELLED);
  EXPECT_EQ(waiting.BeginAttempt(kNoTime).error_code(), StatusCode::CANCELLED);
}

TEST(ResumeStateTest, ACancelDoesNotHideALossOfData) {
  ResumeState state({}, {}, 1);
  ASSERT_TRUE(state.BeginAttempt(kNoTime).ok());
  ASSERT_FALSE(Take(state, Tokens(0, {10})));

  state.Cancel();

  EXPECT_EQ(state.EndAttempt(kNoTime, Unavailable()).end.value().error_code(),
            StatusCode::DATA_LOSS);
}

TEST(PrepareCallTest, AKeyThatGrpcCannotSendIsRefused) {
  for (const std::string& key : {std::string("a\nb"),
                                 std::string("a b"),
                                 std::string("\x7f"),
                                 std::string("k\xc3\xa9y"),
                                 std::string("a\0b", 3),
                                 std::string("key\r")}) {
    grpc::ClientContext context;
    const grpc::Status status = PrepareCall({}, key, &context);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status.error_message(), "api_key: must be visible ASCII");
  }
}

TEST(PrepareCallTest, VisibleKeysAndNoKeyAreAccepted) {
  for (const std::string key : {"", "!", "~", "qk_0aZ-._~!"}) {
    grpc::ClientContext context;
    EXPECT_TRUE(PrepareCall({}, key, &context).ok()) << key;
  }
}

TEST(PrepareCallTest, TheCallOutlivesTheTimeoutByASecond) {
  grpc::ClientContext context;
  const auto before = std::chrono::system_clock::now();

  ASSERT_TRUE(PrepareCall(RequestOf(5000), "", &context).ok());

  EXPECT_GE(context.deadline(), before + seconds(6));
  EXPECT_LE(context.deadline(), std::chrono::system_clock::now() + seconds(6));
}

}  // namespace
}  // namespace quire
