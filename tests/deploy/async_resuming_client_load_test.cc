// Many streams of one AsyncResumingClient: connections, and threads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "deploy/clients/cpp/async_resuming_client.h"
#include "tests/deploy/collector.h"
#include "tests/deploy/crowd_server.h"
#include "tests/deploy/generate_messages.h"

namespace quire {
namespace {

using grpc::StatusCode;
using v1::GenerateRequest;
using v1::GenerateResponse;
using Stream = AsyncResumingClient::Stream;

GenerateRequest RequestOf(const std::string& text) {
  GenerateRequest request;
  request.set_text(text);
  return request;
}

int32_t TokenOf(int request, int position) {
  return (request * 7919 + position * 104'729) % 32'000;
}

// Answers with three more of eight tokens, then breaks, each time in another way.
CrowdAnswer ThreeTokens(const GenerateRequest& request) {
  constexpr int kNumTokens = 8;
  const grpc::Status breaks[] = {
      Unavailable(), {StatusCode::INTERNAL, "torn"}, {StatusCode::CANCELLED, ""}};
  const int number = std::stoi(request.text());
  const v1::Resume& resume = request.resume();
  const int begin = resume.sequences().empty() ? 0 : resume.sequences(0).token_ids_size();
  const int end = std::min(begin + 3, kNumTokens);
  CrowdAnswer answer{{Started()}, breaks[(number + begin) % 3]};
  for (int i = begin; i < end; ++i) {
    answer.responses.push_back(Tokens(i, {TokenOf(number, i)}));
  }
  if (end == kNumTokens) {
    answer.responses.push_back(Finished(kNumTokens));
  }
  return answer;
}

TEST(AsyncResumingClientLoadTest, AThousandStreamsRunAtOnceAndEachIsResumed) {
  constexpr int kNumStreams = 1000;
  CrowdServer server(kNumStreams, [](const GenerateRequest& request, const std::string& /*peer*/) {
    return ThreeTokens(request);
  });
  AsyncResumingClient client({DialOf(server.address())}, kFast);
  std::vector<std::vector<int32_t>> tokens(kNumStreams);
  std::vector<std::shared_ptr<Collector>> collectors;
  for (int i = 0; i < kNumStreams; ++i) {
    collectors.push_back(
        Collect(client, RequestOf(std::to_string(i)), "", [&, i](Stream& stream, const auto& r) {
          tokens[i].insert(
              tokens[i].end(), r.chunk().token_ids().begin(), r.chunk().token_ids().end());
          stream.Next();
        }));
    collectors.back()->stream->Next();
  }

  for (int i = 0; i < kNumStreams; ++i) {
    const grpc::Status status = collectors[i]->End();
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
    std::vector<int32_t> expected;
    for (int position = 0; position < 8; ++position) {
      expected.push_back(TokenOf(i, position));
    }
    EXPECT_EQ(tokens[i], expected) << i;
  }
  for (const auto& [peer, num_calls] : server.calls_of_peer()) {
    EXPECT_LE(num_calls, 100) << peer;
  }
}

// The tests of connections hold streams open and learn from `started` which connection has each.
class AsyncResumingClientConnectionTest : public testing::Test {
 protected:
  struct Held {
    std::shared_ptr<Collector> collector;
    std::string peer;
  };

  Held Hold() {
    auto peer = std::make_shared<std::promise<std::string>>();
    auto collector = Collect(client_, {}, "", [peer](Stream& stream, const auto& response) {
      peer->set_value(response.started().request_id());
      stream.Next();
    });
    collector->stream->Next();
    return {collector, peer->get_future().get()};
  }

  std::vector<Held> HoldMany(int n) {
    std::vector<Held> held(n);
    std::generate(held.begin(), held.end(), [this] { return Hold(); });
    return held;
  }

  void End(const Held& held) {
    held.collector->stream->Cancel();
    EXPECT_EQ(held.collector->End().error_code(), StatusCode::CANCELLED);
  }

  int NumChannels() {
    return static_cast<int>(std::count_if(
        channels_.begin(), channels_.end(), [](const auto& each) { return !each.expired(); }));
  }

  CrowdServer server_{1, [](const GenerateRequest& /*request*/, const std::string& peer) {
                        CrowdAnswer answer{{Started()}, Unavailable(), true};
                        answer.responses[0].mutable_started()->set_request_id(peer);
                        return answer;
                      }};
  std::vector<std::weak_ptr<grpc::Channel>> channels_;
  AsyncResumingClient client_{{[this] {
                                const auto channel = DialOf(server_.address())();
                                channels_.push_back(channel);
                                return channel;
                              }},
                              kFast};
};

TEST_F(AsyncResumingClientConnectionTest, AStreamTakesTheConnectionWithFewestStreams) {
  std::vector<Held> held = HoldMany(102);
  ASSERT_EQ(held[0].peer, held[99].peer);
  ASSERT_NE(held[0].peer, held[100].peer);
  ASSERT_EQ(held[100].peer, held[101].peer);
  for (int i = 0; i < 50; ++i) {
    End(held[i]);
  }

  EXPECT_EQ(Hold().peer, held[100].peer);
}

TEST_F(AsyncResumingClientConnectionTest, AConnectionWithoutStreamsIsClosedUnlessItIsTheLast) {
  std::vector<Held> held = HoldMany(101);
  ASSERT_EQ(NumChannels(), 2);

  End(held[100]);
  EXPECT_TRUE(WaitFor([&] { return NumChannels() == 1; }));
  held.pop_back();
  for (const Held& each : held) {
    End(each);
  }

  EXPECT_EQ(Hold().peer, held[0].peer);
}

TEST(AsyncResumingClientLoadTest, ThreadsMayAskAndCancelAtOnce) {
  constexpr int kNumStreams = 60;
  CrowdServer server(1, [](const GenerateRequest& request, const std::string& /*peer*/) {
    return ThreeTokens(request);
  });
  AsyncResumingClient client({DialOf(server.address())}, kFast);
  std::vector<std::shared_ptr<Collector>> collectors;
  for (int i = 0; i < kNumStreams; ++i) {
    collectors.push_back(Collect(
        client, RequestOf(std::to_string(i)), "", [](Stream& /*stream*/, const GenerateResponse&) {
        }));
  }
  std::atomic<bool> stops = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; !stops; ++round) {
        for (int i = 0; i < kNumStreams; ++i) {
          collectors[i]->stream->Next();
          if (i % 2 == 0 && round == i / 4 + t) {
            collectors[i]->stream->Cancel();
          }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }

  for (int i = 0; i < kNumStreams; ++i) {
    const grpc::Status status = collectors[i]->End();
    EXPECT_TRUE(status.ok() || (i % 2 == 0 && status.error_code() == StatusCode::CANCELLED))
        << i << ": " << status.error_message();
  }
  stops = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace quire
