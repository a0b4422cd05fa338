// KvEventPublisher with real ZeroMQ sockets, over Unix sockets in a temporary folder.
#include "scheduler/kv_events/kv_event_publisher.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"

#include <zmq_addon.hpp>

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatience(30);
constexpr uint64_t kEndOfReplay = UINT64_MAX;

std::string SequenceBytes(uint64_t sequence) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(sequence >> shift));
  }
  return bytes;
}

uint64_t SequenceOf(const std::string& bytes) {
  uint64_t sequence = 0;
  for (const char byte : bytes) {
    sequence = sequence << 8 | static_cast<unsigned char>(byte);
  }
  return sequence;
}

// A socket of a router that cannot wait for ever.
class Client {
 public:
  Client(zmq::socket_type type, const std::string& endpoint) : socket_(context_, type) {
    socket_.set(zmq::sockopt::rcvtimeo,
                static_cast<int>(std::chrono::milliseconds(kPatience).count()));
    socket_.set(zmq::sockopt::linger, 0);
    if (type == zmq::socket_type::sub) {
      socket_.set(zmq::sockopt::subscribe, "");
    }
    socket_.connect(endpoint);
  }

  void Send(const std::vector<std::string>& frames) {
    std::vector<zmq::const_buffer> buffers;
    for (const std::string& frame : frames) {
      buffers.push_back(zmq::buffer(frame));
    }
    zmq::send_multipart(socket_, buffers);
  }

  // Returns the frames of a message; none if no message comes in time.
  std::vector<std::string> Receive(zmq::recv_flags flags = zmq::recv_flags::none) {
    std::vector<zmq::message_t> parts;
    std::vector<std::string> frames;
    if (zmq::recv_multipart(socket_, std::back_inserter(parts), flags).has_value()) {
      for (const zmq::message_t& part : parts) {
        frames.push_back(part.to_string());
      }
    }
    return frames;
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

class KvEventPublisherTest : public ::testing::Test {
 protected:
  KvEventPublisherTest() {
    std::string name = ::testing::TempDir() + "quire-kv-events-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    settings_ = {.endpoint = "ipc://" + folder_ + "/events",
                 .replay_endpoint = "ipc://" + folder_ + "/replay",
                 .topic = "kv@pod@model",
                 .buffer_steps = 100};
  }
  ~KvEventPublisherTest() override { std::filesystem::remove_all(folder_); }

  void Open() {
    publisher_ = std::make_unique<KvEventPublisher>(settings_, &registry_);
    const absl::Status opened = publisher_->Open();
    ASSERT_TRUE(opened.ok()) << opened;
  }

  void PublishRemoved(uint64_t hash) {
    publisher_->Publish(
        {{.kind = CacheEvent::Kind::kRemoved, .block_hashes = {{.low = hash, .high = 0}}}});
  }

  // Publishes until the subscriber is connected, which ZeroMQ does not tell. Returns the next
  // number.
  uint64_t PublishUntilHeard(Client& subscriber) {
    for (uint64_t sequence = 0;; ++sequence) {
      PublishRemoved(sequence);
      Client& replay = ReplayClient();
      Replay(replay, sequence);  // until the batch is sent
      const std::vector<std::string> heard = subscriber.Receive(zmq::recv_flags::dontwait);
      if (!heard.empty()) {
        uint64_t next = SequenceOf(heard.at(1)) + 1;
        while (next <= sequence) {
          next = SequenceOf(subscriber.Receive().at(1)) + 1;
        }
        return next;
      }
    }
  }

  Client& ReplayClient() {
    if (replay_client_ == nullptr) {
      replay_client_ =
          std::make_unique<Client>(zmq::socket_type::dealer, settings_.replay_endpoint);
    }
    return *replay_client_;
  }

  // Returns the messages from `first` on without the empty frame in front, the last one included.
  static std::vector<std::vector<std::string>> Replay(Client& client, uint64_t first) {
    client.Send({"", SequenceBytes(first)});
    return Answers(client);
  }

  static std::vector<std::vector<std::string>> Answers(Client& client) {
    std::vector<std::vector<std::string>> messages;
    do {
      std::vector<std::string> frames = client.Receive();
      if (frames.size() != 4 || !frames.front().empty()) {
        ADD_FAILURE() << "an answer of " << frames.size() << " frames";
        return messages;
      }
      messages.emplace_back(frames.begin() + 1, frames.end());
    } while (SequenceOf(messages.back()[1]) != kEndOfReplay);
    return messages;
  }

  // Waits until the thread has sent all batches before `next`.
  void WaitUntilSent(uint64_t next) {
    while (Replay(ReplayClient(), next - 1).size() < 2) {
    }
  }

  int64_t NumBatches(const std::string& result) {
    return static_cast<int64_t>(
        registry_.Counter(metric::kKvEventBatchesTotal, {{"result", result}}).Value());
  }

  std::string folder_;
  KvEventSettings settings_;
  MetricsRegistry registry_;
  std::unique_ptr<Client> replay_client_;
  std::unique_ptr<KvEventPublisher> publisher_;
};

TEST_F(KvEventPublisherTest, SubscribersGetNumberedBatchesUnderTheTopic) {
  Open();
  Client subscriber(zmq::socket_type::sub, settings_.endpoint);
  const uint64_t next = PublishUntilHeard(subscriber);

  PublishRemoved(1);
  PublishRemoved(2);

  for (const uint64_t sequence : {next, next + 1}) {
    const std::vector<std::string> frames = subscriber.Receive();
    ASSERT_EQ(frames.size(), 3);
    EXPECT_EQ(frames[0], "kv@pod@model");
    EXPECT_EQ(frames[1], SequenceBytes(sequence));
    EXPECT_THAT(frames[2], HasSubstr("BlockRemoved"));
  }
  EXPECT_EQ(NumBatches("published"), next + 2);
  EXPECT_EQ(NumBatches("dropped"), 0);
}

TEST_F(KvEventPublisherTest, ReplayBeginsAtTheWantedNumberAndEnds) {
  Open();
  Client subscriber(zmq::socket_type::sub, settings_.endpoint);
  const uint64_t next = PublishUntilHeard(subscriber);
  PublishRemoved(0xAAAA);
  PublishRemoved(0xBBBB);
  const std::vector<std::string> first = subscriber.Receive();
  const std::vector<std::string> second = subscriber.Receive();

  const auto replayed = Replay(ReplayClient(), next);

  EXPECT_THAT(
      replayed,
      ElementsAre(first, second, std::vector<std::string>{"", SequenceBytes(kEndOfReplay), ""}));
}

TEST_F(KvEventPublisherTest, BatchesFromBeforeOpenAreSent) {
  publisher_ = std::make_unique<KvEventPublisher>(settings_, &registry_);
  PublishRemoved(7);
  ASSERT_TRUE(publisher_->Open().ok());

  WaitUntilSent(1);

  EXPECT_EQ(Replay(ReplayClient(), 0).size(), 2);
}

TEST_F(KvEventPublisherTest, TheBufferForgetsTheOldestBatches) {
  settings_.buffer_steps = 3;
  Open();
  for (uint64_t sequence = 0; sequence < 10; ++sequence) {
    PublishRemoved(sequence);
  }
  WaitUntilSent(10);

  const auto replayed = Replay(ReplayClient(), 0);

  ASSERT_EQ(replayed.size(), 4);
  EXPECT_EQ(SequenceOf(replayed[0][1]), 7);
  EXPECT_EQ(SequenceOf(replayed[2][1]), 9);
}

TEST_F(KvEventPublisherTest, ARequestThatIsNoneGetsTheEndAlone) {
  Open();
  PublishRemoved(1);
  WaitUntilSent(1);
  const std::vector<std::vector<std::string>> requests = {{"", "short"},
                                                          {"", SequenceBytes(0), "more"},
                                                          {SequenceBytes(0)},
                                                          {""},
                                                          {"x", SequenceBytes(0)}};

  for (const std::vector<std::string>& request : requests) {
    ReplayClient().Send(request);

    EXPECT_EQ(Answers(ReplayClient()).size(), 1);
  }
  EXPECT_EQ(Replay(ReplayClient(), 0).size(), 2);
}

// A connection whose first frame is longer than any that is allowed is closed; others go on.
TEST_F(KvEventPublisherTest, AFrameThatIsTooLongEndsItsConnectionAlone) {
  Open();
  PublishRemoved(1);
  WaitUntilSent(1);
  Client rude(zmq::socket_type::dealer, settings_.replay_endpoint);
  rude.Send({"", std::string(100'000, 'x')});

  EXPECT_EQ(Replay(ReplayClient(), 0).size(), 2);
}

TEST_F(KvEventPublisherTest, ABatchThatFindsNoRoomLeavesAGap) {
  publisher_ = std::make_unique<KvEventPublisher>(settings_, &registry_);
  const size_t num_tokens = KvEventPublisher::kMaxWaitingTokens - 100;
  publisher_->Publish({{.kind = CacheEvent::Kind::kStored,
                        .block_hashes = {{.low = 1, .high = 0}},
                        .token_ids = std::vector<TokenId>(num_tokens)}});
  publisher_->Publish({{.kind = CacheEvent::Kind::kStored,
                        .block_hashes = {{.low = 2, .high = 0}},
                        .token_ids = std::vector<TokenId>(100)}});
  PublishRemoved(3);
  ASSERT_TRUE(publisher_->Open().ok());
  WaitUntilSent(3);

  const auto replayed = Replay(ReplayClient(), 0);

  ASSERT_EQ(replayed.size(), 3);
  EXPECT_EQ(SequenceOf(replayed[0][1]), 0);
  EXPECT_EQ(SequenceOf(replayed[1][1]), 2);
  EXPECT_EQ(NumBatches("dropped"), 1);
  EXPECT_EQ(NumBatches("published"), 2);
}

TEST_F(KvEventPublisherTest, WithoutReplayNothingIsKept) {
  settings_.replay_endpoint.clear();
  Open();
  EXPECT_EQ(publisher_->replay_endpoint(), "");
  for (uint64_t sequence = 0; sequence < 10; ++sequence) {
    PublishRemoved(sequence);
  }
  publisher_.reset();  // sends what waits
  EXPECT_EQ(NumBatches("published"), 10);
}

TEST_F(KvEventPublisherTest, TellsThePortThatTheSystemChose) {
  settings_.endpoint = "tcp://127.0.0.1:0";
  Open();
  EXPECT_THAT(publisher_->endpoint(), HasSubstr("tcp://127.0.0.1:"));
  EXPECT_THAT(publisher_->endpoint(), ::testing::Not(::testing::EndsWith(":0")));
}

TEST_F(KvEventPublisherTest, OnlyItsUserReachesAUnixSocket) {
  Open();
  for (const char* name : {"/events", "/replay"}) {
    EXPECT_EQ(std::filesystem::status(folder_ + name).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
}

TEST_F(KvEventPublisherTest, AnEndpointThatIsTakenIsAnError) {
  for (const std::string& endpoint : {settings_.endpoint, std::string("tcp://127.0.0.1:0")}) {
    settings_.endpoint = endpoint;
    Open();
    KvEventSettings same = settings_;
    same.endpoint = publisher_->endpoint();
    KvEventPublisher other(same, &registry_);

    const absl::Status opened = other.Open();

    EXPECT_EQ(ReasonOf(opened), "KV_EVENTS_BIND");
    EXPECT_THAT(std::string(opened.message()),
                HasSubstr("--kv-events-endpoint: cannot listen on " + same.endpoint));
    publisher_.reset();
  }
}

TEST_F(KvEventPublisherTest, AReplayEndpointThatCannotBeIsAnError) {
  settings_.replay_endpoint = "ipc:///no/such/folder/replay";
  KvEventPublisher publisher(settings_, &registry_);

  const absl::Status opened = publisher.Open();

  EXPECT_EQ(ReasonOf(opened), "KV_EVENTS_BIND");
  EXPECT_THAT(std::string(opened.message()), HasSubstr("--kv-events-replay-endpoint"));
}

}  // namespace
}  // namespace quire
