#include "common/http/http_connection.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"

#include "common/base/check.h"

#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/http/status.hpp>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace quire {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

// Time limit of a TLS handshake, and of a request header from its first byte on. Without the limit,
// a client that sends byte by byte could hold a connection for ever.
constexpr int64_t kHeaderTimeoutNs = 10 * kNanosPerSecond;
// Time limit of a body, raised by one second for each kBodyBytesPerSecond bytes received.
constexpr int64_t kBodyTimeoutNs = 10 * kNanosPerSecond;
constexpr int64_t kBodyBytesPerSecond = 16384;
// Upper bound on the time for which a connection stays open after its last answer because the
// client still sends.
constexpr int64_t kLingerNs = 2 * kNanosPerSecond;
// Upper bound on the bytes of a connection that wait in the kernel to be sent. unsent_bytes does
// not count them, so without the bound a slow client's backlog would grow unseen.
constexpr int kMaxKernelBytes = 128 << 10;

std::string PeerOf(const HttpStream::Socket& socket) {
  ErrorCode error;
  const auto generic = socket.remote_endpoint(error);
  asio::ip::tcp::endpoint endpoint;
  if (error || generic.size() > endpoint.capacity() || generic.data()->sa_family == AF_UNIX) {
    return error ? "" : "unix";
  }
  std::memcpy(endpoint.data(), generic.data(), generic.size());
  return endpoint.address().to_string();
}

void SetOption(HttpStream::Socket& socket, int option, int value) {
  // Fails for a Unix socket, which has no TCP options.
  static_cast<void>(
      ::setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof(value)));
}

}  // namespace

HttpResponse HttpConnections::ErrorOf(int status_code) const {
  HttpResponse response;
  if (options.make_error != nullptr) {
    response = options.make_error(status_code);
  } else {
    const auto reason =
        boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status_code));
    response.body = std::string(reason.data(), reason.size()) + "\n";
  }
  response.status_code = status_code;
  if (status_code == 503) {
    response.headers.emplace_back("Retry-After", "1");
  }
  return response;
}

HttpConnection::HttpConnection(HttpStream::Socket socket,
                               asio::ssl::context* tls,
                               HttpConnections& connections)
    : stream_(std::move(socket), tls), all_(connections), peer_(PeerOf(stream_.socket())) {}

void HttpConnection::Start(HttpConnections::List::iterator place) {
  place_ = place;
  list_ = &all_.idle;
  since_ = SteadyNow();
  SetOption(stream_.socket(), TCP_NODELAY, 1);
  SetOption(stream_.socket(), TCP_NOTSENT_LOWAT, kMaxKernelBytes);
  if (!stream_.is_tls()) {
    BeginRequest();
    return;
  }
  deadline_ = SteadyNow() + kHeaderTimeoutNs;
  stream_.Handshake([self = shared_from_this()](const ErrorCode& error) {
    if (error) {
      self->Close();
    } else if (self->phase_ == Phase::kHandshake) {
      self->BeginRequest();
    }
  });
}

void HttpConnection::CheckDeadline(Instant now) {
  // No read is pending while buffer_ is full, so ask the kernel whether the client has left.
  if (phase_ == Phase::kAnswering && num_buffered_ == buffer_.size() && !has_peer_ended_ &&
      HasPeerLeft()) {
    OnReadEnd(asio::error::eof);
    return;
  }
  if (now < deadline_) {
    return;
  }
  if (phase_ == Phase::kReading && (num_buffered_ > 0 || is_header_admitted_)) {
    Refuse(all_.ErrorOf(408));
  } else {
    Close();
  }
}

void HttpConnection::Drain() {
  if (phase_ == Phase::kHandshake || (phase_ == Phase::kReading && !is_header_admitted_)) {
    Close();
  }
}

void HttpConnection::Close() {
  if (phase_ == Phase::kClosed) {
    return;
  }
  const auto self = shared_from_this();  // the entry in the list may be the last reference
  const bool was_answering = phase_ == Phase::kAnswering;
  phase_ = Phase::kClosed;
  list_->erase(place_);
  ErrorCode ignored;
  if (was_answering && is_writing_) {
    // Closes by a reset, which drops the unsent bytes and reaches the client at once. An ordinary
    // end would wait behind the unsent bytes. A client that reads nothing would never see the end,
    // and the kernel would hold the bytes for minutes.
    stream_.socket().set_option(asio::socket_base::linger(true, 0), ignored);
  }
  stream_.socket().close(ignored);
  if (was_answering) {
    Observe(HttpEvent::Kind::kEnded, /*was_cut=*/true);
  }
  if (exchange_ != nullptr) {
    std::exchange(exchange_, nullptr)->Detach(/*was_cut=*/true);
  }
  if (all_.is_draining && all_.size() == 0) {
    all_.on_empty();
  }
}

void HttpConnection::Wake() {
  asio::post(all_.context, [self = shared_from_this()] { self->Flush(); });
}

void HttpConnection::Post(std::function<void()> task) { asio::post(all_.context, std::move(task)); }

void HttpConnection::BeginRequest() {
  phase_ = Phase::kReading;
  reader_.emplace(all_.options.max_body_bytes, all_.body_memory);
  is_header_admitted_ = false;
  num_body_bytes_ = 0;
  event_ = {};
  route_ = nullptr;
  tenant_.clear();
  cors_.clear();
  if (writing_.capacity() + out_.capacity() > buffer_.size()) {
    out_ = std::string();  // an idle connection keeps no large buffers
    writing_ = std::string();
  }
  if (num_buffered_ > 0) {
    deadline_ = SteadyNow() + kHeaderTimeoutNs;
    Consume();
  } else {
    deadline_ = SteadyNow() + all_.options.idle_timeout_ns;
    Read();
  }
}

void HttpConnection::Read() {
  if (is_reading_ || has_peer_ended_ || num_buffered_ == buffer_.size()) {
    return;
  }
  is_reading_ = true;
  stream_.Read(asio::buffer(buffer_.data() + num_buffered_, buffer_.size() - num_buffered_),
               [self = shared_from_this()](const ErrorCode& error, size_t size) {
                 self->is_reading_ = false;
                 self->OnRead(error, size);
               });
}

void HttpConnection::OnRead(const ErrorCode& error, size_t size) {
  if (phase_ == Phase::kClosed || phase_ == Phase::kLingering) {
    return;
  }
  if (error) {
    OnReadEnd(error);
    return;
  }
  const bool is_first = num_buffered_ == 0;
  num_buffered_ += size;
  if (phase_ == Phase::kAnswering) {
    Read();
    return;
  }
  if (is_header_admitted_) {
    num_body_bytes_ += static_cast<int64_t>(size);
    deadline_ =
        body_begun_at_ + kBodyTimeoutNs + num_body_bytes_ * kNanosPerSecond / kBodyBytesPerSecond;
  } else if (is_first) {
    deadline_ = SteadyNow() + kHeaderTimeoutNs;
  }
  Consume();
}

size_t HttpConnection::unsent_bytes() const {
  const size_t taken = out_.size() + (is_writing_ ? writing_.size() - num_written_ : 0);
  return exchange_ == nullptr ? taken : std::max(taken, exchange_->unsent_bytes());
}

bool HttpConnection::HasPeerLeft() {
  pollfd poll = {.fd = stream_.socket().native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&poll, 1, 0) > 0 && (poll.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void HttpConnection::OnReadEnd(const ErrorCode& error) {
  has_peer_ended_ = error == asio::error::eof || error == asio::ssl::error::stream_truncated;
  const bool is_answer_given = exchange_ == nullptr || exchange_->has_whole_answer();
  if (phase_ == Phase::kAnswering && has_peer_ended_ && is_answer_given) {
    return;  // a client that has ended its sending side still gets its answer
  }
  Close();
}

void HttpConnection::Consume() {
  while (phase_ == Phase::kReading) {
    const size_t used = num_buffered_ == 0 ? 0 : reader_->Put(buffered());
    num_buffered_ -= used;
    std::memmove(buffer_.data(), buffer_.data() + used, num_buffered_);
    const RequestReader::State state = reader_->state();
    if (state == RequestReader::State::kFailed) {
      Refuse(all_.ErrorOf(reader_->failure()));
      return;
    }
    const bool has_header = state != RequestReader::State::kHeader;
    if (has_header && !is_header_admitted_ && !AdmitHeader()) {
      return;
    }
    if (state == RequestReader::State::kDone) {
      Dispatch();
    } else if (used == 0) {
      Read();
      return;
    }
  }
}

// Checks origin, route and API key. Returns false if the header alone decided the answer: a
// preflight, or a request that a check refused.
bool HttpConnection::AdmitHeader() {
  const HttpRequest& request = reader_->request();
  cors_ = all_.origins.HeadersFor(request);
  if (const auto preflight = AllowedOrigins::Preflight(request, cors_)) {
    Refuse(*preflight);
    return false;
  }
  const HttpRouteTable::Found found = all_.routes.Find(request.method, request.path);
  route_ = found.route;
  if (route_ == nullptr) {
    HttpResponse response = all_.ErrorOf(found.allow.empty() ? 404 : 405);
    if (!found.allow.empty()) {
      response.headers.emplace_back("Allow", found.allow);
    }
    Refuse(response);
    return false;
  }
  if (all_.options.api_keys != nullptr && !route_->is_open) {
    const bool is_single =
        std::count_if(request.headers.begin(), request.headers.end(), [](const auto& header) {
          return absl::EqualsIgnoreCase(header.first, kAuthorization);
        }) == 1;
    absl::StatusOr<std::string> tenant = all_.options.api_keys->TenantOf(
        is_single ? request.Header(kAuthorization) : std::string_view());
    if (!tenant.ok()) {
      HttpResponse response = all_.ErrorOf(401);
      response.headers.emplace_back("WWW-Authenticate", "Bearer");
      Refuse(response);
      return false;
    }
    tenant_ = *std::move(tenant);
  }
  is_header_admitted_ = true;
  body_begun_at_ = SteadyNow();
  deadline_ = body_begun_at_ + kBodyTimeoutNs;
  MoveTo(all_.idle);
  if (reader_->expects_continue() && reader_->state() == RequestReader::State::kBody &&
      num_buffered_ == 0) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    Flush();
  }
  return true;
}

void HttpConnection::Dispatch() {
  HttpRequest request = reader_->TakeRequest();
  request.peer = peer_;
  request.tenant = std::move(tenant_);
  phase_ = Phase::kAnswering;
  deadline_ = kInfiniteFuture;
  request_at_ = SteadyNow();
  is_answer_taken_ = false;
  is_head_ = request.method == "HEAD";
  is_http_1_0_ = reader_->is_http_1_0();
  keep_alive_ = reader_->keep_alive();
  reader_.reset();
  MoveTo(all_.busy);
  const auto framing = is_head_       ? HttpExchange::Framing::kNone
                       : is_http_1_0_ ? HttpExchange::Framing::kPlain
                                      : HttpExchange::Framing::kChunks;
  exchange_ = std::make_shared<HttpExchange>(this, framing, all_.options.max_unsent_bytes);
  route_->handler(std::move(request), HttpResponder(exchange_));
  Read();
}

// Answers the request that is being read, and reads no more of it.
void HttpConnection::Refuse(const HttpResponse& response) {
  const bool has_header = reader_->state() == RequestReader::State::kBody ||
                          reader_->state() == RequestReader::State::kDone;
  is_head_ = has_header && reader_->request().method == "HEAD";
  is_http_1_0_ = has_header && reader_->is_http_1_0();
  keep_alive_ = reader_->state() == RequestReader::State::kDone && reader_->keep_alive();
  reader_.reset();
  phase_ = Phase::kAnswering;
  deadline_ = kInfiniteFuture;
  request_at_ = SteadyNow();
  is_answer_taken_ = true;
  MoveTo(all_.busy);
  BeginAnswer(response, /*is_stream=*/false);
  Flush();
  Read();
}

// Appends to out_ the head and, unless the answer is a stream, the body.
void HttpConnection::BeginAnswer(HttpResponse response, bool is_stream) {
  response.headers.insert(response.headers.end(), cors_.begin(), cors_.end());
  keep_alive_ = keep_alive_ && !all_.is_draining && !(is_stream && is_http_1_0_ && !is_head_);
  AppendResponseHead(response, is_stream, is_http_1_0_, keep_alive_, &out_);
  if (!is_stream && !is_head_ && HasBody(response.status_code)) {
    out_ += response.body;
  }
  event_.status_code = response.status_code;
  event_.is_stream = is_stream;
  Observe(HttpEvent::Kind::kBegun, /*was_cut=*/false);
}

// Moves the exchange's head and body into out_.
void HttpConnection::TakeAnswer() {
  std::string body;
  body.swap(out_);
  QUIRE_DCHECK(body.empty());
  HttpExchange::Taken taken = exchange_->Take(&body);
  if (taken.must_cut) {
    Close();
    return;
  }
  if (taken.is_abandoned) {
    taken.head = all_.ErrorOf(500);
  }
  if (taken.head.has_value()) {
    BeginAnswer(*std::move(taken.head), taken.is_stream);
  }
  if (out_.empty()) {
    out_.swap(body);
  } else {
    out_ += body;
  }
  is_answer_taken_ = taken.is_complete || taken.is_abandoned;
}

void HttpConnection::Flush() {
  if (phase_ == Phase::kClosed || phase_ == Phase::kLingering || is_writing_) {
    return;
  }
  if (exchange_ != nullptr && !is_answer_taken_ && out_.empty()) {
    TakeAnswer();
  }
  if (phase_ == Phase::kClosed) {
    return;
  }
  if (!out_.empty()) {
    writing_.clear();
    writing_.swap(out_);
    num_written_ = 0;
    is_writing_ = true;
    write_begun_at_ = SteadyNow();
    WriteSome();
  } else if (phase_ == Phase::kAnswering) {
    deadline_ = kInfiniteFuture;
    if (is_answer_taken_) {
      EndAnswer();
    }
  }
}

void HttpConnection::WriteSome() {
  if (phase_ == Phase::kAnswering) {
    deadline_ = SteadyNow() + all_.options.stall_timeout_ns;
  }
  stream_.Write(asio::buffer(writing_.data() + num_written_, writing_.size() - num_written_),
                [self = shared_from_this()](const ErrorCode& error, size_t size) {
                  self->OnWritten(error, size);
                });
}

void HttpConnection::OnWritten(const ErrorCode& error, size_t size) {
  if (phase_ == Phase::kClosed) {
    return;
  }
  if (error) {
    Close();
    return;
  }
  num_written_ += size;
  const auto self = shared_from_this();
  if (exchange_ != nullptr) {
    // This call may run the OnDrained callback. The callback may write text, which posts a Flush,
    // but cannot close the connection.
    exchange_->SetInFlight(writing_.size() - num_written_);
  }
  if (num_written_ < writing_.size()) {
    WriteSome();
    return;
  }
  is_writing_ = false;
  Flush();
}

void HttpConnection::EndAnswer() {
  Observe(HttpEvent::Kind::kEnded, /*was_cut=*/false);
  if (exchange_ != nullptr) {
    std::exchange(exchange_, nullptr)->Detach(/*was_cut=*/false);
  }
  is_pipelined_ = num_buffered_ > 0;
  MoveTo(all_.idle);
  if (has_peer_ended_) {
    Close();
  } else if (keep_alive_ && !all_.is_draining) {
    BeginRequest();
  } else {
    Linger();
  }
}

void HttpConnection::Linger() {
  phase_ = Phase::kLingering;
  deadline_ = SteadyNow() + kLingerNs;
  if (!stream_.is_tls()) {
    DropBytes();
    return;
  }
  // Ignores the error: Shutdown fails if the client still sends, but by then close_notify is sent.
  stream_.Shutdown([self = shared_from_this()](const ErrorCode& /*error*/) { self->DropBytes(); });
}

// Ends this server's sending side, then drops bytes until the client ends the connection.
void HttpConnection::DropBytes() {
  if (phase_ == Phase::kClosed) {
    return;
  }
  ErrorCode ignored;
  stream_.socket().shutdown(HttpStream::Socket::shutdown_send, ignored);
  stream_.socket().async_read_some(asio::buffer(all_.dropped_bytes),
                                   [self = shared_from_this()](const ErrorCode& error, size_t) {
                                     error ? self->Close() : self->DropBytes();
                                   });
}

void HttpConnection::Observe(HttpEvent::Kind kind, bool was_cut) const {
  if (all_.options.observe == nullptr) {
    return;
  }
  HttpEvent event = event_;
  event.kind = kind;
  event.route = route_ == nullptr ? std::string_view() : std::string_view(route_->path);
  event.was_cut = was_cut;
  event.elapsed_ns = SteadyNow() - request_at_;
  all_.options.observe(event);
}

void HttpConnection::MoveTo(HttpConnections::List& list) {
  list.splice(list.end(), *list_, place_);
  list_ = &list;
  if (!is_pipelined_) {
    since_ = SteadyNow();
  }
}

}  // namespace quire
