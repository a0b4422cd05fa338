#include "deploy/clients/cpp/async_resuming_client.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/create_channel.h>

#include "tests/deploy/collector.h"
#include "tests/deploy/generate_messages.h"
#include "tests/deploy/scripted_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace quire {
namespace {

using grpc::StatusCode;
using v1::GenerateResponse;
using Stream = AsyncResumingClient::Stream;

constexpr std::chrono::hours kHour(1);
// A wait between attempts outlasts the test.
constexpr RetryPolicy kSlow = {.max_unanswered = 10 * kHour,
                               .max_unanswered_at_first = std::nullopt,
                               .first_wait = 2 * kHour,
                               .max_wait = 2 * kHour};

void NextOne(Stream& stream, const GenerateResponse& /*response*/) { stream.Next(); }

// A call that stays open until its client cancels it, which `cancelled` notes.
ScriptedServer::Call HeldCall(std::atomic<bool>& cancelled) {
  return {{Started(), Tokens(0, {10})}, Unavailable(), [&](const grpc::ServerContext& context) {
            cancelled = WaitFor([&] { return context.IsCancelled(); });
          }};
}

TEST(AsyncResumingClientTest, NoMessageComesUnlessAskedFor) {
  ScriptedServer server({{{Started(), Tokens(0, {10}), Finished(1)}, grpc::Status::OK}});
  AsyncResumingClient client({DialOf(server)}, kFast);
  std::atomic<int> num_messages = 0;
  const auto collector =
      Collect(client, {}, "", [&](Stream& /*stream*/, const auto&) { ++num_messages; });
  for (const int asked : {1, 2, 3}) {
    collector->stream->Next();
    ASSERT_TRUE(WaitFor([&] { return num_messages == asked; }));
  }

  collector->stream->Next();

  EXPECT_TRUE(collector->End().ok());
  EXPECT_EQ(num_messages, 3);
}

TEST(AsyncResumingClientTest, AskingTwiceBringsOneMessage) {
  std::promise<void> asked;
  std::shared_future<void> has_asked = asked.get_future().share();
  std::atomic<bool> cancelled = false;
  ScriptedServer server(
      {{{}, Unavailable(), [&](const auto&) { has_asked.wait(); }}, HeldCall(cancelled)});
  AsyncResumingClient client({DialOf(server)}, kFast);
  std::promise<void> first;
  std::atomic<int> num_messages = 0;
  const auto collector = Collect(client, {}, "", [&](Stream& /*stream*/, const auto&) {
    if (num_messages++ == 0) {
      first.set_value();
    }
  });
  for (int i = 0; i < 3; ++i) {
    collector->stream->Next();
  }
  asked.set_value();
  first.get_future().wait();

  collector->stream->Cancel();

  EXPECT_EQ(collector->End().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(num_messages, 1);
}

TEST(AsyncResumingClientTest, ItTellsOfAttemptsThatContinueAnAnswer) {
  ScriptedServer server({{{}, Unavailable()},
                         {{Started(), Tokens(0, {10})}, Unavailable()},
                         {{Started(), Tokens(1, {11}), Finished(2)}, grpc::Status::OK}});
  std::atomic<int> num_resumed = 0;
  AsyncResumingClient client({DialOf(server)}, kFast, [&] { ++num_resumed; });
  const auto collector = Collect(client, {}, "", NextOne);

  collector->stream->Next();

  EXPECT_TRUE(collector->End().ok());
  EXPECT_EQ(num_resumed, 1) << "the second attempt began anew, the third went on";
}

TEST(AsyncResumingClientTest, EachStreamHasAKeyOfItsOwn) {
  ScriptedServer server({{{Started(), Finished(0)}, {}}, {{Started(), Finished(0)}, {}}});
  AsyncResumingClient client({DialOf(server)}, kFast);
  for (const std::string key : {"qk_1", "qk_2"}) {
    const auto collector = Collect(client, {}, key, NextOne);
    collector->stream->Next();
    EXPECT_TRUE(collector->End().ok());
  }
  EXPECT_THAT(server.keys(), testing::ElementsAre("Bearer qk_1", "Bearer qk_2"));
}

TEST(AsyncResumingClientCancelTest, BeforeTheFirstNextNoRequestIsSent) {
  ScriptedServer server({});
  AsyncResumingClient client({DialOf(server)}, kFast);
  const auto collector = Collect(client, {}, "", NextOne);

  collector->stream->Cancel();
  collector->stream->Cancel();

  EXPECT_EQ(collector->End().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(server.requests().size(), 0U);
}

TEST(AsyncResumingClientCancelTest, WhileItConnects) {
  // The kernel accepts the connection, and nobody speaks on it.
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  grpc::ChannelArguments arguments = ClientChannelArguments();
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3'600'000);  // time for one attempt
  const auto channel =
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(ntohs(address.sin_port)),
                                grpc::InsecureChannelCredentials(),
                                arguments);
  AsyncResumingClient client({[&] { return channel; }}, kFast);
  const auto collector = Collect(client, {}, "", NextOne);
  collector->stream->Next();
  ASSERT_TRUE(WaitFor([&] { return channel->GetState(false) == GRPC_CHANNEL_CONNECTING; }));

  collector->stream->Cancel();

  EXPECT_EQ(collector->End().error_code(), StatusCode::CANCELLED);
  ::close(listener);
}

TEST(AsyncResumingClientCancelTest, WhileItReadsTheCallEnds) {
  std::atomic<bool> cancelled = false;
  std::promise<void> token;
  ScriptedServer server({HeldCall(cancelled)});
  AsyncResumingClient client({DialOf(server)}, kFast);
  const auto collector = Collect(client, {}, "", [&](Stream& stream, const auto& response) {
    stream.Next();
    if (response.has_chunk()) {
      token.set_value();
    }
  });
  collector->stream->Next();
  token.get_future().wait();

  collector->stream->Cancel();

  EXPECT_EQ(collector->End().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(WaitFor([&] { return cancelled.load(); }));
}

TEST(AsyncResumingClientCancelTest, WhileItsHandlerDoesNotAskTheCallEnds) {
  std::atomic<bool> cancelled = false;
  std::promise<void> started;
  ScriptedServer server({HeldCall(cancelled)});
  AsyncResumingClient client({DialOf(server)}, kFast);
  const auto collector =
      Collect(client, {}, "", [&](Stream& /*stream*/, const auto&) { started.set_value(); });
  collector->stream->Next();
  started.get_future().wait();

  collector->stream->Cancel();

  EXPECT_EQ(collector->End().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(WaitFor([&] { return cancelled.load(); }));
}

TEST(AsyncResumingClientCancelTest, WhileItWaitsTheWaitEnds) {
  ScriptedServer first({{{}, Unavailable()}});
  ScriptedServer second({});
  std::promise<void> waits;  // the client dials the next server when the wait begins
  AsyncResumingClient client({DialOf(first),
                              [&] {
                                waits.set_value();
                                return second.Channel();
                              }},
                             kSlow);
  const auto collector = Collect(client, {}, "", NextOne);
  collector->stream->Next();
  waits.get_future().wait();

  collector->stream->Cancel();

  EXPECT_EQ(collector->End().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(second.requests().size(), 0U);
}

TEST(AsyncResumingClientCancelTest, AfterTheEndOrTheClientItHasNoEffect) {
  ScriptedServer server({{{Started(), Finished(0)}, grpc::Status::OK}});
  auto client = std::make_unique<AsyncResumingClient>(std::vector{DialOf(server)}, kFast);
  const auto collector = Collect(*client, {}, "", NextOne);
  collector->stream->Next();
  EXPECT_TRUE(collector->End().ok());

  collector->stream->Cancel();
  client.reset();
  collector->stream->Cancel();
  collector->stream->Next();
}

// Drops its handle at the first message, or at the end.
class Dropper final : public AsyncResumingClient::Handler {
 public:
  Dropper(bool at_message, std::promise<grpc::Status>& end, std::promise<void>& destroyed)
      : at_message_(at_message), end_(end), destroyed_(destroyed) {}
  ~Dropper() override { destroyed_.set_value(); }
  void OnResponse(const GenerateResponse& /*response*/) override {
    at_message_ ? stream.reset() : stream->Next();
  }
  void OnDone(const grpc::Status& status) override {
    stream.reset();
    end_.set_value(status);
  }

  std::shared_ptr<Stream> stream;

 private:
  const bool at_message_;
  std::promise<grpc::Status>& end_;
  std::promise<void>& destroyed_;
};

TEST(AsyncResumingClientTest, AHandlerMayDropItsHandleAndGoesWithItsStream) {
  std::atomic<bool> cancelled = false;
  for (const bool at_message : {true, false}) {
    ScriptedServer server({at_message
                               ? HeldCall(cancelled)
                               : ScriptedServer::Call{{Started(), Finished(0)}, grpc::Status::OK}});
    AsyncResumingClient client({DialOf(server)}, kFast);
    std::promise<grpc::Status> end;
    std::promise<void> destroyed;
    auto dropper = std::make_shared<Dropper>(at_message, end, destroyed);
    dropper->stream = client.Start({}, "", dropper);
    dropper->stream->Next();
    dropper.reset();

    EXPECT_EQ(end.get_future().get().error_code(),
              at_message ? StatusCode::CANCELLED : StatusCode::OK);
    EXPECT_EQ(destroyed.get_future().wait_for(kTooLong), std::future_status::ready);
  }
  EXPECT_TRUE(cancelled);
}

class Counter final : public AsyncResumingClient::Handler {
 public:
  void OnResponse(const GenerateResponse& /*response*/) override { ++num_messages; }
  void OnDone(const grpc::Status& status) override {
    num_cancelled += status.error_code() == StatusCode::CANCELLED ? 1 : 0;
  }

  std::atomic<int> num_messages = 0;
  std::atomic<int> num_cancelled = 0;
};

TEST(AsyncResumingClientTest, ItsDestructorEndsStreamsInEveryState) {
  std::atomic<bool> cancelled = false;
  ScriptedServer holds({HeldCall(cancelled), HeldCall(cancelled)});
  ScriptedServer fails({{{}, Unavailable()}});
  const auto counter = std::make_shared<Counter>();
  std::atomic<int> num_waits = 0;
  std::vector<std::shared_ptr<Stream>> streams;  // outlive their clients
  {
    AsyncResumingClient client({DialOf(holds)}, kFast);
    AsyncResumingClient waiting({DialOf(fails),
                                 [&] {
                                   ++num_waits;
                                   return holds.Channel();
                                 }},
                                kSlow);
    for (int i = 0; i < 3; ++i) {  // unasked, idle, reading
      streams.push_back(client.Start({}, "", counter));
    }
    streams.push_back(waiting.Start({}, "", counter));
    streams[1]->Next();
    streams[2]->Next();
    streams[3]->Next();
    ASSERT_TRUE(WaitFor([&] { return counter->num_messages == 2 && num_waits == 1; }));
    streams[2]->Next();
    ASSERT_TRUE(WaitFor([&] { return counter->num_messages == 3; }));
    streams[2]->Next();
  }
  EXPECT_EQ(counter->num_cancelled, 4);
}

TEST(AsyncResumingClientTest, TheNextServersChannelConnectsDuringTheWait) {
  ScriptedServer first({{{}, Unavailable()}});
  ScriptedServer second({});
  std::promise<std::shared_ptr<grpc::Channel>> dialed;
  AsyncResumingClient client({DialOf(first),
                              [&] {
                                const auto channel = DialOf(second.address())();
                                dialed.set_value(channel);
                                return channel;
                              }},
                             kSlow);
  const auto collector = Collect(client, {}, "", NextOne);
  collector->stream->Next();

  const std::shared_ptr<grpc::Channel> channel = dialed.get_future().get();
  EXPECT_TRUE(WaitFor([&] { return channel->GetState(false) == GRPC_CHANNEL_READY; }));
}

TEST(AsyncResumingClientTest, AHandlerThatDoesNotAskStopsItsServerAndNoOtherStream) {
  constexpr int kNumChunks = 64;
  std::vector<GenerateResponse> flood = {Started()};
  for (int i = 0; i < kNumChunks; ++i) {
    flood.push_back(Tokens(i, {i}));
    flood.back().mutable_chunk()->set_text(std::string(256 << 10, 'x'));
  }
  flood.push_back(Finished(kNumChunks));
  ScriptedServer server({{flood, grpc::Status::OK}, {{Started(), Finished(0)}, grpc::Status::OK}});
  AsyncResumingClient client({DialOf(server.address())}, kFast);
  std::promise<void> started;
  int num_messages = 0;
  const auto stopped = Collect(client, {}, "", [&](Stream& stream, const auto&) {
    num_messages++ == 0 ? started.set_value() : stream.Next();
  });
  stopped->stream->Next();
  started.get_future().wait();

  int num_written = -1;  // until the server writes no more
  while (std::exchange(num_written, server.num_written()) != server.num_written()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  EXPECT_LT(num_written, kNumChunks / 8);
  const auto other = Collect(client, {}, "", NextOne);
  other->stream->Next();
  EXPECT_TRUE(other->End().ok());

  stopped->stream->Next();
  EXPECT_TRUE(stopped->End().ok());
  EXPECT_EQ(num_messages, kNumChunks + 2);
}

}  // namespace
}  // namespace quire
