#include "common/http/http_server.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

namespace quire {
// This namespace has a name, because HttpServer::Impl has external linkage and holds these types.
namespace http_server_internal {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Response = http::response<http::string_body>;

constexpr uint32_t kMaxRequestBytes = 8192;
constexpr std::chrono::seconds kReadTimeout(10);
constexpr std::chrono::seconds kWriteTimeout(10);
// Retry interval of accept while the process has no file descriptor left.
constexpr std::chrono::milliseconds kAcceptPause(100);
constexpr int64_t kRefusalLogIntervalNs = 10 * kNanosPerSecond;
// A cached page is served for at most this long, even if rendering is slow.
constexpr int64_t kMaxPageAgeNs = 20 * kNanosPerMilli;
// Burst of SharedPage's token bucket, so that a few requests in a row each get a fresh page.
constexpr int64_t kBurstNs = 100 * kNanosPerMilli;
// Upper bound on the connections that one listening socket accepts in one turn of the event loop. A
// host name usually has two addresses, so two sockets accept at most half of kMaxConnections in a
// turn. If a turn could accept more than kMaxConnections, its last connections would close its
// first ones before their requests are read.
constexpr size_t kMaxAcceptsAtOnce = HttpServer::kMaxConnections / 4;

Response ErrorResponse(http::status status) {
  Response response(status, /*version=*/11);
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.body() = std::string(http::obsolete_reason(status)) + "\n";
  return response;
}

class Connection;

// A page and the connections waiting for it. Concurrent requests share one rendering. A token
// bucket limits rendering: a page that takes t ns to render costs 5 t ns of the bucket, so that
// rendering takes at most a fifth of the thread's time. Over the limit, requests get the previous
// page.
class SharedPage {
 public:
  SharedPage(asio::io_context& context, HttpPage page)
      : context_(context), page_(std::move(page)) {}

  const std::string& path() const { return page_.path; }

  void Ask(std::shared_ptr<Connection> connection) {
    if (waiting_.empty()) {
      // The event loop runs AnswerAll after it has read the requests that have already arrived, so
      // that these requests share one rendering.
      asio::post(context_, [this] { AnswerAll(); });
    }
    waiting_.push_back(std::move(connection));
  }

 private:
  void AnswerAll();

  asio::io_context& context_;
  const HttpPage page_;
  HttpResponse made_;
  Instant debt_until_ = 0;
  std::vector<std::shared_ptr<Connection>> waiting_;
};

using SharedPages = std::list<SharedPage>;

// All connections, least recent first, by the time of the last answer or else of accept.
using Connections = std::list<std::shared_ptr<Connection>>;

// Reads and answers the requests of one client, one by one. The entry in Connections keeps this
// object alive, and so does each pending operation.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, SharedPages& pages, Connections& connections)
      : stream_(std::move(socket)), pages_(pages), connections_(connections) {}

  // REQUIRES: the connection is in connections_, at `place`.
  void Start(Connections::iterator place) {
    place_ = place;
    ErrorCode ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    Read();
  }

  void Answer(const HttpResponse& page) {
    if (is_open_) {
      Response response(static_cast<http::status>(page.status_code), /*version=*/11);
      response.set(http::field::content_type, page.content_type);
      if (!page.content_security_policy.empty()) {
        response.set("Content-Security-Policy", page.content_security_policy);
      }
      response.body() = page.body;
      Write(std::move(response), parser_->get().keep_alive());
    }
  }

  // Closes the connection at once. If Close first read the client's remaining bytes, a client that
  // never stops sending would keep the connection open.
  void Close() {
    if (is_open_) {
      is_open_ = false;
      connections_.erase(place_);
    }
    ErrorCode ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

 private:
  void Read() {
    parser_.emplace();
    parser_->header_limit(kMaxRequestBytes);
    stream_.expires_after(kReadTimeout);  // limit for the whole request, not for each read
    http::async_read_header(
        stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, size_t /*bytes*/) {
          self->OnRead(error);
        });
  }

  void OnRead(ErrorCode error) {
    if (!is_open_) {
      return;
    }
    if (!error) {
      OnRequest();
    } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      Write(ErrorResponse(http::status::request_header_fields_too_large), /*keep_alive=*/false);
    } else if (error.category() == make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream && error != http::error::partial_message) {
      Write(ErrorResponse(http::status::bad_request), /*keep_alive=*/false);
    } else {
      Close();  // the client left or was silent for too long
    }
  }

  void OnRequest() {
    const auto& request = parser_->get();
    if (parser_->chunked() || parser_->content_length().value_or(0) > 0) {
      Write(ErrorResponse(http::status::payload_too_large), /*keep_alive=*/false);
      return;
    }
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      Response response = ErrorResponse(http::status::method_not_allowed);
      response.set(http::field::allow, "GET, HEAD");
      Write(std::move(response), request.keep_alive());
      return;
    }
    const std::string_view target(request.target().data(), request.target().size());
    const std::string_view path = target.substr(0, target.find('?'));
    for (SharedPage& page : pages_) {
      if (page.path() == path) {
        page.Ask(shared_from_this());
        return;
      }
    }
    Write(ErrorResponse(http::status::not_found), request.keep_alive());
  }

  void Write(Response response, bool keep_alive) {
    response_ = std::move(response);
    response_.set(http::field::cache_control, "no-store");
    response_.keep_alive(keep_alive);
    response_.prepare_payload();
    if (parser_->get().method() == http::verb::head) {
      response_.body().clear();  // the header keeps the body's Content-Length
    }
    stream_.expires_after(kWriteTimeout);
    http::async_write(
        stream_, response_, [self = shared_from_this()](ErrorCode error, size_t /*bytes*/) {
          self->OnWritten(error);
        });
  }

  void OnWritten(ErrorCode error) {
    if (!is_open_) {
      return;
    }
    if (error || !response_.keep_alive()) {
      Close();
      return;
    }
    connections_.splice(connections_.end(), connections_, place_);
    Read();
  }

  beast::tcp_stream stream_;
  SharedPages& pages_;
  Connections& connections_;
  Connections::iterator place_;
  bool is_open_ = true;  // true while this connection is in connections_
  beast::flat_buffer buffer_{kMaxRequestBytes};
  std::optional<http::request_parser<http::empty_body>> parser_;
  Response response_;
};

// Returns a page that lists the paths, for people who open the port without a path.
HttpPage IndexOf(const std::vector<HttpPage>& pages) {
  std::string text;
  for (const HttpPage& page : pages) {
    text += page.path + "\n";
  }
  return {"/", [text = std::move(text)] { return HttpResponse{.body = text}; }};
}

void SharedPage::AnswerAll() {
  if (const Instant begun = SteadyNow(); begun + kBurstNs >= debt_until_) {
    made_ = page_.make();
    const Instant done = SteadyNow();
    debt_until_ = std::min(std::max(debt_until_, begun) + 5 * (done - begun),
                           done + kMaxPageAgeNs + kBurstNs);
  }
  for (const std::shared_ptr<Connection>& connection : std::exchange(waiting_, {})) {
    connection->Answer(made_);
  }
}

}  // namespace http_server_internal

using namespace http_server_internal;  // NOLINT(google-build-using-namespace): this file's own

class HttpServer::Impl {
 public:
  explicit Impl(std::vector<HttpPage> pages) {
    pages.push_back(IndexOf(pages));
    for (HttpPage& page : pages) {
      pages_.emplace_back(context_, std::move(page));
    }
  }
  ~Impl() {
    context_.stop();
    if (thread_.joinable()) {
      thread_.join();
    }
    while (!connections_.empty()) {
      std::shared_ptr<Connection>(connections_.front())->Close();
    }
  }

  // Listens on every address that `host` resolves to. Skips addresses that this machine does not
  // have.
  ErrorCode Listen(const std::string& host, int port) {
    ErrorCode error;
    const auto found =
        tcp::resolver(context_).resolve(host, "0", tcp::resolver::numeric_service, error);
    for (const auto& entry : found) {
      tcp::endpoint endpoint = entry.endpoint();
      endpoint.port(static_cast<uint16_t>(port_ == 0 ? port : port_));
      error = ListenAt(endpoint, host == "::");
      if (error && error != asio::error::address_family_not_supported &&
          error != make_error_code(boost::system::errc::address_not_available)) {
        return error;
      }
    }
    return acceptors_.empty() ? error : ErrorCode();
  }

  void Run() {
    for (tcp::acceptor& acceptor : acceptors_) {
      Accept(acceptor);
    }
    thread_ = std::thread([this] { context_.run(); });
  }

  int port() const { return port_; }

 private:
  ErrorCode ListenAt(const tcp::endpoint& endpoint, bool takes_ipv4_too) {
    tcp::acceptor acceptor(context_);
    ErrorCode error;
    acceptor.open(endpoint.protocol(), error);
    if (!error) {
      acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    }
    if (!error && endpoint.address().is_v6()) {
      acceptor.set_option(asio::ip::v6_only(!takes_ipv4_too), error);
    }
    if (!error) {
      acceptor.bind(endpoint, error);
    }
    if (!error) {
      acceptor.listen(tcp::acceptor::max_listen_connections, error);
    }
    if (!error) {
      acceptor.non_blocking(true, error);
    }
    if (!error) {
      port_ = acceptor.local_endpoint(error).port();
      acceptors_.push_back(std::move(acceptor));
    }
    return error;
  }

  // Accepts several connections per turn of the event loop. A turn takes time, because it also
  // answers clients. With one connection per turn, a new client would wait one turn for each
  // connection in the kernel's queue before its own.
  void Accept(tcp::acceptor& acceptor) {
    acceptor.async_wait(tcp::acceptor::wait_read, [this, &acceptor](ErrorCode error) {
      for (size_t i = 0; i < kMaxAcceptsAtOnce && !error; ++i) {
        tcp::socket socket(context_);
        acceptor.accept(socket, error);
        if (!error) {
          Add(std::move(socket));
        }
      }
      if (!error || error == asio::error::would_block) {
        Accept(acceptor);
        return;
      }
      if (SteadyNow() - logged_at_ >= kRefusalLogIntervalNs) {
        logged_at_ = SteadyNow();
        LogWarning("the HTTP port cannot accept connections; clients wait",
                   {{"cause", error.message()}});
      }
      // Each acceptor has its own timer: resetting a shared timer would wake the other acceptors.
      const auto pause = std::make_shared<asio::steady_timer>(context_, kAcceptPause);
      pause->async_wait([this, &acceptor, pause](ErrorCode) { Accept(acceptor); });
    });
  }

  void Add(tcp::socket socket) {
    if (connections_.size() == kMaxConnections) {
      std::shared_ptr<Connection>(connections_.front())->Close();
    }
    connections_.push_back(std::make_shared<Connection>(std::move(socket), pages_, connections_));
    connections_.back()->Start(std::prev(connections_.end()));
  }

  asio::io_context context_{/*concurrency_hint=*/1};
  SharedPages pages_;
  std::list<tcp::acceptor> acceptors_;
  Connections connections_;  // used only by the server's thread
  int port_ = 0;
  // Time of the last log line about failed accepts.
  Instant logged_at_ = SteadyNow() - kRefusalLogIntervalNs;
  std::thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->port(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& host,
                                                              int port,
                                                              std::vector<HttpPage> pages) {
  auto impl = std::make_unique<Impl>(std::move(pages));
  if (const ErrorCode error = impl->Listen(host, port); error) {
    return Error(
        absl::StatusCode::kUnavailable,
        "HTTP_BIND",
        absl::StrCat("http: cannot listen on ", host, ":", port, " (", error.message(), ")"));
  }
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace quire
