#include "common/http/http_server.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/file_limit.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/http/http_connection.h"
#include "common/http/http_listener.h"
#include "common/http/http_tls.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace quire {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

// File descriptors left to the rest of the process, but at most a quarter of the limit.
constexpr int kReservedFiles = 64;
// Interval of the deadline checks, which is also the precision of every timeout.
constexpr std::chrono::milliseconds kTick(250);
// Upper bound on the connections that a listening socket accepts in one turn of the event loop.
// Open connections must wait meanwhile.
constexpr size_t kMaxAcceptsInATurn = 64;
// A connection is slow if more than kSlowBytes of its answer are unsent, and its pending write
// began over kSlowNs ago. If the client reads, even a burst of large answers takes less time.
constexpr size_t kSlowBytes = 16 << 10;
constexpr int64_t kSlowNs = 2 * kNanosPerSecond;

HttpServerOptions Bounded(HttpServerOptions options) {
  const int limit = FileLimit();
  const auto most = static_cast<size_t>(limit - std::min(kReservedFiles, limit / 4));
  options.max_connections = std::min(options.max_connections, most);
  return options;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions options, std::vector<HttpRoute> routes)
      : tls_(HttpTls::Side::kServer, options.tls),
        connections_(Bounded(std::move(options)), std::move(routes)),
        listener_(connections_.context),
        tick_(connections_.context) {
    HttpResponse response = connections_.ErrorOf(503);
    AppendResponseHead(
        response, /*is_chunked=*/false, /*is_http_1_0=*/false, /*keep_alive=*/false, &full_answer_);
    full_answer_ += response.body;
  }

  ~Impl() {
    connections_.context.stop();
    if (thread_.joinable()) {
      thread_.join();
    }
    for (HttpConnections::List* list : {&connections_.idle, &connections_.busy}) {
      while (!list->empty()) {
        std::shared_ptr<HttpConnection>(list->front())->Close();
      }
    }
  }

  absl::Status Listen() {
    QUIRE_RETURN_IF_ERROR(tls_.Update());
    const Address& address = connections_.options.address;
    if (const ErrorCode error = listener_.Bind(address); error) {
      return Error(
          absl::StatusCode::kUnavailable,
          "HTTP_BIND",
          absl::StrCat("http: cannot listen on ", address.ToString(), " (", error.message(), ")"));
    }
    return absl::OkStatus();
  }

  void Run() {
    // A turn that accepts more than max_connections would close its first connections before their
    // requests are read. A host name usually has two addresses, and so two listening sockets. With
    // a quarter of max_connections for each socket, a turn accepts at most half.
    const size_t max_accepts =
        std::clamp<size_t>(connections_.options.max_connections / 4, 1, kMaxAcceptsInATurn);
    listener_.Start(max_accepts,
                    [this](HttpStream::Socket socket) { return Add(std::move(socket)); });
    thread_ = std::thread([this] { connections_.context.run(); });
  }

  void Drain(std::function<void()> done) {
    asio::post(connections_.context, [this, done = std::move(done)] {
      listener_.Close();
      connections_.on_empty = done;
      ForAll([](HttpConnection& connection) { connection.Drain(); });
      connections_.is_draining = true;
      if (connections_.size() == 0) {
        connections_.on_empty();
      }
    });
  }

  void Post(std::function<void()> task) { asio::post(connections_.context, std::move(task)); }

  int port() const { return listener_.port(); }

 private:
  // Adds a connection. Returns false if another connection was closed to make room. The listener
  // then accepts no more in this turn. Otherwise new connections would close each other before they
  // are answered, because an answer takes a few turns.
  bool Add(HttpStream::Socket socket) {
    const bool is_full = connections_.size() >= connections_.options.max_connections;
    if (is_full) {
      const std::shared_ptr<HttpConnection> least_recent = LeastRecent();
      if (least_recent == nullptr) {
        RefuseFull(socket);
        return true;
      }
      least_recent->Close();
    }
    if (const absl::Status status = tls_.Update(); !status.ok()) {
      LogWarning("new TLS files are not used, the old ones stay",
                 {{"cause", std::string(status.message())}});
    }
    connections_.idle.push_back(
        std::make_shared<HttpConnection>(std::move(socket), tls_.context(), connections_));
    connections_.idle.back()->Start(std::prev(connections_.idle.end()));
    if (!std::exchange(is_ticking_, true)) {
      Tick();
    }
    return !is_full;
  }

  // Returns the connection to close for a new one, or null if no connection may be closed.
  std::shared_ptr<HttpConnection> LeastRecent() const {
    if (!connections_.options.replaces_running) {
      return connections_.idle.empty() ? nullptr : connections_.idle.front();
    }
    std::shared_ptr<HttpConnection> found;
    for (const HttpConnections::List* list : {&connections_.busy, &connections_.idle}) {
      for (const auto& connection : *list) {
        if (found == nullptr || connection->since() < found->since()) {
          found = connection;
        }
      }
    }
    return found;
  }

  // Sends 503 if the socket takes it at once. A TLS client gets nothing, because a refused
  // connection must not cost a handshake.
  void RefuseFull(HttpStream::Socket& socket) {
    if (tls_.context() == nullptr) {
      ErrorCode ignored;
      socket.non_blocking(true, ignored);
      socket.write_some(asio::buffer(full_answer_), ignored);
      socket.shutdown(HttpStream::Socket::shutdown_send, ignored);
    }
  }

  void Tick() {
    tick_.expires_after(kTick);
    tick_.async_wait([this](ErrorCode) {
      const Instant now = SteadyNow();
      ForAll([now](HttpConnection& connection) { connection.CheckDeadline(now); });
      CutSlow(now);
      is_ticking_ = connections_.size() > 0;
      if (is_ticking_) {
        Tick();
      }
    });
  }

  // Closes slow connections, the longest write first, until the unsent bytes of all connections are
  // at most max_total_unsent_bytes.
  void CutSlow(Instant now) {
    size_t unsent_bytes = 0;
    std::vector<std::shared_ptr<HttpConnection>> slow;
    for (const auto& connection : connections_.busy) {
      const size_t of_this = connection->unsent_bytes();
      unsent_bytes += of_this;
      if (of_this > kSlowBytes && connection->write_begun_at() < now - kSlowNs) {
        slow.push_back(connection);
      }
    }
    std::sort(slow.begin(), slow.end(), [](const auto& one, const auto& other) {
      return one->write_begun_at() < other->write_begun_at();
    });
    for (const auto& connection : slow) {
      if (unsent_bytes <= connections_.options.max_total_unsent_bytes) {
        return;
      }
      unsent_bytes -= std::min(unsent_bytes, connection->unsent_bytes());
      connection->Close();
    }
  }

  // Calls `act` with each connection. `act` may close the connection, or move it to another list.
  template <typename Act>
  void ForAll(const Act& act) {
    for (HttpConnections::List* list : {&connections_.busy, &connections_.idle}) {
      for (auto place = list->begin(); place != list->end();) {
        const std::shared_ptr<HttpConnection> connection = *place++;
        act(*connection);
      }
    }
  }

  HttpTls tls_;
  HttpConnections connections_;
  HttpListener listener_;
  asio::steady_timer tick_;
  bool is_ticking_ = false;
  std::string full_answer_;  // the 503 of RefuseFull
  std::thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->port(); }

void HttpServer::Post(std::function<void()> task) { impl_->Post(std::move(task)); }

void HttpServer::Drain(std::function<void()> done) { impl_->Drain(std::move(done)); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                              std::vector<HttpRoute> routes) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(routes));
  QUIRE_RETURN_IF_ERROR(impl->Listen());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace quire
