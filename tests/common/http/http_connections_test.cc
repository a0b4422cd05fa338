// The lives of connections: limits, timeouts, clients that leave, draining.
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/mutex.h"
#include "common/http/http_server.h"
#include "tests/common/http/http_socket.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Keeps the responders of requests, and counts their disconnects.
class Holder {
 public:
  HttpRoute Route(const std::string& method = "GET") {
    return {.method = method,
            .path = "/hold",
            .handler = [this](const HttpRequest& request, HttpResponder responder) {
              const MutexLock lock(mutex_);
              responder.OnDisconnect([this] {
                const MutexLock callback_lock(mutex_);
                ++num_disconnects_;
                changed_.NotifyAll();
              });
              if (request.query == "stream") {
                responder.Begin({});
                responder.Write("begun");
              }
              held_.push_back(std::make_unique<HttpResponder>(std::move(responder)));
              changed_.NotifyAll();
            }};
  }

  void WaitForRequests(size_t count) {
    const MutexLock lock(mutex_);
    while (held_.size() < count) {
      changed_.Wait(mutex_);
    }
  }
  void WaitForDisconnects(int count) {
    const MutexLock lock(mutex_);
    while (num_disconnects_ < count) {
      changed_.Wait(mutex_);
    }
  }
  int num_disconnects() {
    const MutexLock lock(mutex_);
    return num_disconnects_;
  }
  HttpResponder& held(size_t i) {
    const MutexLock lock(mutex_);
    return *held_[i];
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int num_disconnects_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<HttpResponder>> held_ ABSL_GUARDED_BY(mutex_);
};

constexpr char kHold[] = "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n";
constexpr char kHoldStream[] = "GET /hold?stream HTTP/1.1\r\nHost: a\r\n\r\n";

HttpServerOptions AtMost(size_t max_connections) {
  HttpServerOptions options = Loopback();
  options.max_connections = max_connections;
  options.max_body_bytes = 1000;
  options.max_body_bytes_in_flight = 10000;
  return options;
}

TEST(HttpConnectionsTest, ANewClientEndsTheConnectionThatIsIdleLongest) {
  Holder holder;
  const auto server = StartServer(AtMost(4), {TextRoute("/page", "text"), holder.Route()});
  HttpSocket running(*server);
  running.Send(kHold);
  holder.WaitForRequests(1);
  HttpSocket silent(*server);
  HttpSocket halfway(*server);
  halfway.Send("GET /page HTTP/1.1\r\nHost:");
  HttpSocket answered(*server);
  answered.Send(kGet);
  EXPECT_THAT(answered.ReadAnswer(), EndsWith("text"));

  HttpSocket first(*server);
  first.Send(kGet);
  EXPECT_THAT(first.ReadAnswer(), EndsWith("text"));
  EXPECT_THAT(silent.ReadToEnd(), IsEmpty());
  HttpSocket second(*server);
  second.Send(kGet);
  EXPECT_THAT(second.ReadAnswer(), EndsWith("text"));
  EXPECT_THAT(halfway.ReadToEnd(), IsEmpty());

  answered.Send(kGet);
  EXPECT_THAT(answered.ReadAnswer(), EndsWith("text")) << "the last answer counts, not accept";
  holder.held(0).Answer({.body = "held"});
  EXPECT_THAT(running.ReadAnswer(), EndsWith("held"));
}

TEST(HttpConnectionsTest, RunningRequestsAreNeverDroppedForANewClient) {
  Holder holder;
  const auto server = StartServer(AtMost(2), {TextRoute("/page", "text"), holder.Route()});
  HttpSocket first(*server);
  first.Send(kHold);
  HttpSocket second(*server);
  second.Send(kHold);
  holder.WaitForRequests(2);

  EXPECT_THAT(HttpSocket(*server).ReadToEnd(),
              AllOf(StartsWith("HTTP/1.1 503 "),
                    HasSubstr("Retry-After: 1\r\n"),
                    HasSubstr("Connection: close\r\n")));

  for (size_t i = 0; i < 2; ++i) {
    holder.held(i).Answer({.body = "held"});
  }
  EXPECT_THAT(first.ReadAnswer(), EndsWith("held"));
  EXPECT_THAT(second.ReadAnswer(), EndsWith("held"));
  EXPECT_THAT(Ask(*server, kGetAndClose), EndsWith("text"));
}

TEST(HttpConnectionsTest, WhereRunningRequestsAreReplacedTheLeastRecentConnectionEnds) {
  Holder holder;
  HttpServerOptions options = AtMost(2);
  options.replaces_running = true;
  const auto server = StartServer(options, {TextRoute("/page", "text"), holder.Route()});
  HttpSocket running(*server);
  running.Send(kHold);
  holder.WaitForRequests(1);
  HttpSocket idle(*server);
  idle.Send(kGet);
  EXPECT_THAT(idle.ReadAnswer(), EndsWith("text"));

  HttpSocket third(*server);
  third.Send(kHold);
  EXPECT_THAT(running.ReadToEnd(), IsEmpty());
  holder.WaitForRequests(2);
  HttpSocket fourth(*server);
  fourth.Send(kGet);
  EXPECT_THAT(fourth.ReadAnswer(), EndsWith("text"));
  EXPECT_THAT(idle.ReadToEnd(), IsEmpty());
  holder.held(1).Answer({.body = "held"});
  EXPECT_THAT(third.ReadAnswer(), EndsWith("held"));
}

TEST(HttpConnectionsTest, APipelinedRequestDoesNotMakeItsConnectionRecent) {
  Holder holder;
  HttpServerOptions options = AtMost(2);
  options.replaces_running = true;
  const auto server = StartServer(options, {TextRoute("/page", "text"), holder.Route()});
  HttpSocket pipelining(*server);
  pipelining.Send(std::string(kHold) + kHold);
  holder.WaitForRequests(1);
  HttpSocket single(*server);
  single.Send(kHold);
  holder.WaitForRequests(2);
  holder.held(0).Answer({.body = "held"});
  EXPECT_THAT(pipelining.ReadAnswer(), EndsWith("held"));
  holder.WaitForRequests(3);

  EXPECT_THAT(Ask(*server, kGetAndClose), EndsWith("text"));
  EXPECT_THAT(pipelining.ReadToEnd(), IsEmpty());
  holder.held(1).Answer({.body = "held"});
  EXPECT_THAT(single.ReadAnswer(), EndsWith("held"));
}

TEST(HttpConnectionsTest, ABodyThatComesIsFresherThanIdleConnections) {
  const auto server = StartServer(
      AtMost(2),
      {TextRoute("/page", "text"),
       {.method = "POST", .path = "/page", .handler = TextRoute("", "posted").handler}});
  HttpSocket uploading(*server);
  HttpSocket idle(*server);
  idle.Send(kGet);
  EXPECT_THAT(idle.ReadAnswer(), EndsWith("text"));
  uploading.Send(Request("POST /page", "Expect: 100-continue\r\nContent-Length: 2\r\n"));
  EXPECT_THAT(uploading.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 100 "));

  HttpSocket third(*server);
  third.Send(kGet);
  EXPECT_THAT(third.ReadAnswer(), EndsWith("text"));
  EXPECT_THAT(idle.ReadToEnd(), IsEmpty());
  uploading.Send("hi");
  EXPECT_THAT(uploading.ReadAnswer(), EndsWith("posted"));
}

TEST(HttpConnectionsTest, AHandlerIsToldOnceThatItsClientIsGone) {
  for (const char* request : {kHold, kHoldStream}) {
    for (const bool is_reset : {false, true}) {
      Holder holder;
      const auto server = StartServer(AtMost(4), {TextRoute("/page", "text"), holder.Route()});
      {
        HttpSocket client(*server);
        client.Send(request);
        holder.WaitForRequests(1);
        if (request == kHoldStream) {
          EXPECT_THAT(client.ReadUntil("begun"), EndsWith("begun"));
        }
        if (is_reset) {
          client.Reset();
        }
      }
      holder.WaitForDisconnects(1);
      if (request == kHoldStream) {
        EXPECT_FALSE(holder.held(0).Write("x"));
        holder.held(0).Finish();
      } else {
        holder.held(0).Answer({});
      }
      EXPECT_THAT(Ask(*server, kGetAndClose), EndsWith("text"));
      EXPECT_EQ(holder.num_disconnects(), 1);
    }
  }
}

TEST(HttpConnectionsTest, AHandlerThatAsksAfterItsClientLeftIsToldToo) {
  std::unique_ptr<HttpResponder> held;
  Event is_held;
  Event is_gone;
  HttpServerOptions options = Loopback();
  options.observe = [&](const HttpEvent& event) {
    if (event.was_cut) {
      is_gone.Notify();
    }
  };
  const auto server = StartServer(options,
                                  {{.method = "GET",
                                    .path = "/hold",
                                    .handler = [&](const HttpRequest&, HttpResponder responder) {
                                      held = std::make_unique<HttpResponder>(std::move(responder));
                                      is_held.Notify();
                                    }}});
  {
    const HttpSocket client(*server);
    client.Send(kHold);
    is_held.Wait();
  }
  is_gone.Wait();
  Event is_told;
  // The observer runs before the exchange is told, so the callback may come a moment later.
  held->OnDisconnect([&] { is_told.Notify(); });
  is_told.Wait();
}

TEST(HttpConnectionsTest, AClientThatEndsItsSendingSideIsGoneUnlessItsAnswerWasGiven) {
  Holder holder;
  // More than the sockets hold, so that the end is noticed before the answer is sent.
  const std::string large(32 << 20, 'x');
  const auto server = StartServer(AtMost(4), {TextRoute("/page", large), holder.Route()});
  HttpSocket given(*server);
  given.Send(kGet);
  given.EndSending();
  EXPECT_TRUE(given.ReadToEnd().ends_with("\r\n\r\n" + large));

  HttpSocket waiting(*server);
  waiting.Send(kHold);
  holder.WaitForRequests(1);
  waiting.EndSending();
  holder.WaitForDisconnects(1);
  EXPECT_THAT(waiting.ReadToEnd(), IsEmpty());
}

TEST(HttpConnectionsTest, AClientThatLeavesBehindPipelinedRequestsIsNoticed) {
  Holder holder;
  const auto server = StartServer(AtMost(4), {holder.Route()});
  {
    const HttpSocket client(*server);
    client.Send(std::string(kHold) + kHold + kHold);
    holder.WaitForRequests(1);
  }
  holder.WaitForDisconnects(1);
}

// Slow clients of each kind, side by side: the limits are 10 s.
TEST(HttpConnectionsTest, ARequestThatDoesNotGetOnIsEnded) {
  const auto server = StartServer(
      AtMost(8),
      {TextRoute("/page", "text"),
       {.method = "POST", .path = "/page", .handler = TextRoute("", "posted").handler}});
  HttpSocket silent(*server);
  HttpSocket header(*server);
  header.Send("GET /page HTTP/1.1\r\nHost:");
  HttpSocket body(*server);
  body.Send(Request("POST /page", "Content-Length: 100\r\n", "half"));
  HttpSocket answered(*server);
  answered.Send(kGet);
  EXPECT_THAT(answered.ReadAnswer(), EndsWith("text"));

  EXPECT_THAT(silent.ReadToEnd(), IsEmpty());
  EXPECT_THAT(header.ReadToEnd(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(body.ReadToEnd(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(answered.ReadToEnd(), IsEmpty());
}

TEST(HttpConnectionsTest, DrainingEndsWhatIsIdleAndFinishesWhatRuns) {
  Holder holder;
  const auto server = StartServer(
      AtMost(8),
      {TextRoute("/page", "text"),
       holder.Route(),
       {.method = "POST", .path = "/page", .handler = TextRoute("", "posted").handler}});
  HttpSocket silent(*server);
  HttpSocket kept(*server);
  kept.Send(kGet);
  EXPECT_THAT(kept.ReadAnswer(), EndsWith("text"));
  HttpSocket uploading(*server);
  uploading.Send(Request("POST /page", "Expect: 100-continue\r\nContent-Length: 2\r\n"));
  EXPECT_THAT(uploading.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 100 "));
  HttpSocket waiting(*server);
  waiting.Send(std::string(kHold) + kGet);
  holder.WaitForRequests(1);
  HttpSocket streaming(*server);
  streaming.Send(kHoldStream);
  holder.WaitForRequests(2);
  EXPECT_THAT(streaming.ReadUntil("begun"), EndsWith("begun"));

  std::atomic<bool> has_drained = false;
  Event drained;
  server->Drain([&] {
    has_drained = true;
    drained.Notify();
  });
  EXPECT_THAT(silent.ReadToEnd(), IsEmpty());
  EXPECT_THAT(kept.ReadToEnd(), IsEmpty());
  uploading.Send("hi");
  EXPECT_THAT(uploading.ReadToEnd(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("posted")));
  holder.held(0).Answer({.body = "held"});
  EXPECT_THAT(waiting.ReadToEnd(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("held")))
      << "and the request behind it is not answered";
  EXPECT_FALSE(has_drained);
  holder.held(1).Write("end");
  holder.held(1).Finish();
  EXPECT_THAT(streaming.ReadToEnd(), EndsWith("3\r\nend\r\n0\r\n\r\n"));
  drained.Wait();
}

TEST(HttpConnectionsTest, AServerWithoutConnectionsHasDrainedAtOnce) {
  const auto server = StartServer(Loopback(), {});
  Event drained;
  server->Drain([&] { drained.Notify(); });
  drained.Wait();
}

TEST(HttpConnectionsTest, AServerEndsBesideConnectionsInEachState) {
  Holder holder;
  auto server = StartServer(AtMost(8), {TextRoute("/page", "text"), holder.Route()});
  HttpSocket silent(*server);
  HttpSocket header(*server);
  header.Send("GET /page");
  HttpSocket waiting(*server);
  waiting.Send(kHold);
  holder.WaitForRequests(1);
  HttpSocket streaming(*server);
  streaming.Send(kHoldStream);
  HttpSocket lingering(*server);
  lingering.Send(kGetAndClose);
  EXPECT_THAT(lingering.ReadToEnd(), EndsWith("text"));
  holder.WaitForRequests(2);

  server.reset();

  EXPECT_EQ(holder.num_disconnects(), 2);
  EXPECT_THAT(silent.ReadToEnd(), IsEmpty());
  holder.held(0).Answer({});  // a responder may outlive its server
  EXPECT_FALSE(holder.held(1).Write("x"));
}

}  // namespace
}  // namespace quire
