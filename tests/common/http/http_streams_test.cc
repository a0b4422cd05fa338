// Streamed answers: framing, flushing, back-pressure, many streams at once.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file_limit.h"
#include "common/base/mutex.h"
#include "common/http/http_server.h"
#include "tests/common/http/http_socket.h"

#include <sys/epoll.h>

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// Takes over the responder of one request.
class Stream {
 public:
  HttpRoute Route() {
    return {.method = "GET",
            .path = "/page",
            .handler = [this](const HttpRequest& /*request*/, HttpResponder responder) {
              responder.OnDisconnect([this] { is_gone_.Notify(); });
              responder_ = std::make_unique<HttpResponder>(std::move(responder));
              is_begun_.Notify();
            }};
  }
  HttpResponder& Wait() {
    is_begun_.Wait();
    return *responder_;
  }
  void WaitUntilGone() { is_gone_.Wait(); }
  bool is_gone() { return is_gone_.has_come(); }
  void Destroy() { responder_.reset(); }

 private:
  Event is_begun_;
  Event is_gone_;
  std::unique_ptr<HttpResponder> responder_;
};

TEST(HttpStreamsTest, EachWriteArrivesAtOnceAsAChunk) {
  Stream stream;
  const auto server = StartServer(Loopback(), {stream.Route()});
  HttpSocket client(*server);
  client.Send(kGet);
  HttpResponder& responder = stream.Wait();

  responder.Begin({.content_type = "text/event-stream", .headers = {{"X-Id", "7"}}});
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"),
              AllOf(HasSubstr("Content-Type: text/event-stream\r\n"),
                    HasSubstr("Transfer-Encoding: chunked\r\n"),
                    HasSubstr("X-Id: 7\r\n"),
                    Not(HasSubstr("Content-Length"))));
  for (int i = 0; i < 3; ++i) {
    const std::string event = absl::StrCat("data: event ", i, "\n\n");
    EXPECT_TRUE(responder.Write(""));  // an empty chunk would end the body
    EXPECT_TRUE(responder.Write(event));
    EXPECT_EQ(client.ReadUntil("\n\n\r\n"), absl::StrCat("f\r\n", event, "\r\n"));
  }
  responder.Finish();
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
}

TEST(HttpStreamsTest, AConnectionIsKeptAfterAStream) {
  std::atomic<int> num_requests = 0;
  const auto server = StartServer(Loopback(),
                                  {{.method = "GET",
                                    .path = "/page",
                                    .handler = [&](const HttpRequest&, HttpResponder responder) {
                                      responder.Begin({});
                                      responder.Write(absl::StrCat("answer ", ++num_requests));
                                      responder.Finish();
                                    }}});
  HttpSocket client(*server);
  client.Send(std::string(kGet) + kGet + kGet);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_THAT(client.ReadUntil("0\r\n\r\n"),
                EndsWith(absl::StrCat("8\r\nanswer ", i, "\r\n0\r\n\r\n")));
  }
}

TEST(HttpStreamsTest, AnOldClientGetsAStreamThatEndsWithTheConnection) {
  Stream stream;
  const auto server = StartServer(Loopback(), {stream.Route()});
  HttpSocket client(*server);
  client.Send("GET /page HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  HttpResponder& responder = stream.Wait();
  responder.Begin({});
  responder.Write("a");
  responder.Write("b");
  responder.Finish();
  EXPECT_THAT(client.ReadToEnd(),
              AllOf(EndsWith("Connection: close\r\n\r\nab"), Not(HasSubstr("chunked"))));
}

TEST(HttpStreamsTest, HeadOfAStreamHasNoBody) {
  Stream stream;
  const auto server = StartServer(Loopback(), {stream.Route()});
  HttpSocket client(*server);
  client.Send("HEAD /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  HttpResponder& responder = stream.Wait();
  responder.Begin({});
  EXPECT_TRUE(responder.Write("a"));
  responder.Finish();
  EXPECT_THAT(client.ReadToEnd(), AllOf(HasSubstr("chunked"), EndsWith("\r\n\r\n")));
}

TEST(HttpStreamsTest, AnUnfinishedStreamIsCut) {
  Stream stream;
  const auto server = StartServer(Loopback(), {stream.Route()});
  HttpSocket client(*server);
  client.Send(kGet);
  stream.Wait().Begin({});
  stream.Wait().Write("a");
  EXPECT_THAT(client.ReadUntil("1\r\na\r\n"), EndsWith("1\r\na\r\n"));
  stream.Destroy();
  EXPECT_EQ(client.ReadToEnd(), "");
}

// Writes until the kernel takes no more and `unsent` bytes wait, or the stream is cut.
// Returns what was written.
std::string FillUp(HttpResponder& responder, size_t unsent) {
  std::string written;
  const std::string piece(10'000, 'x');
  while (responder.unsent_bytes() < unsent && responder.Write(piece)) {
    written += piece;
    // Gives the server's thread time to send what the kernel still takes.
    std::this_thread::yield();
  }
  return written;
}

TEST(HttpStreamsTest, AWriterIsToldWhenItsBacklogHasDrained) {
  Stream stream;
  HttpServerOptions options = Loopback();
  options.max_unsent_bytes = 8 << 20;
  const auto server = StartServer(options, {stream.Route()});
  HttpSocket client(*server);
  client.Send("GET /page HTTP/1.0\r\n\r\n");
  HttpResponder& responder = stream.Wait();
  responder.Begin({});
  Event drained_at_once;
  responder.OnDrained(1 << 20, [&] { drained_at_once.Notify(); });
  EXPECT_TRUE(drained_at_once.has_come());

  const std::string written = FillUp(responder, 6 << 20);
  Event drained;
  std::atomic<size_t> left = 0;
  responder.OnDrained(1000, [&] {
    left = responder.unsent_bytes();
    responder.Finish();
    drained.Notify();
  });
  EXPECT_FALSE(drained.has_come());
  const std::string got = client.ReadToEnd();
  drained.Wait();

  EXPECT_LE(left, 1000);
  EXPECT_EQ(got.substr(got.find("\r\n\r\n") + 4), written);
}

TEST(HttpStreamsTest, APieceMayBeLargerThanWhatMayWait) {
  Stream stream;
  HttpServerOptions options = Loopback();
  options.max_unsent_bytes = 1000;
  const auto server = StartServer(options, {stream.Route()});
  HttpSocket client(*server);
  client.Send(kGet);
  HttpResponder& responder = stream.Wait();
  responder.Begin({});

  EXPECT_TRUE(responder.Write(std::string(3 << 20, 'x')));
  responder.Finish();

  EXPECT_GT(client.ReadUntil("0\r\n\r\n").size(), size_t{3} << 20);
}

TEST(HttpStreamsTest, AStreamThatOutrunsItsClientIsCut) {
  Stream stream;
  HttpServerOptions options = Loopback();
  options.max_unsent_bytes = 1 << 20;
  options.stall_timeout_ns = 300 * kNanosPerMilli;  // the server notices once a write ends
  const auto server = StartServer(options, {stream.Route()});
  HttpSocket client(*server);
  client.Send(kGet);
  HttpResponder& responder = stream.Wait();
  responder.Begin({});
  const std::string piece(10'000, 'x');
  size_t most = 0;
  while (responder.Write(piece)) {
    most = std::max(most, responder.unsent_bytes());
  }
  stream.WaitUntilGone();
  EXPECT_LE(most, options.max_unsent_bytes + piece.size() + 100);
  EXPECT_FALSE(responder.Write("a"));
  client.ReadToEnd();
}

TEST(HttpStreamsTest, AClientThatAcceptsNothingIsCutAndAQuietStreamIsNot) {
  Stream stalled;
  Stream quiet;
  HttpRoute quiet_route = quiet.Route();
  quiet_route.path = "/quiet";
  HttpServerOptions options = Loopback();
  options.max_unsent_bytes = 64 << 20;
  options.stall_timeout_ns = 300 * kNanosPerMilli;
  const auto server = StartServer(options, {stalled.Route(), quiet_route});
  HttpSocket quiet_client(*server);
  quiet_client.Send(Request("GET /quiet"));
  quiet.Wait().Begin({});
  HttpSocket client(*server);
  client.Send(kGet);
  HttpResponder& responder = stalled.Wait();
  responder.Begin({});
  // The client reads nothing. A slow machine reaches the timeout before the 8 MiB.
  FillUp(responder, 8 << 20);
  stalled.WaitUntilGone();
  EXPECT_TRUE(client.WaitForReset()) << "bytes that are not read must not hide the end";

  EXPECT_FALSE(quiet.is_gone());
  EXPECT_TRUE(quiet.Wait().Write("still here"));
  EXPECT_THAT(quiet_client.ReadUntil("here"), EndsWith("still here"));
}

TEST(HttpStreamsTest, AWholeAnswerThatIsNotAcceptedIsCut) {
  Mutex mutex;
  CondVar changed;
  bool was_cut = false;
  HttpServerOptions options = Loopback();
  options.stall_timeout_ns = 300 * kNanosPerMilli;
  options.observe = [&](const HttpEvent& event) {
    const MutexLock lock(mutex);
    was_cut = was_cut || event.was_cut;
    changed.NotifyAll();
  };
  const auto server = StartServer(options, {TextRoute("/page", std::string(64 << 20, 'x'))});
  const HttpSocket client(*server);
  client.Send(kGet);
  const MutexLock lock(mutex);
  while (!was_cut) {
    changed.Wait(mutex);
  }
}

TEST(HttpStreamsTest, SlowReadersOfLargeAnswersAreCutAndOthersAreNot) {
  constexpr size_t kAnswerBytes = 8 << 20;
  Stream quiet;
  HttpRoute quiet_route = quiet.Route();
  quiet_route.path = "/quiet";
  Mutex mutex;
  CondVar changed;
  int num_cut = 0;
  HttpServerOptions options = Loopback();
  options.max_total_unsent_bytes = 2 * kAnswerBytes;
  options.observe = [&](const HttpEvent& event) {
    const MutexLock lock(mutex);
    num_cut += event.was_cut ? 1 : 0;
    changed.NotifyAll();
  };
  const auto server =
      StartServer(options, {TextRoute("/page", std::string(kAnswerBytes, 'x')), quiet_route});
  HttpSocket quiet_client(*server);
  quiet_client.Send(Request("GET /quiet"));
  quiet.Wait().Begin({});
  std::vector<std::unique_ptr<HttpSocket>> slow;
  for (int i = 0; i < 6; ++i) {
    slow.push_back(std::make_unique<HttpSocket>(*server));
    slow.back()->Send(kGet);
  }
  {
    const MutexLock lock(mutex);
    while (num_cut < 4) {
      changed.Wait(mutex);
    }
    EXPECT_EQ(num_cut, 4) << "two answers may wait";
  }

  // Its answer exceeds the bound again, which ends the slow ones.
  HttpSocket ordinary(*server);
  ordinary.Send(kGetAndClose);
  EXPECT_GT(ordinary.ReadToEnd().size(), kAnswerBytes);
  EXPECT_TRUE(quiet.Wait().Write("still here"));
  EXPECT_THAT(quiet_client.ReadUntil("here"), EndsWith("still here"));
}

TEST(HttpStreamsTest, ThreadsMayWriteTogether) {
  Stream stream;
  const auto server = StartServer(Loopback(), {stream.Route()});
  HttpSocket client(*server);
  client.Send("GET /page HTTP/1.0\r\n\r\n");
  HttpResponder& responder = stream.Wait();
  responder.Begin({});
  std::vector<std::thread> threads;
  for (const char c : {'a', 'b', 'c'}) {
    threads.emplace_back([&responder, c] {
      for (int i = 0; i < 1000; ++i) {
        responder.Write(std::string(10, c));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  responder.Finish();
  std::string got = client.ReadToEnd();
  got.erase(0, got.find("\r\n\r\n") + 4);
  EXPECT_EQ(got.size(), 30'000);
  for (size_t i = 0; i < got.size(); i += 10) {
    ASSERT_EQ(got.substr(i, 10), std::string(10, got[i])) << "writes are whole";
  }
}

// Reads all connections to their ends, and returns how many bytes each has got.
std::vector<size_t> ReadAll(const std::vector<std::unique_ptr<HttpSocket>>& clients) {
  const FileDescriptor poll(::epoll_create1(EPOLL_CLOEXEC));
  for (size_t i = 0; i < clients.size(); ++i) {
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = i}};
    ::epoll_ctl(poll.fd(), EPOLL_CTL_ADD, clients[i]->fd(), &event);
  }
  std::vector<size_t> sizes(clients.size());
  std::array<epoll_event, 256> events;
  std::array<char, 65536> bytes;
  for (size_t num_open = clients.size(); num_open > 0;) {
    const int count = ::epoll_wait(poll.fd(), events.data(), events.size(), /*timeout=*/60'000);
    if (count <= 0) {
      ADD_FAILURE() << "the server was silent";
      break;
    }
    for (int k = 0; k < count; ++k) {
      const size_t i = events[static_cast<size_t>(k)].data.u64;
      const ssize_t n = ::recv(clients[i]->fd(), bytes.data(), bytes.size(), 0);
      if (n > 0) {
        sizes[i] += static_cast<size_t>(n);
      } else {
        ::epoll_ctl(poll.fd(), EPOLL_CTL_DEL, clients[i]->fd(), nullptr);
        --num_open;
      }
    }
  }
  return sizes;
}

TEST(HttpStreamsTest, TwoThousandStreamsAtOnceGetEachEvent) {
  constexpr size_t kNumStreams = 2000;
  constexpr int kNumEvents = 30;
  RaiseFileLimit();
  ASSERT_GT(FileLimit(), 2 * static_cast<int>(kNumStreams) + 200);
  Mutex mutex;
  CondVar changed;
  std::vector<std::unique_ptr<HttpResponder>> responders;
  HttpServerOptions options = Loopback();
  options.max_connections = kNumStreams;
  const auto server =
      StartServer(options,
                  {{.method = "GET",
                    .path = "/page",
                    .handler = [&](const HttpRequest&, HttpResponder responder) {
                      responder.Begin({});
                      const MutexLock lock(mutex);
                      responders.push_back(std::make_unique<HttpResponder>(std::move(responder)));
                      changed.NotifyAll();
                    }}});
  std::vector<std::unique_ptr<HttpSocket>> clients;
  for (size_t i = 0; i < kNumStreams; ++i) {
    clients.push_back(std::make_unique<HttpSocket>(*server));
    clients.back()->Send("GET /page HTTP/1.0\r\n\r\n");
  }
  {
    const MutexLock lock(mutex);
    while (responders.size() < kNumStreams) {
      changed.Wait(mutex);
    }
  }
  const std::string event(200, 'x');
  std::thread writer([&] {
    const MutexLock lock(mutex);
    for (int i = 0; i < kNumEvents; ++i) {
      for (const auto& responder : responders) {
        EXPECT_TRUE(responder->Write(event));
      }
    }
    for (const auto& responder : responders) {
      responder->Finish();
    }
  });
  const std::vector<size_t> sizes = ReadAll(clients);
  writer.join();

  EXPECT_GT(sizes[0], kNumEvents * event.size());
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), sizes[0]), kNumStreams);
}

}  // namespace
}  // namespace quire
