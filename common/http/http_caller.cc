#include "common/http/http_caller.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/write.hpp>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

namespace quire {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// TCP keep-alive notices a vanished peer after about a minute, even if the call has no deadline.
constexpr int kKeepAliveIdleSeconds = 30;
constexpr int kKeepAliveIntervalSeconds = 10;
constexpr int kKeepAliveProbes = 3;

absl::Status InvalidRequest(std::string_view rule) {
  return InvalidArgument("HTTP_REQUEST", absl::StrCat("http: ", ToAbsl(rule)));
}

bool HasControlByte(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

bool IsVisible(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
}

// Returns the host name that the server's certificate must have.
std::string HostName(const HttpClientOptions& options) {
  return options.host.empty() ? options.address.host : options.host;
}

std::string HostHeader(const HttpClientOptions& options) {
  std::string name = HostName(options);
  if (name.empty()) {
    return "localhost";  // a Unix socket
  }
  if (absl::StrContains(name, ':')) {
    name = absl::StrCat("[", name, "]");
  }
  const int32_t usual_port = options.tls == nullptr ? 80 : 443;
  const bool has_port = !options.address.is_unix() && options.address.port != usual_port;
  return has_port ? absl::StrCat(name, ":", options.address.port) : name;
}

absl::StatusOr<std::string> RequestText(const HttpClientRequest& request,
                                        const HttpClientOptions& options) {
  if (!IsVisible(request.method) || !IsVisible(request.target) ||
      !request.target.starts_with('/')) {
    return InvalidRequest("method and target must be visible ASCII, the target must begin with /");
  }
  const std::string host = HostHeader(options);
  if (!IsVisible(host)) {
    return InvalidRequest("the host must be visible ASCII");
  }
  std::string text =
      absl::StrCat(request.method, " ", request.target, " HTTP/1.1\r\nHost: ", host, "\r\n");
  for (const auto& [name, value] : request.headers) {
    if (!IsVisible(name) || absl::StrContains(name, ':') || HasControlByte(value)) {
      return InvalidRequest("a header must have no control bytes");
    }
    absl::StrAppend(&text, name, ": ", value, "\r\n");
  }
  if (!request.body.empty() || request.method == "POST") {
    absl::StrAppend(&text, "Content-Length: ", request.body.size(), "\r\n");
  }
  absl::StrAppend(&text, "\r\n", request.body);
  return text;
}

absl::Status Unreachable(const HttpClientOptions& options, const std::string& cause) {
  return Error(
      absl::StatusCode::kUnavailable,
      "HTTP_CONNECT",
      absl::StrCat("http: cannot connect to ", options.address.ToString(), " (", cause, ")"));
}

void SetOptions(int socket) {
  const auto set = [socket](int level, int name, int value) {
    ::setsockopt(socket, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
}

}  // namespace

HttpCaller::HttpCaller(asio::io_context& context, const HttpClientOptions& options, HttpTls& tls)
    : context_(context), options_(options), tls_(tls), resolver_(context), timer_(context) {}

void HttpCaller::Start(const HttpClientRequest& request,
                       int64_t timeout_ns,
                       HttpPieceCallback on_piece,
                       OnEnd on_end) {
  QUIRE_CHECK(on_end_ == nullptr);
  absl::StatusOr<std::string> text = RequestText(request, options_);
  if (!text.ok()) {
    on_end(text.status());
    return;
  }
  ++call_;
  text_ = *std::move(text);
  on_end_ = std::move(on_end);
  on_piece_ = std::move(on_piece);
  is_head_ = request.method == "HEAD";
  may_repeat_ = is_head_ || request.method == "GET";
  const Instant now = SteadyNow();
  call_deadline_ = timeout_ns >= kInfiniteFuture - now ? kInfiniteFuture : now + timeout_ns;
  if (IsLinkOpen()) {
    SetDeadline(call_deadline_);
    Exchange();
    return;
  }
  may_repeat_ = false;
  Resolve();
}

void HttpCaller::Cancel() {
  if (on_end_ != nullptr) {
    Fail(absl::CancelledError("the call was cancelled"));
  }
}

void HttpCaller::SetDeadline(Instant deadline) {
  deadline_ = deadline;
  timer_.cancel();
  if (deadline_ != kInfiniteFuture) {
    AwaitDeadline();
  }
}

void HttpCaller::AwaitDeadline() {
  timer_.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_)));
  timer_.async_wait([self = shared_from_this(), call = call_](const ErrorCode& error) {
    // A wait that expired before it was cancelled still gets here, so check call and deadline.
    if (error || call != self->call_ || SteadyNow() < self->deadline_) {
      return;
    }
    self->Fail(Error(
        absl::StatusCode::kDeadlineExceeded,
        "HTTP_TIMEOUT",
        self->is_connecting_ ? "http: no connection in time" : "http: no whole answer in time"));
  });
}

// Returns true if the next call can use the connection. Returns false if the server has sent bytes
// or ended the connection since the last call.
bool HttpCaller::IsLinkOpen() const {
  if (link_ == nullptr) {
    return false;
  }
  char byte = 0;
  const ssize_t n = ::recv(link_->socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

void HttpCaller::Resolve() {
  is_connecting_ = true;
  link_ = nullptr;
  endpoints_.clear();
  SetDeadline(std::min(call_deadline_, SteadyNow() + options_.connect_timeout_ns));
  if (const absl::Status status = tls_.Update(); !status.ok()) {
    Fail(status);
    return;
  }
  const Address& address = options_.address;
  if (address.is_unix()) {
    if (address.unix_path.size() > kMaxUnixPathBytes) {
      Fail(Unreachable(options_, "the path is too long"));
      return;
    }
    endpoints_.emplace_back(asio::local::stream_protocol::endpoint(address.unix_path));
    Connect();
    return;
  }
  const auto port = static_cast<uint16_t>(address.port);
  ErrorCode not_numeric;
  const auto ip = asio::ip::make_address(address.host, not_numeric);
  if (!not_numeric) {
    endpoints_.emplace_back(tcp::endpoint(ip, port));
    Connect();
    return;
  }
  resolver_.async_resolve(address.host,
                          absl::StrCat(port),
                          tcp::resolver::numeric_service | tcp::resolver::address_configured,
                          [self = shared_from_this(), call = call_](
                              const ErrorCode& error, const tcp::resolver::results_type& found) {
                            if (call != self->call_ || self->on_end_ == nullptr) {
                              return;
                            }
                            if (error) {
                              self->Fail(Unreachable(self->options_, error.message()));
                              return;
                            }
                            for (const auto& entry : found) {
                              self->endpoints_.emplace_back(entry.endpoint());
                            }
                            self->Connect();
                          });
}

void HttpCaller::Connect() { TryEndpoint(0); }

void HttpCaller::TryEndpoint(size_t index) {
  link_ = std::make_shared<Link>(context_);
  link_->socket.async_connect(
      endpoints_[index], [self = shared_from_this(), link = link_, index](const ErrorCode& error) {
        if (link != self->link_) {
          return;
        }
        if (!error) {
          self->Handshake();
        } else if (index + 1 < self->endpoints_.size()) {
          self->TryEndpoint(index + 1);
        } else {
          self->Fail(Unreachable(self->options_, error.message()));
        }
      });
}

void HttpCaller::Handshake() {
  if (!options_.address.is_unix()) {
    SetOptions(link_->socket.native_handle());
  }
  if (tls_.context() == nullptr) {
    is_connecting_ = false;
    SetDeadline(call_deadline_);
    Exchange();
    return;
  }
  link_->tls = std::make_unique<ssl::stream<Socket&>>(link_->socket, *tls_.context());
  const std::string name = HostName(options_);
  ErrorCode not_numeric;
  asio::ip::make_address(name, not_numeric);
  if (not_numeric) {
    SSL_set_tlsext_host_name(link_->tls->native_handle(), name.c_str());
  }
  link_->tls->set_verify_callback(ssl::host_name_verification(name));
  link_->tls->async_handshake(
      ssl::stream_base::client, [self = shared_from_this(), link = link_](const ErrorCode& error) {
        if (link != self->link_) {
          return;
        }
        if (error) {
          self->Fail(Unreachable(self->options_, "TLS: " + error.message()));
          return;
        }
        self->is_connecting_ = false;
        self->SetDeadline(self->call_deadline_);
        self->Exchange();
      });
}

void HttpCaller::Exchange() {
  link_->num_buffered = 0;
  reader_.emplace(is_head_, on_piece_);
  Write();
  Read();
}

void HttpCaller::Write() {
  link_->out = text_;
  link_->is_writing = true;
  // A failed write is not reported: the read fails too, but first delivers an answer that came.
  const auto on_written = [self = shared_from_this(), link = link_](const ErrorCode& error,
                                                                    size_t /*size*/) {
    link->is_writing = static_cast<bool>(error);
  };
  const auto buffer = asio::buffer(link_->out);
  link_->tls == nullptr ? asio::async_write(link_->socket, buffer, on_written)
                        : asio::async_write(*link_->tls, buffer, on_written);
}

void HttpCaller::Read() {
  const auto on_read = [self = shared_from_this(), link = link_](const ErrorCode& error,
                                                                 size_t size) {
    if (link == self->link_) {
      self->OnRead(error, size);
    }
  };
  const auto buffer = asio::buffer(link_->buffer) + link_->num_buffered;
  link_->tls == nullptr ? link_->socket.async_read_some(buffer, on_read)
                        : link_->tls->async_read_some(buffer, on_read);
}

void HttpCaller::OnRead(const ErrorCode& error, size_t size) {
  if (error) {
    Break(error);
    return;
  }
  may_repeat_ = false;
  link_->num_buffered += size;
  if (const absl::Status status = Consume(); !status.ok()) {
    Fail(status);
  } else if (reader_->is_done()) {
    Finish();
  } else {
    Read();
  }
}

absl::Status HttpCaller::Consume() {
  std::string_view rest(link_->buffer.data(), link_->num_buffered);
  while (!rest.empty() && !reader_->is_done()) {
    QUIRE_ASSIGN_OR_RETURN(const size_t used, reader_->Put(rest));
    if (used == 0) {
      break;
    }
    rest.remove_prefix(used);
  }
  std::copy(rest.begin(), rest.end(), link_->buffer.begin());
  link_->num_buffered = rest.size();
  return absl::OkStatus();
}

void HttpCaller::Break(const ErrorCode& error) {
  // An answer without a length ends where the connection ends. Over TLS, eof means that the server
  // announced the end (close_notify). Any other end may have cut the answer, so it does not
  // complete the answer.
  if (error == asio::error::eof && reader_->PutEnd().ok()) {
    Finish();
    return;
  }
  CloseLink();
  if (std::exchange(may_repeat_, false)) {
    Resolve();
    return;
  }
  Fail(Error(
      absl::StatusCode::kUnavailable,
      "HTTP_CUT",
      absl::StrCat(
          "http: the connection broke before the end of the answer (", error.message(), ")")));
}

void HttpCaller::CloseLink() {
  if (link_ != nullptr) {
    ErrorCode ignored;
    link_->socket.close(ignored);
    link_ = nullptr;
  }
}

void HttpCaller::Fail(const absl::Status& status) {
  CloseLink();
  End(status);
}

void HttpCaller::Finish() {
  if (!reader_->keep_alive() || link_->is_writing || link_->num_buffered > 0) {
    CloseLink();
  }
  End(reader_->head());
}

void HttpCaller::End(absl::StatusOr<HttpResponse> head) {
  resolver_.cancel();
  timer_.cancel();
  ++call_;
  reader_.reset();
  on_piece_ = nullptr;
  std::exchange(on_end_, nullptr)(std::move(head));
}

}  // namespace quire
