#include "common/http/http_pages.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

namespace quire {
namespace {

using boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kGet[] = "GET /page HTTP/1.1\r\nHost: a\r\n\r\n";
constexpr char kGetAndClose[] = "GET /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

std::unique_ptr<HttpServer> StartServer() {
  auto server = ServePages(
      "127.0.0.1",
      0,
      {{"/page", [] { return HttpResponse{.status_code = 200, .body = "text of the page"}; }},
       {"/no", [] { return HttpResponse{.status_code = 503, .body = "not now"}; }}});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

class Client {
 public:
  explicit Client(const HttpServer& server) : socket_(context_) {
    socket_.connect(tcp::endpoint{boost::asio::ip::address_v4::loopback(),
                                  static_cast<uint16_t>(server.port())});
  }

  void Send(const std::string& bytes) {
    ErrorCode ignored;  // the server may have closed it
    boost::asio::write(socket_, boost::asio::buffer(bytes), ignored);
  }

  // All that comes until the server closes.
  std::string ReadToEnd() {
    std::string text;
    ErrorCode end;
    boost::asio::read(socket_, boost::asio::dynamic_buffer(text), end);
    return text;
  }

  std::string Read(size_t size) {
    std::string text(size, ' ');
    ErrorCode error;
    text.resize(boost::asio::read(socket_, boost::asio::buffer(text), error));
    return text;
  }

 private:
  boost::asio::io_context context_;
  tcp::socket socket_;
};

std::string Ask(const HttpServer& server, const std::string& request) {
  Client client(server);
  client.Send(request);
  return client.ReadToEnd();
}

std::string Request(const std::string& first_line, const std::string& more = "") {
  return first_line + "\r\nHost: a\r\nConnection: close\r\n" + more + "\r\n";
}

TEST(HttpPagesTest, AnswersWithWhatThePageSays) {
  const auto server = StartServer();
  EXPECT_THAT(Ask(*server, kGetAndClose),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                    HasSubstr("Content-Length: 16\r\n"),
                    HasSubstr("Content-Type: text/plain; charset=utf-8\r\n"),
                    HasSubstr("Cache-Control: no-store\r\n"),
                    EndsWith("\r\n\r\ntext of the page")));
  EXPECT_THAT(Ask(*server, Request("GET /no?verbose HTTP/1.1")),
              AllOf(StartsWith("HTTP/1.1 503 Service Unavailable\r\n"), EndsWith("not now")));
}

TEST(HttpPagesTest, HeadIsTheSameWithoutTheBody) {
  const auto server = StartServer();
  EXPECT_THAT(Ask(*server, Request("HEAD /page HTTP/1.1")),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                    HasSubstr("Content-Length: 16\r\n"),
                    EndsWith("\r\n\r\n")));
}

TEST(HttpPagesTest, WhatItDoesNotServeIsRefused) {
  const auto server = StartServer();
  EXPECT_THAT(Ask(*server, Request("GET /pages HTTP/1.1")), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(*server, Request("GET /page/ HTTP/1.1")), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(*server, Request("DELETE /page HTTP/1.1")),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")));
  EXPECT_THAT(Ask(*server, "no request\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(*server, "GET /page HTTP/1.1\r\nA: " + std::string(8192, 'a')),
              StartsWith("HTTP/1.1 431 "));
}

TEST(HttpPagesTest, ABodyIsRefusedUnread) {
  const auto server = StartServer();
  for (const char* line : {"POST /page HTTP/1.1", "GET /page HTTP/1.1"}) {
    // The megabyte never comes.
    EXPECT_THAT(Ask(*server, Request(line, "Content-Length: 1048576\r\n")),
                StartsWith("HTTP/1.1 413 "));
    EXPECT_THAT(Ask(*server, Request(line, "Transfer-Encoding: chunked\r\n")),
                StartsWith("HTTP/1.1 413 "));
  }
}

// As curl --http2 asks.
TEST(HttpPagesTest, WhoOffersAnotherProtocolIsAnsweredInThisOne) {
  const auto server = StartServer();
  EXPECT_THAT(Ask(*server,
                  "GET /page HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"
                  "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("text of the page")));
}

TEST(HttpPagesTest, AConnectionMayAskAgain) {
  const auto server = StartServer();
  Client client(*server);
  client.Send(kGet);
  EXPECT_THAT(client.Read(8), "HTTP/1.1");
  client.Send(kGetAndClose);
  EXPECT_THAT(
      client.ReadToEnd(),
      AllOf(HasSubstr("text of the pageHTTP/1.1 200 OK\r\n"), EndsWith("text of the page")));
}

TEST(HttpPagesTest, OneMoreConnectionEndsTheOneThatWasSilentLongest) {
  const auto server = StartServer();
  std::vector<std::unique_ptr<Client>> clients;
  const auto connect = [&] { clients.push_back(std::make_unique<Client>(*server)); };
  for (size_t i = 0; i < kMaxPageConnections; ++i) {
    connect();
    clients.back()->Send("GET /page HTTP/1.1\r\nHost:");  // and nothing more
  }
  // The first one is heard: the second one has now been silent longest.
  clients[0]->Send(" a\r\n\r\n");
  EXPECT_THAT(clients[0]->Read(8), "HTTP/1.1");
  EXPECT_THAT(Ask(*server, kGetAndClose), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(clients[1]->ReadToEnd(), IsEmpty());
  clients[2]->Send(" a\r\n\r\n");
  EXPECT_THAT(clients[2]->Read(8), "HTTP/1.1");
}

TEST(HttpPagesTest, ClientsThatDoNotReadLeaveRoomForAHealthCheck) {
  const std::string large(size_t{4} << 20, 'x');  // more than the kernel takes for a client
  const auto server = ServePages("127.0.0.1",
                                 0,
                                 {{"/large", [&large] { return HttpResponse{.body = large}; }},
                                  {"/page", [] { return HttpResponse{.body = "text"}; }}});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < kMaxPageConnections; ++i) {
    clients.push_back(std::make_unique<Client>(**server));
    clients.back()->Send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_THAT(clients.back()->Read(8), "HTTP/1.1");
  }
  EXPECT_THAT(Ask(**server, kGetAndClose), EndsWith("text"));
}

TEST(HttpPagesTest, APageIsMadeOnceForAllWhoAskMeanwhile) {
  std::atomic<int> num_made = 0;
  absl::Notification has_begun;
  absl::Notification all_have_asked;
  const auto make = [&] {
    if (num_made++ == 0) {
      has_begun.Notify();
      all_have_asked.WaitForNotification();
    }
    return HttpResponse{.status_code = 200, .body = "text of the page"};
  };
  const auto server = ServePages("127.0.0.1", 0, {{"/page", make}});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < kMaxPageConnections; ++i) {
    clients.push_back(std::make_unique<Client>(**server));
    // The second request comes behind the answer to the first: at most as often again.
    clients.back()->Send(std::string(kGet) + kGetAndClose);
    if (i == 0) {
      has_begun.WaitForNotification();
    }
  }
  all_have_asked.Notify();
  for (const auto& client : clients) {
    EXPECT_THAT(
        client->ReadToEnd(),
        AllOf(HasSubstr("text of the pageHTTP/1.1 200 OK\r\n"), EndsWith("text of the page")));
  }
  // The first alone, then those of each of the four times that connections are taken, twice each.
  EXPECT_LE(num_made, 9);
}

TEST(HttpPagesTest, WhoeverAsksWithoutPauseTakesAFifthOfTheTimeForMaking) {
  std::atomic<int> num_made = 0;
  const auto make = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    return HttpResponse{.status_code = 200, .body = std::to_string(++num_made)};
  };
  const auto server = ServePages("127.0.0.1", 0, {{"/page", make}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(Ask(**server, kGetAndClose), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
  const auto took = std::chrono::steady_clock::now() - begin;

  // And the burst.
  EXPECT_LE(num_made, (took + std::chrono::milliseconds(100)) / std::chrono::milliseconds(20) + 1);
  const int before = num_made;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_THAT(Ask(**server, kGetAndClose), EndsWith("\r\n" + std::to_string(before + 1)));
}

TEST(HttpPagesTest, TheNextToAskGetsAPageOfNow) {
  int num_made = 0;
  const auto make = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return HttpResponse{.status_code = 200, .body = std::to_string(++num_made)};
  };
  const auto server = ServePages("127.0.0.1", 0, {{"/page", make}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto begin = std::chrono::steady_clock::now();
  const std::string first = Ask(**server, kGetAndClose);
  const std::string second = Ask(**server, kGetAndClose);
  if (std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(20)) {
    GTEST_SKIP() << "the machine stood still: making a page took a burst's time";
  }
  EXPECT_THAT(first, EndsWith("\r\n1"));
  EXPECT_THAT(second, EndsWith("\r\n2"));
}

TEST(HttpPagesTest, EndsBesideOpenConnections) {
  auto server = StartServer();
  Client silent(*server);
  Client between(*server);
  between.Send(kGet);
  EXPECT_THAT(between.Read(8), "HTTP/1.1");
  server.reset();
  EXPECT_THAT(silent.ReadToEnd(), IsEmpty());
}

TEST(HttpPagesTest, APortThatIsTakenIsAnError) {
  const auto server = StartServer();
  const auto second = ServePages("127.0.0.1", server->port(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(second.status()), "HTTP_BIND");
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(server->port())));
}

TEST(HttpPagesTest, TheRootListsThePaths) {
  const auto server = ServePages("127.0.0.1", 0, {{"/b", nullptr}, {"/a", nullptr}});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Ask(**server, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("\r\n\r\n/b\n/a\n")));
}

TEST(HttpPagesTest, AllAddressesOfANameAreListenedOn) {
  const auto server = ServePages("localhost", 0, {});
  ASSERT_TRUE(server.ok()) << server.status() << "; /etc/hosts must have a localhost";
  EXPECT_THAT(Ask(**server, kGetAndClose), StartsWith("HTTP/1.1 404 "));
}

TEST(HttpPagesTest, ADocumentHasItsPolicyAndNoOtherPageHasOne) {
  auto server = ServePages(
      "127.0.0.1", 0, {{"/page", [] {
                          return HttpResponse{
                              .status_code = 200,
                              .body = "<p>",
                              .content_type = "text/html",
                              .headers = {{"Content-Security-Policy", "default-src 'none'"}}};
                        }}});
  ASSERT_TRUE(server.ok()) << server.status();
  Client document(**server);
  const std::unique_ptr<HttpServer> plain_server = StartServer();
  Client plain(*plain_server);

  document.Send(kGetAndClose);
  plain.Send(kGetAndClose);

  EXPECT_THAT(document.ReadToEnd(),
              AllOf(HasSubstr("\r\nContent-Security-Policy: default-src 'none'\r\n"),
                    HasSubstr("\r\nCache-Control: no-store\r\n")));
  EXPECT_THAT(plain.ReadToEnd(), Not(HasSubstr("Security")));
}

}  // namespace
}  // namespace quire
