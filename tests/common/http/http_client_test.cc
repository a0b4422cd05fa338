// HttpClient and HttpClientPool against servers of each kind of fault.
#include "common/http/http_client.h"

#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/http/http_client_pool.h"
#include "common/http/http_server.h"
#include "tests/common/http/http_socket.h"
#include "tests/common/http/pem_pair.h"
#include "tests/common/http/raw_server.h"

namespace quire {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int64_t kLong = 60 * kNanosPerSecond;
constexpr int64_t kShort = 50 * kNanosPerMilli;
constexpr size_t kMaxBody = 1 << 20;
constexpr char kAnswer[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";

Address AddressOf(const HttpServer& server) {
  return {.unix_path = "", .host = "127.0.0.1", .port = server.port()};
}

TEST(HttpClientTest, CallsShareOneConnection) {
  RawServer server({{.answers = {kAnswer, kAnswer}, .awaits_client = true}});
  {
    HttpClient client({.address = server.address()});
    const auto first =
        client.Send({.target = "/a?b=c", .headers = {{"X-A", "b"}}}, kMaxBody, kLong);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->status_code, 200);
    EXPECT_EQ(first->body, "body");
    const auto second = client.Send({.method = "POST"}, kMaxBody, kLong);
    ASSERT_TRUE(second.ok()) << second.status();
  }
  const std::string host = "Host: " + server.address().ToString();
  EXPECT_THAT(server.Join(),
              ElementsAre("GET /a?b=c HTTP/1.1\r\n" + host + "\r\nX-A: b",
                          "POST / HTTP/1.1\r\n" + host + "\r\nContent-Length: 0"));
}

// A busy kernel may bring the end after the request, so one good attempt suffices.
TEST(HttpClientTest, AConnectionThatTheServerEndedIsReplaced) {
  int num_good = 0;
  for (int i = 0; i < 20 && num_good == 0; ++i) {
    RawServer server({{.answers = {kAnswer}}, {.answers = {kAnswer}}});
    HttpClient client({.address = server.address()});
    ASSERT_TRUE(client.Send({}, kMaxBody, kLong).ok());
    server.AwaitEnds(1);
    num_good += client.Send({.method = "POST"}, kMaxBody, kLong).ok() ? 1 : 0;
  }
  EXPECT_EQ(num_good, 1);
}

TEST(HttpClientTest, OnlyAGetIsRepeatedIfTheServerEndsAnOpenConnection) {
  for (const std::string method : {"GET", "POST"}) {
    RawServer server(
        {{.answers = {kAnswer}, .reads_a_last_request = true}, {.answers = {kAnswer}}});
    HttpClient client({.address = server.address()});
    ASSERT_TRUE(client.Send({}, kMaxBody, kLong).ok());
    const auto answer = client.Send({.method = method}, kMaxBody, kLong);
    EXPECT_EQ(answer.ok(), method == "GET") << answer.status();
    if (!answer.ok()) {
      EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(ReasonOf(answer.status()), "HTTP_CUT");
      ASSERT_TRUE(client.Send({}, kMaxBody, kLong).ok());
    }
  }
}

TEST(HttpClientTest, RedirectsAreNotFollowed) {
  RawServer server({{.answers = {"HTTP/1.1 307 Temporary Redirect\r\nLocation: /b\r\n"
                                 "Content-Length: 0\r\n\r\n"}}});
  HttpClient client({.address = server.address()});
  const auto answer = client.Send({}, kMaxBody, kLong);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status_code, 307);
  EXPECT_THAT(answer->headers, Contains(Pair("Location", "/b")));
}

TEST(HttpClientTest, FaultsOfTheServerHaveReasons) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "HTTP_CUT"},
      {head, "HTTP_CUT"},
      {head + "Content-Length: 5\r\n\r\nbody", "HTTP_CUT"},
      {head + "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n", "HTTP_CUT"},
      {"220 smtp.example ESMTP\r\n", "HTTP_ANSWER"},
      {head + "X: " + std::string(100'000, 'x'), "HTTP_ANSWER_SIZE"},
      {head + "\r\n" + std::string(kMaxBody + 1, 'x'), "HTTP_ANSWER_SIZE"},
      {head + "Content-Length: 99999999999\r\n\r\n" + std::string(kMaxBody + 1, 'x'),
       "HTTP_ANSWER_SIZE"},
      {head + "\r\n" + std::string(kMaxBody, 'x'), ""},
  };
  for (const auto& [bytes, reason] : cases) {
    RawServer server({{.answers = {bytes}}});
    HttpClient client({.address = server.address()});
    const auto answer = client.Send({.method = "POST"}, kMaxBody, kLong);
    EXPECT_EQ(ReasonOf(answer.status()), reason) << answer.status();
    EXPECT_EQ(answer.ok(), reason.empty());
  }
}

TEST(HttpClientTest, AServerThatIsNotThereIsUnavailable) {
  Address closed;
  {
    const RawServer server({});
    closed = server.address();
  }
  const Address addresses[] = {closed,
                               {.unix_path = "", .host = "no-such-host.invalid", .port = 1},
                               {.unix_path = "/no/such/socket"},
                               {.unix_path = std::string(200, 'x')}};
  for (const Address& address : addresses) {
    HttpClient client({.address = address});
    const auto answer = client.Send({}, kMaxBody, kLong);
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(answer.status()), "HTTP_CONNECT") << answer.status();
    EXPECT_THAT(std::string(answer.status().message()), HasSubstr(address.ToString()));
  }
}

TEST(HttpClientTest, ASilentServerMeetsTheDeadlineAndTheNextCallConnectsAnew) {
  const std::string half = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo";
  RawServer server({{.answers = {""}, .awaits_client = true},
                    {.answers = {half}, .awaits_client = true},
                    {.answers = {kAnswer}}});
  HttpClient client({.address = server.address()});
  for (int i = 0; i < 2; ++i) {
    const auto answer = client.Send({}, kMaxBody, kShort);
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(ReasonOf(answer.status()), "HTTP_TIMEOUT");
  }
  EXPECT_TRUE(client.Send({}, kMaxBody, kLong).ok());
}

TEST(HttpClientTest, RequestsThatWouldForgeAHeaderAreRefused) {
  const HttpClientRequest requests[] = {
      {.method = "GET\r\nX:"},
      {.target = "/a b"},
      {.target = "http://a/"},
      {.target = ""},
      {.headers = {{"A", "b\r\nC: d"}}},
      {.headers = {{"A: b\r\nC", "d"}}},
      {.headers = {{"", "d"}}},
  };
  HttpClient client({.address = {.unix_path = "/no/such/socket"}});
  for (const HttpClientRequest& request : requests) {
    const auto answer = client.Send(request, kMaxBody, kLong);
    EXPECT_EQ(ReasonOf(answer.status()), "HTTP_REQUEST") << answer.status();
  }
}

TEST(HttpClientTest, ABodyGoesOverAUnixSocketAndBack) {
  std::string folder = testing::TempDir() + "quire-http-client-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  HttpServerOptions options = {.address = {.unix_path = folder + "/socket"}};
  options.max_body_bytes = options.max_body_bytes_in_flight = size_t{1} << 24;
  const auto echo = [](HttpRequest request, HttpResponder responder) {
    responder.Answer({.body = std::move(request.body), .content_type = "a/b"});
  };
  const auto server = StartServer(options, {{.method = "POST", .path = "/page", .handler = echo}});
  HttpClient client({.address = options.address});
  const std::string body(size_t{1} << 23, 'x');

  const auto answer =
      client.Send({.method = "POST", .target = "/page", .body = body}, body.size(), kLong);

  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->body, body);
  EXPECT_EQ(answer->content_type, "a/b");
  std::filesystem::remove_all(folder);
}

TEST(HttpClientTest, AnAnswerBeforeTheWholeBodyIsRead) {
  const auto server = StartServer(Loopback(), {TextRoute("/page", "text")});  // takes no bodies
  HttpClient client({.address = AddressOf(*server)});

  const auto answer = client.Send(
      {.method = "POST", .target = "/page", .body = std::string(1 << 22, 'x')}, kMaxBody, kLong);

  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->status_code, testing::AnyOf(405, 413));
  EXPECT_TRUE(client.Send({.target = "/page"}, kMaxBody, kLong).ok());
}

// A server whose stream the test writes.
class StreamServer {
 public:
  StreamServer()
      : server_(StartServer(Loopback(),
                            {{.method = "GET",
                              .path = "/page",
                              .handler = [this](const HttpRequest&, HttpResponder responder) {
                                responder.OnDisconnect([this] { is_gone_.Notify(); });
                                responder.Begin({.content_type = "text/event-stream"});
                                responder.Write("0");
                                held_ = std::make_unique<HttpResponder>(std::move(responder));
                                is_held_.Notify();
                              }}})) {}

  Address address() const { return AddressOf(*server_); }
  HttpResponder& held() {
    is_held_.Wait();
    return *held_;
  }
  void AwaitDisconnect() { is_gone_.Wait(); }

 private:
  std::unique_ptr<HttpResponder> held_;
  Event is_held_;
  Event is_gone_;
  std::unique_ptr<HttpServer> server_;
};

TEST(HttpClientTest, PiecesAreGivenAsTheyArrive) {
  StreamServer server;
  HttpClient client({.address = server.address()});
  std::string body;

  // Each piece is sent after the piece before it was received.
  const auto answer = client.Stream(
      {.target = "/page"}, kLong, [&](const HttpResponse& head, std::string_view piece) {
        EXPECT_EQ(head.content_type, "text/event-stream");
        body.append(piece);
        body.size() < 100 ? (void)server.held().Write("x") : server.held().Finish();
        return true;
      });

  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(body, "0" + std::string(99, 'x'));
}

TEST(HttpClientTest, TheCallbackAndOtherThreadsCanCancel) {
  {
    StreamServer server;
    HttpClient client({.address = server.address()});
    const auto answer = client.Stream(
        {.target = "/page"}, kLong, [](const HttpResponse&, std::string_view) { return false; });
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kCancelled);
    server.AwaitDisconnect();
  }
  StreamServer server;
  HttpClient client({.address = server.address()});
  client.Cancel();  // no call runs, so the next one is not cancelled
  Event has_begun;
  std::thread canceller([&] {
    has_begun.Wait();
    client.Cancel();
  });
  const auto answer = client.Stream(
      {.target = "/page"}, kInfiniteFuture, [&](const HttpResponse&, std::string_view) {
        has_begun.Notify();
        return true;
      });
  canceller.join();
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kCancelled);
  server.AwaitDisconnect();
}

class HttpClientTlsTest : public testing::Test {
 public:
  ~HttpClientTlsTest() override { std::filesystem::remove_all(folder_); }

 protected:
  HttpClientTlsTest() {
    std::string pattern = testing::TempDir() + "quire-http-client-tls-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }

  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return folder_ + "/" + name;
  }

  // authority: of the peer; null for none.
  std::shared_ptr<TlsFiles> Files(const PemPair* own, const PemPair* authority) const {
    TlsTexts paths;
    if (own != nullptr) {
      paths.certificate = File("cert.pem", own->certificate);
      paths.key = File("key.pem", own->key);
    }
    if (authority != nullptr) {
      paths.authorities = File("ca.pem", authority->certificate);
    }
    auto files = TlsFiles::Open(paths);
    EXPECT_TRUE(files.ok()) << files.status();
    return *files;
  }

  std::string folder_;
};

TEST_F(HttpClientTlsTest, TheServersCertificateMustHaveItsNameAndAnAuthority) {
  const PemPair pair = MakePemPair("DNS:quire.test,IP:127.0.0.1");
  const PemPair stranger = MakePemPair("DNS:quire.test");
  HttpServerOptions options = Loopback();
  options.tls = Files(&pair, nullptr);
  const auto server = StartServer(options, {TextRoute("/page", "text")});
  const auto send = [&](const std::string& host, const PemPair* authority) {
    HttpClient client(
        {.address = AddressOf(*server), .tls = Files(nullptr, authority), .host = host});
    absl::StatusOr<HttpResponse> answer;
    for (int i = 0; i < 2; ++i) {  // the second call on the same connection
      answer = client.Send({.target = "/page"}, kMaxBody, kLong);
    }
    return answer;
  };

  for (const std::string host : {"", "127.0.0.1", "quire.test"}) {
    const auto answer = send(host, &pair);
    ASSERT_TRUE(answer.ok()) << answer.status() << host;
    EXPECT_EQ(answer->body, "text");
  }
  EXPECT_EQ(ReasonOf(send("other.test", &pair).status()), "HTTP_CONNECT");
  EXPECT_EQ(ReasonOf(send("quire.test", &stranger).status()), "HTTP_CONNECT");
  EXPECT_EQ(ReasonOf(send("quire.test", nullptr).status()), "HTTP_CONNECT")
      << "the system's authorities do not know it";
}

TEST_F(HttpClientTlsTest, TheClientShowsItsCertificate) {
  const PemPair pair = MakePemPair("IP:127.0.0.1");
  HttpServerOptions options = Loopback();
  options.tls = Files(&pair, &pair);
  const auto server = StartServer(options, {TextRoute("/page", "text")});

  HttpClient anonymous({.address = AddressOf(*server), .tls = Files(nullptr, &pair)});
  const auto refused = anonymous.Send({.target = "/page"}, kMaxBody, kLong);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);

  HttpClient client({.address = AddressOf(*server), .tls = Files(&pair, &pair)});
  const auto answer = client.Send({.target = "/page"}, kMaxBody, kLong);
  EXPECT_TRUE(answer.ok()) << answer.status();
}

TEST_F(HttpClientTlsTest, ASilentOrPlainServerIsNoTlsServer) {
  const PemPair pair = MakePemPair();
  RawServer server({{.answers = {}, .awaits_client = true}, {.answers = {kAnswer}}});
  HttpClientOptions options = {.address = server.address(), .tls = Files(nullptr, &pair)};
  options.connect_timeout_ns = kShort;
  HttpClient impatient(options);
  EXPECT_EQ(ReasonOf(impatient.Send({}, kMaxBody, kLong).status()), "HTTP_TIMEOUT");
  const auto plain = StartServer(Loopback(), {});
  options.address = AddressOf(*plain);
  options.connect_timeout_ns = kLong;
  HttpClient client(options);
  EXPECT_EQ(ReasonOf(client.Send({}, kMaxBody, kLong).status()), "HTTP_CONNECT");
  HttpClient last({.address = server.address()});
  EXPECT_TRUE(last.Send({}, kMaxBody, kLong).ok());
}

TEST(HttpClientPoolTest, ManyCallsRunAtOnceEachWithItsOwnAnswer) {
  constexpr size_t kNumCalls = 200;
  HttpServerOptions options = Loopback();
  Mutex mutex;
  std::vector<std::pair<std::string, HttpResponder>> held;
  // Answers when all calls are there, so all must run at once.
  const auto server =
      StartServer(options,
                  {{.method = "GET",
                    .path = "/page",
                    .handler = [&](HttpRequest request, HttpResponder responder) {
                      const MutexLock lock(mutex);
                      held.emplace_back(std::move(request.query), std::move(responder));
                      if (held.size() == kNumCalls) {
                        for (auto& [query, waiting] : held) {
                          waiting.Answer({.body = query});
                        }
                        held.clear();
                      }
                    }}});
  HttpClientPool pool({.address = AddressOf(*server)});
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> bodies(kNumCalls);
    std::atomic<size_t> num_good = 0;
    std::atomic<size_t> num_ended = 0;
    Event have_ended;
    for (size_t i = 0; i < kNumCalls; ++i) {
      pool.Start(
          {.target = "/page?" + std::to_string(i)},
          kLong,
          [&bodies, i](const HttpResponse&, std::string_view piece) {
            bodies[i].append(piece);
            return true;
          },
          [&](const absl::StatusOr<HttpResponse>& head) {
            num_good += head.ok() ? 1 : 0;
            if (++num_ended == kNumCalls) {
              have_ended.Notify();
            }
          });
    }
    have_ended.Wait();
    EXPECT_EQ(num_good, kNumCalls);
    for (size_t i = 0; i < kNumCalls; ++i) {
      EXPECT_EQ(bodies[i], std::to_string(i));
    }
  }
}

TEST(HttpClientPoolTest, ItsEndCancelsTheCallsThatRun) {
  StreamServer server;
  absl::Status status;
  {
    HttpClientPool pool({.address = server.address()});
    pool.Start(
        {.target = "/page"},
        kInfiniteFuture,
        [](const HttpResponse&, std::string_view) { return true; },
        [&](const absl::StatusOr<HttpResponse>& head) { status = head.status(); });
    server.held();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  server.AwaitDisconnect();
}

}  // namespace
}  // namespace quire
