#include "deploy/clients/cpp/resuming_client.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/wire/channel.h"
#include "tests/deploy/collector.h"
#include "tests/deploy/generate_messages.h"
#include "tests/deploy/scripted_server.h"

namespace quire {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::MatchesRegex;
using testing::StartsWith;
using v1::GenerateRequest;
using v1::GenerateResponse;

enum class Kind { kBlocking, kAsync };

std::string NameOf(Kind kind) { return kind == Kind::kAsync ? "Async" : "Blocking"; }

// Each scenario runs with ResumingClient and with AsyncResumingClient.
class ClientTest : public testing::Test {
 protected:
  virtual Kind kind() const = 0;

  grpc::Status Run(const std::vector<ScriptedServer*>& servers,
                   const GenerateRequest& request = {}) {
    const auto take = [this](const GenerateResponse& r) {
      num_started_ += r.has_started() ? 1 : 0;
      tokens_.insert(tokens_.end(), r.chunk().token_ids().begin(), r.chunk().token_ids().end());
      return tokens_.size() < max_tokens_;
    };
    if (kind() == Kind::kBlocking) {
      std::vector<std::shared_ptr<grpc::Channel>> channels(servers.size());
      std::transform(servers.begin(), servers.end(), channels.begin(), [](ScriptedServer* server) {
        return server->Channel();
      });
      return ResumingClient(channels, policy_, api_key_).Generate(request, take);
    }
    std::vector<AsyncResumingClient::Dial> dials(servers.size());
    std::transform(servers.begin(), servers.end(), dials.begin(), [](ScriptedServer* server) {
      return DialOf(*server);
    });
    AsyncResumingClient client(dials, policy_);
    const auto collector = Collect(
        client, request, api_key_, [&](AsyncResumingClient::Stream& stream, const auto& response) {
          take(response) ? stream.Next() : stream.Cancel();
        });
    collector->stream->Next();
    return collector->End();
  }

  RetryPolicy policy_ = kFast;
  std::string api_key_;
  size_t max_tokens_ = 1000;
  int num_started_ = 0;
  std::vector<int32_t> tokens_;
};

class ResumingClientTest : public ClientTest, public testing::WithParamInterface<Kind> {
 protected:
  Kind kind() const override { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Both,
                         ResumingClientTest,
                         testing::Values(Kind::kBlocking, Kind::kAsync),
                         [](const auto& param) { return NameOf(param.param); });

TEST_P(ResumingClientTest, ABrokenStreamGoesOnAtTheNextServerAsOne) {
  ScriptedServer first({{{Started(), Tokens(0, {10, 11})}, Unavailable()},
                        {{Started(), Tokens(3, {13}), Finished(4)}, grpc::Status::OK}});
  ScriptedServer second({{{Started(), Tokens(2, {12})}, {StatusCode::INTERNAL, "torn"}}});
  GenerateRequest request;
  request.set_text("abc");

  const grpc::Status status = Run({&first, &second}, request);

  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(tokens_, ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(num_started_, 1);
  EXPECT_FALSE(first.requests()[0].has_resume());
  const GenerateRequest resumed = second.requests()[0];
  EXPECT_EQ(resumed.text(), "abc");
  EXPECT_EQ(resumed.request_id(), "made-by-the-server");
  EXPECT_EQ(resumed.resume().seed(), 7U);
  EXPECT_EQ(resumed.resume().determinism_fingerprint(), kFingerprint);
  EXPECT_EQ(resumed.resume().max_tokens(), 500);
  ASSERT_EQ(resumed.resume().sequences_size(), 1);
  EXPECT_THAT(resumed.resume().sequences(0).token_ids(), ElementsAre(10, 11));
}

TEST_P(ResumingClientTest, EverySequenceGoesOnFromItsOwnPlace) {
  ScriptedServer server(
      {{{Started(), Tokens(0, {10}, 1), Tokens(0, {20}, 0), Finished(1, 1)}, Unavailable()},
       {{Started(), Tokens(1, {21}, 0), Finished(2, 0)}, grpc::Status::OK}});
  GenerateRequest request;
  request.set_n(2);

  EXPECT_TRUE(Run({&server}, request).ok());

  const v1::Resume resume = server.requests()[1].resume();
  ASSERT_EQ(resume.sequences_size(), 2);
  EXPECT_THAT(resume.sequences(0).token_ids(), ElementsAre(20));
  EXPECT_FALSE(resume.sequences(0).has_ended());
  EXPECT_TRUE(resume.sequences(1).has_ended());
  EXPECT_THAT(tokens_, ElementsAre(10, 20, 21));
}

TEST_P(ResumingClientTest, BeforeItsFirstMessageARequestIsResumedFromNothing) {
  ScriptedServer server({{{}, Unavailable()}, {{Started(), Finished(0)}, grpc::Status::OK}});
  GenerateRequest request;
  request.set_request_id("mine");

  EXPECT_TRUE(Run({&server}, request).ok());

  EXPECT_TRUE(server.requests()[1].has_resume());
  EXPECT_EQ(server.requests()[1].resume().sequences_size(), 0);
  EXPECT_EQ(server.requests()[1].request_id(), "mine");
  EXPECT_FALSE(server.requests()[1].resume().has_max_tokens());
}

TEST_P(ResumingClientTest, AServerThatClosesCancelsAndTheStreamGoesOn) {
  ScriptedServer server({{{Started(), Tokens(0, {10})}, {StatusCode::CANCELLED, ""}},
                         {{}, {StatusCode::CANCELLED, ""}},
                         {{Started(), Tokens(1, {11}), Finished(2)}, grpc::Status::OK}});

  EXPECT_TRUE(Run({&server}).ok());

  EXPECT_THAT(tokens_, ElementsAre(10, 11));
}

TEST_P(ResumingClientTest, ALengthThatWasNotToldIsNotSentBack) {
  GenerateResponse started = Started();
  started.mutable_started()->clear_max_tokens();
  ScriptedServer server(
      {{{started, Tokens(0, {10})}, Unavailable()}, {{Started(), Finished(1)}, grpc::Status::OK}});

  EXPECT_TRUE(Run({&server}).ok());
  EXPECT_FALSE(server.requests()[1].resume().has_max_tokens());
}

TEST_P(ResumingClientTest, ARefusalIsHandedOnAtOnce) {
  const grpc::Status refusals[] = {{StatusCode::RESOURCE_EXHAUSTED, "full"},
                                   Full(),
                                   TooSmall(),
                                   {StatusCode::FAILED_PRECONDITION, "fingerprint"},
                                   {StatusCode::ABORTED, "slow"},
                                   {StatusCode::CANCELLED, "by an operator", "has details"},
                                   {StatusCode::INTERNAL, "not finite", "has details"},
                                   {StatusCode::UNKNOWN, "of a proxy", "has details"}};
  for (const grpc::Status& refusal : refusals) {
    ScriptedServer server({{{}, refusal}});

    EXPECT_EQ(Run({&server}).error_message(), refusal.error_message());
    EXPECT_EQ(server.requests().size(), 1U);
  }
}

TEST_P(ResumingClientTest, AFullServerIsAskedAgainOnceTheRequestIsResumed) {
  ScriptedServer server({{{Started(), Tokens(0, {10})}, Unavailable()},
                         {{}, Full()},
                         {{}, Full()},
                         {{Started(), Tokens(1, {11}), Finished(2)}, grpc::Status::OK}});
  ScriptedServer never_started(
      {{{}, Unavailable()}, {{}, Full()}, {{Started(), Finished(0)}, grpc::Status::OK}});

  EXPECT_TRUE(Run({&server}).ok());
  EXPECT_THAT(tokens_, ElementsAre(10, 11));
  EXPECT_TRUE(Run({&never_started}).ok());
}

TEST_P(ResumingClientTest, WhatAResumedRequestIsRefusedForGoodIsHandedOnAtOnce) {
  const grpc::Status refusals[] = {TooSmall(),
                                   {StatusCode::RESOURCE_EXHAUSTED, "no details"},
                                   {StatusCode::RESOURCE_EXHAUSTED, "bad details", "\xff\xff"},
                                   {StatusCode::FAILED_PRECONDITION, "context", "has details"},
                                   {StatusCode::INVALID_ARGUMENT, "resume", "has details"}};
  for (const grpc::Status& refusal : refusals) {
    ScriptedServer server({{{Started(), Tokens(0, {10})}, Unavailable()}, {{}, refusal}});

    EXPECT_EQ(Run({&server}).error_message(), refusal.error_message());
    EXPECT_EQ(server.requests().size(), 2U);
  }
}

TEST_P(ResumingClientTest, WaitingForAPlaceIsBounded) {
  // A wait is 1 ms, now and then less or 2.
  ScriptedServer server(std::deque<ScriptedServer::Call>(1000, {{}, Full()}));
  GenerateRequest request;
  request.mutable_resume();

  EXPECT_THAT(Run({&server}, request).error_message(),
              MatchesRegex("full \\(given up after waiting for full servers for 0 s\\)"));

  EXPECT_GE(server.requests().size(), 10U);
  EXPECT_LT(server.requests().size(), 100U);
}

TEST_P(ResumingClientTest, AServerThatAsksForMoreThanThereIsGetsTheRest) {
  ScriptedServer server(
      std::deque<ScriptedServer::Call>(10, {{}, Full(std::chrono::seconds::max())}));
  GenerateRequest request;
  request.mutable_resume();

  EXPECT_THAT(Run({&server}, request).error_message(), StartsWith("full (given up after "));

  EXPECT_EQ(server.requests().size(), 2U);
}

TEST_P(ResumingClientTest, ToBeginAgainIsNoProgress) {
  policy_.max_unanswered = std::chrono::milliseconds(100);
  ScriptedServer server(std::deque<ScriptedServer::Call>(1000, {{Started()}, Unavailable()}));

  EXPECT_EQ(Run({&server}).error_message(), "gone (given up after 0 s without an answer)");

  EXPECT_GE(server.requests().size(), 2U);
}

// It is asked after an hour, or as here not at all.
TEST_P(ResumingClientTest, AFullServerSaysWhenToAskAgain) {
  policy_.max_wait_for_a_place = std::chrono::hours(1);
  for (const std::chrono::seconds delay :
       {std::chrono::seconds(3600), std::chrono::seconds::max()}) {
    ScriptedServer server({{{Started(), Tokens(0, {10})}, Unavailable()}, {{}, Full(delay)}});
    GenerateRequest request;
    request.set_timeout_ms(200);

    EXPECT_EQ(Run({&server}, request).error_code(), StatusCode::DEADLINE_EXCEEDED);
    EXPECT_EQ(server.requests().size(), 2U);
  }
}

TEST_P(ResumingClientTest, TheTimeWithoutAnAnswerIsBoundedAndTheCallerToldSo) {
  policy_.max_unanswered = std::chrono::milliseconds(100);
  ScriptedServer server(std::deque<ScriptedServer::Call>(1000, {{}, Unavailable()}));

  const grpc::Status status = Run({&server});

  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "gone (given up after 0 s without an answer)");
  EXPECT_GE(server.requests().size(), 2U);
}

TEST_P(ResumingClientTest, AnAnswerThatHasBegunIsWorthMorePatienceThanOneThatHasNot) {
  policy_.max_unanswered_at_first = std::chrono::milliseconds(0);
  ScriptedServer begun({{{Started(), Tokens(0, {10})}, Unavailable()},
                        {{}, Unavailable()},
                        {{Started(), Finished(1)}, grpc::Status::OK}});
  ScriptedServer never_answered({{{}, Unavailable()}});

  EXPECT_TRUE(Run({&begun}).ok());
  EXPECT_EQ(Run({&never_answered}).error_message(), "gone (given up after 0 s without an answer)");
  EXPECT_EQ(never_answered.requests().size(), 1U);
}

TEST_P(ResumingClientTest, AServerThatLoadsIsWorthMorePatienceThanNone) {
  policy_.max_unanswered_at_first = std::chrono::milliseconds(0);
  ScriptedServer loads({{{}, Loading()}, {{}, Unavailable()}, {{Started(), Finished(0)}, {}}});

  EXPECT_TRUE(Run({&loads}).ok());
}

TEST_P(ResumingClientTest, WhatBreaksBehindItsLastMessageIsComplete) {
  ScriptedServer server({{{Started(), Tokens(0, {10}), Finished(1)}, Unavailable()}});

  EXPECT_TRUE(Run({&server}).ok());
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST_P(ResumingClientTest, TheDeadlineIsOneForAllAttempts) {
  ScriptedServer server({{{}, Unavailable()}, {{}, Unavailable()}});
  GenerateRequest request;
  request.set_timeout_ms(3'600'000);
  Run({&server}, request);
  EXPECT_EQ(server.requests()[0].timeout_ms(), 3'600'000);
  EXPECT_LT(server.requests()[1].timeout_ms(), 3'600'000);
  EXPECT_GT(server.requests()[1].timeout_ms(), 0);

  ScriptedServer gone({{{}, Unavailable()}, {{}, Unavailable()}});
  request.set_timeout_ms(1);

  EXPECT_EQ(Run({&gone}, request).error_code(), StatusCode::DEADLINE_EXCEEDED);
}

TEST_P(ResumingClientTest, TheCallerMayCancel) {
  ScriptedServer server({{{Started(), Tokens(0, {10}), Tokens(1, {11})}, Unavailable()}});
  max_tokens_ = 1;

  EXPECT_EQ(Run({&server}).error_code(), StatusCode::CANCELLED);
  EXPECT_THAT(tokens_, ElementsAre(10));
}

TEST_P(ResumingClientTest, EachAttemptHasTheKey) {
  ScriptedServer server({{{}, Unavailable()}, {{Started(), Finished(0)}, grpc::Status::OK}});
  api_key_ = "qk_1";

  EXPECT_TRUE(Run({&server}).ok());

  EXPECT_THAT(server.keys(), ElementsAre("Bearer qk_1", "Bearer qk_1"));
}

TEST_P(ResumingClientTest, AKeyThatGrpcCannotSendIsRefusedWithoutACall) {
  ScriptedServer server({});
  api_key_ = "a\nb";

  EXPECT_EQ(Run({&server}).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(server.requests().size(), 0U);
}

struct WrongAnswer {
  std::string name;
  std::vector<GenerateResponse> responses;  // behind token 0
};

class WrongAnswerTest : public ClientTest,
                        public testing::WithParamInterface<std::tuple<Kind, WrongAnswer>> {
 protected:
  Kind kind() const override { return std::get<Kind>(GetParam()); }
};

TEST_P(WrongAnswerTest, IsDataLossAndNotShown) {
  ScriptedServer server({{{Started(), Tokens(0, {10})}, Unavailable()},
                         {std::get<WrongAnswer>(GetParam()).responses, grpc::Status::OK}});

  EXPECT_EQ(Run({&server}).error_code(), StatusCode::DATA_LOSS);
  EXPECT_THAT(tokens_, ElementsAre(10));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    WrongAnswerTest,
    testing::Combine(
        testing::Values(Kind::kBlocking, Kind::kAsync),
        testing::Values(WrongAnswer{"Gap", {Started(), Tokens(2, {12})}},
                        WrongAnswer{"Repeat", {Started(), Tokens(0, {10})}},
                        WrongAnswer{"NoSuchSequence", {Started(), Tokens(0, {10}, 1)}},
                        WrongAnswer{"NegativeSequence", {Started(), Tokens(0, {10}, -1)}},
                        WrongAnswer{"EndTooEarly", {Started(), Finished(2)}},
                        WrongAnswer{"AnotherSeed", {Started(8), Finished(1)}},
                        WrongAnswer{"AnotherFingerprint", {Started(7, "gpu"), Finished(1)}},
                        WrongAnswer{"NoEnd", {Started()}})),
    [](const auto& param) {
      return NameOf(std::get<Kind>(param.param)) + std::get<WrongAnswer>(param.param).name;
    });

// name: of an argument of gRPC.
std::string ValueOf(const grpc::ChannelArguments& arguments, std::string_view name) {
  const grpc_channel_args all = arguments.c_channel_args();
  for (size_t i = 0; i < all.num_args; ++i) {
    if (all.args[i].key == name) {
      return all.args[i].type == GRPC_ARG_STRING ? all.args[i].value.string
                                                 : std::to_string(all.args[i].value.integer);
    }
  }
  return "none";
}

TEST(ClientChannelArgumentsTest, AreThoseOfTheCommandLine) {
  const grpc::ChannelArguments ours = ClientChannelArguments();
  const grpc::ChannelArguments theirs = PublicChannelArguments();
  const grpc_channel_args all = ours.c_channel_args();
  ASSERT_GT(all.num_args, 5U);
  for (size_t i = 0; i < all.num_args; ++i) {
    const std::string name = all.args[i].key;
    if (name != GRPC_ARG_PRIMARY_USER_AGENT_STRING) {  // the library's
      EXPECT_EQ(ValueOf(theirs, name), ValueOf(ours, name)) << name;
    }
  }
}

}  // namespace
}  // namespace quire
