// HttpServer is an HTTP/1.1 server with one thread. It reads whole requests, hands each to the
// handler of its route, and sends the answer that the handler gives to its HttpResponder, at once
// or as a stream. The server bounds each client's share:
//
//   connections  max_connections. A further one ends the least recent idle connection, counted
//                from its accept, its last answer, or the whole header of the request that it
//                sends; if none is idle, the new client gets 503. With replaces_running the
//                further one ends the least recent of all connections, where a running request
//                counts from its beginning. A request runs from its last byte to the end of its
//                answer
//   a header     8 KiB, complete within 10 s of its first byte
//   a body       max_body_bytes; 10 s, and a further second for each 16 KiB; all bodies together
//                max_body_bytes_in_flight, else 503
//   an answer    cut if the client accepts nothing for stall_timeout, or lets more than
//                max_unsent_bytes of a stream wait. While more than max_total_unsent_bytes of all
//                answers wait, the slow connections are closed, the longest write first
//   pipelining   requests are answered one by one, in order; at most 8 KiB are read ahead
//
// The server notices at once when a client is gone (http_responder.h). As in nginx and Node.js, a
// client that ends its sending side counts as gone unless the whole answer was given.
//
// Requests that another server could understand differently get 400 (request_reader.h). No text of
// a request reaches a log.
//
// Thread safety: Start and the destructor: one thread. Drain and Post: any thread. The server's
//                thread calls handlers, make_error and observe, which must not wait.
#ifndef QUIRE_COMMON_HTTP_HTTP_SERVER_H_
#define QUIRE_COMMON_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "common/http/http_route.h"
#include "common/wire/address.h"
#include "common/wire/api_keys.h"
#include "common/wire/tls_files.h"

namespace quire {

// One step of an answer, for metrics.
struct HttpEvent {
  enum class Kind { kBegun, kEnded };  // kBegun: the first bytes go to the client

  Kind kind = Kind::kBegun;
  std::string_view route;  // HttpRoute::path; empty if the request was refused without a route
  int status_code = 0;     // 0: the client was gone before an answer, so that there is no kBegun
  bool is_stream = false;
  bool was_cut = false;    // kEnded: the client did not get the whole answer
  int64_t elapsed_ns = 0;  // since the request's header was complete or refused
};

struct HttpServerOptions {
  Address address;  // a host's addresses, or a Unix socket for this process's user and root
  std::shared_ptr<TlsFiles> tls = nullptr;  // null: plain text
  // Null: no key is needed. Else a route that is not open needs `Authorization: Bearer KEY`.
  std::shared_ptr<ApiKeys> api_keys = nullptr;

  // Lowered to RLIMIT_NOFILE less 64, or less a quarter of the limit if that is smaller.
  size_t max_connections = 1024;
  // Whether a new connection may end one with a running request. For servers that make answers at
  // once: there a request runs long only if its client does not read, or pipelines. Health checks
  // then get a place beside such clients.
  bool replaces_running = false;
  int64_t idle_timeout_ns = 10 * kNanosPerSecond;  // between an answer and the next request
  int64_t stall_timeout_ns = 30 * kNanosPerSecond;
  size_t max_body_bytes = 0;  // 0: requests with a body are refused
  size_t max_body_bytes_in_flight = 0;
  size_t max_unsent_bytes = size_t{1} << 20;
  size_t max_total_unsent_bytes = size_t{128} << 20;

  std::vector<std::string> allowed_origins = {};  // http_cors.h; empty: none

  // Makes the server's own answers, such as 404. Null: the status in plain text.
  std::function<HttpResponse(int status_code)> make_error = nullptr;
  std::function<void(const HttpEvent&)> observe = nullptr;
};

class HttpServer {
 public:
  // Listens on the address; port 0 picks a free port. Errors: kUnavailable HTTP_BIND if the address
  // cannot be listened on; kInvalidArgument TLS_FILE if OpenSSL refuses the certificate.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                           std::vector<HttpRoute> routes);
  // Closes all connections. Responders may outlive the server.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Accepts no more connections, ends those without a request, and lets requests that have begun
  // finish. Calls `done` on the server's thread when no connection is left; `done` must not destroy
  // the server. Call once.
  void Drain(std::function<void()> done);

  // Runs the task on the server's thread. Drops it if the server is destroyed before.
  void Post(std::function<void()> task);

  int port() const;

 private:
  class Impl;  // keeps Boost out of this header
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_SERVER_H_
