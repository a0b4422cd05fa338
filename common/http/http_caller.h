// HttpCaller makes calls to one server, one after the other, on an io_context. It is the
// asynchronous core of HttpClient and HttpClientPool.
//
// The caller reads while it sends a request, because a server may answer and close before it has
// read the whole request. Before a call, the caller drops an open connection that the server has
// ended. If a connection from an earlier call breaks before the answer's first byte, the caller
// sends a GET or HEAD once more, on a new connection.
//
// Thread safety: the thread of the io_context.
// Errors:        those of HttpClient.
#ifndef QUIRE_COMMON_HTTP_HTTP_CALLER_H_
#define QUIRE_COMMON_HTTP_HTTP_CALLER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/http/http_client.h"
#include "common/http/http_tls.h"
#include "common/http/response_reader.h"

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>

namespace quire {

// Each pending operation keeps this object alive.
class HttpCaller : public std::enable_shared_from_this<HttpCaller> {
 public:
  using OnEnd = std::function<void(absl::StatusOr<HttpResponse> head)>;

  // `options` and `tls` must outlive this object.
  HttpCaller(boost::asio::io_context& context, const HttpClientOptions& options, HttpTls& tls);

  // Makes a call, and calls on_end once, perhaps before Start returns. REQUIRES: no call runs.
  void Start(const HttpClientRequest& request,
             int64_t timeout_ns,
             HttpPieceCallback on_piece,
             OnEnd on_end);

  // Ends the running call, if any, with kCancelled.
  void Cancel();

 private:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Endpoint = boost::asio::generic::stream_protocol::endpoint;
  using ErrorCode = boost::system::error_code;

  // A connection, and the memory that its pending operations use.
  struct Link {
    explicit Link(boost::asio::io_context& context) : socket(context) {}

    Socket socket;
    std::unique_ptr<boost::asio::ssl::stream<Socket&>> tls;
    std::string out;  // the request
    bool is_writing = false;
    std::array<char, ResponseReader::kMaxHeaderBytes> buffer;  // received, but not parsed yet
    size_t num_buffered = 0;
  };
  using LinkPtr = std::shared_ptr<Link>;

  void SetDeadline(Instant deadline);
  void AwaitDeadline();
  bool IsLinkOpen() const;
  void Resolve();
  void Connect();
  void TryEndpoint(size_t index);
  void Handshake();
  void Exchange();
  void Write();
  void Read();
  void OnRead(const ErrorCode& error, size_t size);
  absl::Status Consume();
  void Break(const ErrorCode& error);
  void CloseLink();
  void Fail(const absl::Status& status);
  void Finish();
  void End(absl::StatusOr<HttpResponse> head);

  boost::asio::io_context& context_;
  const HttpClientOptions& options_;
  HttpTls& tls_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer timer_;
  std::vector<Endpoint> endpoints_;
  LinkPtr link_;  // null: no connection

  // The fields below describe the running call. call_ changes when a call starts or ends, so that
  // pending operations notice that their call has ended.
  uint64_t call_ = 0;
  OnEnd on_end_;  // null: no call runs
  HttpPieceCallback on_piece_;
  std::string text_;  // the whole request
  bool is_head_ = false;
  bool may_repeat_ = false;
  bool is_connecting_ = false;
  Instant call_deadline_ = kInfiniteFuture;
  Instant deadline_ = kInfiniteFuture;  // for connecting while is_connecting_, else for the call
  std::optional<ResponseReader> reader_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_CALLER_H_
