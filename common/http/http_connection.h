// HttpConnection reads the requests of one client and sends their answers, one by one.
//
//   handshake ─▶ reading ─▶ answering ─▶ reading ... ─▶ lingering ─▶ closed
//
// While a connection answers, it goes on reading to notice when the client is gone. Bytes of the
// next request wait in the buffer. After the last answer the connection lingers and drops the
// client's bytes. Otherwise the kernel would reset the connection, and the client could lose the
// answer.
//
// Thread safety: the server's thread; Wake and Post: any thread.
#ifndef QUIRE_COMMON_HTTP_HTTP_CONNECTION_H_
#define QUIRE_COMMON_HTTP_HTTP_CONNECTION_H_

#include <array>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/http/http_cors.h"
#include "common/http/http_exchange.h"
#include "common/http/http_server.h"
#include "common/http/http_stream.h"
#include "common/http/request_reader.h"

#include <boost/asio/io_context.hpp>

namespace quire {

class HttpConnection;

// The state that the connections of a server share.
struct HttpConnections {
  using List = std::list<std::shared_ptr<HttpConnection>>;

  HttpConnections(HttpServerOptions server_options, std::vector<HttpRoute> server_routes)
      : options(std::move(server_options)),
        routes(std::move(server_routes)),
        origins(options.allowed_origins),
        body_memory(std::make_shared<BodyMemory>(options.max_body_bytes_in_flight)) {}

  size_t size() const { return idle.size() + busy.size(); }

  // Returns the server's own answer with this status code (HttpServerOptions::make_error).
  HttpResponse ErrorOf(int status_code) const;

  const HttpServerOptions options;
  const HttpRouteTable routes;
  const AllowedOrigins origins;
  const std::shared_ptr<BodyMemory> body_memory;
  boost::asio::io_context context{/*concurrency_hint=*/1};
  // Connections without a running request, least recent first. A connection moves to the end when
  // it is accepted, when an answer ends, and when a request's header is admitted.
  List idle;
  List busy;  // connections with a running request, least recent first
  bool is_draining = false;
  std::function<void()> on_empty;             // set by Drain
  std::array<char, 4096> dropped_bytes = {};  // read buffer of lingering connections
};

// The entry in HttpConnections keeps this object alive, and so does each pending operation.
class HttpConnection : public std::enable_shared_from_this<HttpConnection>,
                       public HttpExchange::Owner {
 public:
  HttpConnection(HttpStream::Socket socket,
                 boost::asio::ssl::context* tls,
                 HttpConnections& connections);

  // REQUIRES: the connection is in connections.idle, at `place`.
  void Start(HttpConnections::List::iterator place);

  // Closes the connection (perhaps after a 408) if it is past its deadline or its client has left.
  void CheckDeadline(Instant now);

  // Closes the connection unless it has begun to read a body or to answer.
  void Drain();

  // Closes the connection at once.
  void Close();

  // Time of the accept, or of the last move to the end of a list (idle or busy). A pipelined
  // request's moves do not count, so that a client that pipelines is less recent than a new one.
  Instant since() const { return since_; }

  // Bytes of the answer that the kernel has not accepted yet.
  size_t unsent_bytes() const;
  // Returns when the pending write began, or kInfiniteFuture if no write is pending.
  Instant write_begun_at() const { return is_writing_ ? write_begun_at_ : kInfiniteFuture; }

 private:
  enum class Phase { kHandshake, kReading, kAnswering, kLingering, kClosed };

  void Wake() override;
  void Post(std::function<void()> task) override;

  void BeginRequest();
  void Read();
  void OnRead(const boost::system::error_code& error, size_t size);
  void OnReadEnd(const boost::system::error_code& error);
  // Returns true if the client has ended or broken the connection, even if bytes wait to be read.
  bool HasPeerLeft();
  void Consume();
  bool AdmitHeader();
  void Dispatch();
  void Refuse(const HttpResponse& response);
  void BeginAnswer(HttpResponse response, bool is_stream);
  void TakeAnswer();
  void Flush();
  void WriteSome();
  void OnWritten(const boost::system::error_code& error, size_t size);
  void EndAnswer();
  void Linger();
  void DropBytes();
  void Observe(HttpEvent::Kind kind, bool was_cut) const;
  // Moves the connection to the end of the list.
  void MoveTo(HttpConnections::List& list);
  std::string_view buffered() const { return {buffer_.data(), num_buffered_}; }

  HttpStream stream_;
  HttpConnections& all_;
  HttpConnections::List::iterator place_;
  HttpConnections::List* list_ = nullptr;  // the list that place_ is in
  Instant since_ = 0;
  bool is_pipelined_ = false;  // the request began to arrive before the previous answer ended
  const std::string peer_;
  Phase phase_ = Phase::kHandshake;
  Instant deadline_ = kInfiniteFuture;

  // Reading.
  std::array<char, RequestReader::kMaxHeaderBytes> buffer_;  // received, but not parsed yet
  size_t num_buffered_ = 0;
  bool is_reading_ = false;      // a read is pending
  bool has_peer_ended_ = false;  // the client's sending side has ended
  std::optional<RequestReader> reader_;
  bool is_header_admitted_ = false;
  Instant body_begun_at_ = 0;
  int64_t num_body_bytes_ = 0;  // as received, chunk framing included
  const HttpRoute* route_ = nullptr;
  std::string tenant_;
  HttpHeaders cors_;  // CORS headers of the answer

  // Answering.
  std::shared_ptr<HttpExchange> exchange_;  // null: the server's own answer
  bool is_head_ = false;
  bool is_http_1_0_ = false;
  bool keep_alive_ = false;
  bool is_answer_taken_ = false;  // out_ and writing_ have all that is still to be sent
  HttpEvent event_;
  Instant request_at_ = 0;
  std::string out_;      // to be sent after writing_
  std::string writing_;  // is being sent, from num_written_ on
  size_t num_written_ = 0;
  bool is_writing_ = false;
  Instant write_begun_at_ = 0;  // when the write of writing_ began
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_CONNECTION_H_
