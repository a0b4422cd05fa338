// Requests and whole answers. tests/common/http/http_connections_test.cc has the connections'
// lives, http_streams_test.cc streamed answers, request_reader_test.cc each refused byte.
#include "common/http/http_server.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/base/mutex.h"
#include "tests/common/http/http_socket.h"

#include <sys/un.h>

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kClose[] = "Connection: close\r\n";

// Returns a route that answers with what it got.
HttpRoute EchoRoute(const std::string& method, const std::string& path) {
  return {.method = method,
          .path = path,
          .handler = [](const HttpRequest& request, HttpResponder responder) {
            responder.Answer({.body = absl::StrCat(request.method,
                                                   "|",
                                                   request.path,
                                                   "|",
                                                   request.query,
                                                   "|",
                                                   request.tenant,
                                                   "|",
                                                   request.body)});
          }};
}

HttpServerOptions WithBodies() {
  HttpServerOptions options = Loopback();
  options.max_body_bytes = 1 << 20;
  options.max_body_bytes_in_flight = 4 << 20;
  return options;
}

TEST(HttpServerTest, AnswersWithWhatTheHandlerGives) {
  const auto server = StartServer(
      Loopback(),
      {{.method = "GET",
        .path = "/page",
        .handler = [](const HttpRequest& request, HttpResponder responder) {
          responder.Answer({.status_code = 201,
                            .body = request.peer,
                            .content_type = "text/x",
                            .headers = {{"X-Id", std::string(request.Header("x-id"))}}});
        }}});
  EXPECT_EQ(Ask(*server, Request("GET /page?a=b", "Connection: close\r\nX-Id: 7\r\n")),
            "HTTP/1.1 201 Created\r\nContent-Type: text/x\r\nContent-Length: 9\r\n"
            "Cache-Control: no-store\r\nX-Id: 7\r\nConnection: close\r\n\r\n127.0.0.1");
}

TEST(HttpServerTest, AHeaderCannotForgeAnother) {
  const auto server = StartServer(Loopback(),
                                  {{.method = "GET",
                                    .path = "/page",
                                    .handler = [](const HttpRequest&, HttpResponder responder) {
                                      responder.Answer({.headers = {{"X-A", "b\r\nX-C: d"}}});
                                    }}});
  EXPECT_THAT(Ask(*server, kGetAndClose), HasSubstr("X-A: b  X-C: d\r\n"));
}

TEST(HttpServerTest, RoutesAreFoundByMethodAndPath) {
  const auto server = StartServer(
      WithBodies(),
      {EchoRoute("GET", "/a"),
       EchoRoute("POST", "/a"),
       {.method = "GET", .path = "/a/", .handler = EchoRoute("GET", "").handler, .is_prefix = true},
       {.method = "DELETE",
        .path = "/a/b/",
        .handler = EchoRoute("GET", "").handler,
        .is_prefix = true}});
  EXPECT_THAT(Ask(*server, Request("GET /a?x=1", kClose)), EndsWith("\r\n\r\nGET|/a|x=1||"));
  EXPECT_THAT(Ask(*server, Request("POST /a", "Content-Length: 2\r\nConnection: close\r\n", "hi")),
              EndsWith("\r\n\r\nPOST|/a|||hi"));
  EXPECT_THAT(Ask(*server, Request("GET /a/x%2Fy/z", kClose)), EndsWith("GET|/a/x/y/z|||"));
  EXPECT_THAT(Ask(*server, Request("DELETE /a/b/c", kClose)), EndsWith("DELETE|/a/b/c|||"));
  EXPECT_THAT(Ask(*server, Request("GET /", kClose)), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(Ask(*server, Request("GET /ab", kClose)), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(*server, Request("PUT /a", kClose)),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD, POST\r\n")));
  EXPECT_THAT(Ask(*server, Request("get /a", kClose)), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask(*server, Request("GET /a/b/c", kClose)),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: DELETE\r\n")));
}

TEST(HttpServerTest, HeadIsTheSameWithoutTheBody) {
  const auto server = StartServer(Loopback(), {TextRoute("/page", "text")});
  EXPECT_THAT(Ask(*server, Request("HEAD /page", kClose)),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                    HasSubstr("Content-Length: 4\r\n"),
                    EndsWith("\r\n\r\n")));
  EXPECT_THAT(Ask(*server, Request("HEAD /no", kClose)),
              AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("\r\n\r\n")));
}

TEST(HttpServerTest, ABodyComesWholeHoweverItIsSent) {
  const auto server = StartServer(WithBodies(), {EchoRoute("POST", "/a")});
  const std::string body(300'000, 'x');
  EXPECT_THAT(
      Ask(*server,
          Request("POST /a", absl::StrCat(kClose, "Content-Length: ", body.size(), "\r\n"), body)),
      EndsWith("POST|/a|||" + body));
  HttpSocket client(*server);
  client.Send(Request("POST /a", absl::StrCat(kClose, "Transfer-Encoding: chunked\r\n")));
  for (const char* piece : {"2\r", "\nab\r\n1", "\r\nc", "\r\n0\r\n", "X: y\r\n\r\n"}) {
    client.Send(piece);
  }
  EXPECT_THAT(client.ReadToEnd(), EndsWith("POST|/a|||abc"));
}

TEST(HttpServerTest, ABodyTooLargeIsRefusedBeforeItIsRead) {
  const auto server = StartServer(WithBodies(), {EchoRoute("POST", "/a")});
  EXPECT_THAT(Ask(*server, Request("POST /a", "Content-Length: 1048577\r\n")),
              AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("Connection: close\r\n")));
  EXPECT_THAT(Ask(*server, Request("POST /a", "Transfer-Encoding: chunked\r\n", "100001\r\n")),
              StartsWith("HTTP/1.1 413 "));
}

// The kernel would reset the connection if it were closed with unread bytes.
TEST(HttpServerTest, ARefusedClientThatGoesOnSendingGetsItsAnswer) {
  const auto server = StartServer(WithBodies(), {EchoRoute("POST", "/a")});
  HttpSocket client(*server);
  client.Send(Request("POST /a", "Content-Length: 4000000\r\n") + std::string(4'000'000, 'x'));
  EXPECT_THAT(client.ReadToEnd(), StartsWith("HTTP/1.1 413 "));
  EXPECT_EQ(client.error(), 0);
}

TEST(HttpServerTest, BodiesInFlightShareAMemory) {
  HttpServerOptions options = WithBodies();
  options.max_body_bytes_in_flight = 100'000;
  std::vector<std::pair<HttpRequest, std::unique_ptr<HttpResponder>>> held;
  Event is_held;
  const auto hold = [&](HttpRequest request, HttpResponder responder) {
    held.emplace_back(std::move(request), std::make_unique<HttpResponder>(std::move(responder)));
    is_held.Notify();
  };
  const auto server = StartServer(
      options, {{.method = "POST", .path = "/hold", .handler = hold}, EchoRoute("POST", "/a")});
  const std::string body(60'000, 'x');
  const std::string length = absl::StrCat(kClose, "Content-Length: ", body.size(), "\r\n");
  HttpSocket holder(*server);
  holder.Send(Request("POST /hold", length, body));
  is_held.Wait();

  EXPECT_THAT(Ask(*server, Request("POST /a", length, body)),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1\r\n")));
  held.front().first = HttpRequest();  // the handler needs the body no more
  EXPECT_THAT(Ask(*server, Request("POST /a", length, body)), StartsWith("HTTP/1.1 200 "));
  held.front().second->Answer({});
  EXPECT_THAT(holder.ReadToEnd(), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServerTest, AClientThatAsksFirstMaySendItsBody) {
  const auto server = StartServer(WithBodies(), {EchoRoute("POST", "/a")});
  const std::string expect = absl::StrCat(kClose, "Expect: 100-continue\r\n");
  HttpSocket client(*server);
  client.Send(Request("POST /a", expect + "Content-Length: 2\r\n"));
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hi");
  EXPECT_THAT(client.ReadToEnd(), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("|hi")));

  EXPECT_THAT(Ask(*server, Request("POST /a", expect + "Content-Length: 2000000\r\n")),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(Ask(*server, Request("POST /b", expect + "Content-Length: 2\r\n")),
              StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(*server, Request("POST /a", expect + "Content-Length: 2\r\n", "hi")),
              StartsWith("HTTP/1.1 200 "));
}

TEST(HttpServerTest, WhatCannotBeARequestIsRefusedAndTheConnectionEnds) {
  const auto server = StartServer(Loopback(), {TextRoute("/page", "text")});
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, std::string>>{
           {"no request\r\n\r\n", "400"},
           {"GET /page HTTP/1.1\n\n", "400"},
           {"GET /page HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400"},
           {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
           {std::string("\x16\x03\x01\x02\x00", 5), "400"},
           {"GET /page HTTP/1.1\r\nA: " + std::string(8192, 'a'), "431"}}) {
    EXPECT_THAT(Ask(*server, bytes),
                AllOf(StartsWith("HTTP/1.1 " + status + " "), HasSubstr("Connection: close\r\n")));
  }
}

TEST(HttpServerTest, ErrorsHaveTheBodyOfTheOwner) {
  HttpServerOptions options = Loopback();
  options.make_error = [](int status_code) {
    return HttpResponse{.body = absl::StrCat("{\"code\":", status_code, "}"),
                        .content_type = "application/json"};
  };
  const auto server = StartServer(options, {TextRoute("/page", "text")});
  EXPECT_THAT(Ask(*server, Request("GET /no", kClose)),
              AllOf(StartsWith("HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n"),
                    EndsWith("\r\n\r\n{\"code\":404}")));
  EXPECT_THAT(Ask(*server, "\n"), EndsWith("\r\n\r\n{\"code\":400}"));
}

TEST(HttpServerTest, AHandlerWithoutAnAnswerIsAnError) {
  const auto server = StartServer(
      Loopback(),
      {{.method = "GET", .path = "/page", .handler = [](const HttpRequest&, const HttpResponder&) {
        }}});
  EXPECT_THAT(Ask(*server, kGetAndClose), StartsWith("HTTP/1.1 500 "));
}

TEST(HttpServerTest, AnAnswerMayComeLaterFromAnyThread) {
  std::vector<std::thread> threads;
  Mutex mutex;
  const auto server = StartServer(
      Loopback(),
      {{.method = "GET",
        .path = "/page",
        .handler = [&](const HttpRequest&, HttpResponder responder) {
          const MutexLock lock(mutex);
          threads.emplace_back([held = std::make_shared<HttpResponder>(std::move(responder))] {
            held->Answer({.body = "later"});
          });
        }}});
  HttpSocket client(*server);
  for (int i = 0; i < 20; ++i) {
    client.Send(kGet);
    EXPECT_THAT(client.ReadAnswer(), EndsWith("\r\n\r\nlater"));
  }
  const MutexLock lock(mutex);
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(HttpServerTest, AConnectionIsKeptByTheRulesOfItsVersion) {
  const auto server = StartServer(Loopback(), {TextRoute("/page", "text")});
  HttpSocket client(*server);
  client.Send(kGet);
  EXPECT_THAT(client.ReadAnswer(), AllOf(EndsWith("text"), Not(HasSubstr("Connection:"))));
  client.Send(Request("GET /no"));
  EXPECT_THAT(client.ReadAnswer(), StartsWith("HTTP/1.1 404 "));
  client.Send("GET /page HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_THAT(client.ReadAnswer(), HasSubstr("Connection: keep-alive\r\n"));
  client.Send("GET /page HTTP/1.0\r\n\r\n");
  EXPECT_THAT(client.ReadToEnd(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("text")));
}

TEST(HttpServerTest, PipelinedRequestsAreAnsweredOneByOneInOrder) {
  std::atomic<int> num_running = 0;
  std::atomic<int> num_at_once = 0;
  std::vector<std::thread> threads;
  const auto handler = [&](const HttpRequest& request, HttpResponder responder) {
    num_at_once = std::max<int>(num_at_once, ++num_running);
    threads.emplace_back(
        [&, query = request.query, held = std::make_shared<HttpResponder>(std::move(responder))] {
          --num_running;
          held->Answer({.body = query + ";"});
        });
  };
  auto server = StartServer(Loopback(), {{.method = "GET", .path = "/page", .handler = handler}});
  // Three times the buffer of a connection.
  constexpr int kNumRequests = 600;
  std::string requests;
  std::string answers;
  for (int i = 0; i < kNumRequests; ++i) {
    requests += Request(absl::StrCat("GET /page?", i), i + 1 == kNumRequests ? kClose : "");
    answers += absl::StrCat(i, ";");
  }
  HttpSocket client(*server);
  client.Send(requests);
  std::string got;
  for (int i = 0; i < kNumRequests; ++i) {
    const std::string answer = client.ReadAnswer();
    got += answer.substr(std::min(answer.size(), answer.find("\r\n\r\n") + 4));
  }
  EXPECT_EQ(got, answers);
  EXPECT_EQ(num_at_once, 1);
  server.reset();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(HttpServerTest, RoutesNeedAKeyUnlessTheyAreOpen) {
  const std::string path = absl::StrCat(testing::TempDir(), "http-keys-", ::getpid());
  std::ofstream(path) << ApiKeyLine("qk-1", "alice") << "\n";
  HttpServerOptions options = WithBodies();
  auto keys = ApiKeys::Open(path);
  ASSERT_TRUE(keys.ok()) << keys.status();
  options.api_keys = *keys;
  HttpRoute open = TextRoute("/open", "text");
  open.is_open = true;
  const auto server = StartServer(options, {EchoRoute("POST", "/a"), open});
  const auto with = [](const std::string& authorization) {
    return Request("POST /a", absl::StrCat(kClose, authorization));
  };

  EXPECT_THAT(Ask(*server, with("Authorization: Bearer qk-1\r\n")), EndsWith("POST|/a||alice|"));
  for (const char* bad : {"",
                          "Authorization: Bearer qk-2\r\n",
                          "Authorization: Basic qk-1\r\n",
                          "Authorization: Bearer qk-1\r\nAuthorization: Bearer qk-1\r\n"}) {
    EXPECT_THAT(Ask(*server, with(bad)),
                AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("WWW-Authenticate: Bearer\r\n")));
  }
  EXPECT_THAT(Ask(*server, Request("POST /a", "Content-Length: 9\r\n")),
              StartsWith("HTTP/1.1 401 "))
      << "before the body";
  EXPECT_THAT(Ask(*server, Request("GET /open", kClose)), StartsWith("HTTP/1.1 200 "));
  std::filesystem::remove(path);
}

TEST(HttpServerTest, TheObserverSeesEachAnswerBeginAndEnd) {
  Mutex mutex;
  std::vector<std::string> events;
  HttpServerOptions options = Loopback();
  options.observe = [&](const HttpEvent& event) {
    EXPECT_GE(event.elapsed_ns, 0);
    const MutexLock lock(mutex);
    events.push_back(absl::StrCat(event.kind == HttpEvent::Kind::kBegun ? "begun " : "ended ",
                                  absl::string_view(event.route.data(), event.route.size()),
                                  " ",
                                  event.status_code,
                                  event.is_stream ? " stream" : "",
                                  event.was_cut ? " cut" : ""));
  };
  const auto stream = [](const HttpRequest& request, HttpResponder responder) {
    responder.Begin({});
    responder.Write("x");
    if (request.query.empty()) {
      responder.Finish();
    }
  };
  auto server = StartServer(
      options,
      {TextRoute("/page", "text"), {.method = "GET", .path = "/stream", .handler = stream}});
  Ask(*server, kGetAndClose);
  Ask(*server, Request("GET /stream", kClose));
  Ask(*server, Request("GET /stream?cut", kClose));
  Ask(*server, Request("GET /no", kClose));
  server.reset();

  const MutexLock lock(mutex);
  EXPECT_THAT(events,
              ElementsAre("begun /page 200",
                          "ended /page 200",
                          "begun /stream 200 stream",
                          "ended /stream 200 stream",
                          "ended /stream 0 cut",
                          "begun  404",
                          "ended  404"));
}

TEST(HttpServerTest, AUnixSocketIsAnAddress) {
  const std::string path = absl::StrCat(testing::TempDir(), "http-socket-", ::getpid());
  HttpServerOptions options = {.address = {.unix_path = path}};
  auto server = StartServer(options, {TextRoute("/page", "text")});
  const auto second = HttpServer::Start(options, {});
  EXPECT_EQ(ReasonOf(second.status()), "HTTP_BIND") << "a live server's socket stays";

  const FileDescriptor client(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  path.copy(to.sun_path, sizeof(to.sun_path) - 1);
  ASSERT_EQ(::connect(client.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  ASSERT_GT(::send(client.fd(), kGetAndClose, sizeof(kGetAndClose) - 1, 0), 0);
  std::string answer(4096, ' ');
  answer.resize(
      static_cast<size_t>(::recv(client.fd(), answer.data(), answer.size(), MSG_WAITALL)));
  EXPECT_THAT(answer, EndsWith("text"));

  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(HttpServerTest, APortThatIsTakenIsAnError) {
  const auto server = StartServer(Loopback(), {});
  HttpServerOptions options = Loopback();
  options.address.port = server->port();
  const auto second = HttpServer::Start(options, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(second.status()), "HTTP_BIND");
}

}  // namespace
}  // namespace quire
