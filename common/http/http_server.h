// HttpServer is an HTTP/1.1 server with one thread. It reads whole requests and hands each to the
// handler of its route. The handler answers with an HttpResponder, at once or as a stream. The
// server bounds each client's share:
//
//   connections  max_connections. For a further client, the server closes the least recent idle
//                connection; if none is idle, the new client gets 503. A connection is idle unless
//                it has a running request: from the request's last byte to the answer's end. The
//                age of an idle connection counts from the latest of its accept, its last complete
//                header and the end of its last answer. With replaces_running, the server closes
//                the least recent of all connections; a running request's age counts from its last
//                byte
//   a header     8 KiB, complete within 10 s of its first byte
//   a body       max_body_bytes; 10 s, and a further second for each 16 KiB; all bodies together
//                max_body_bytes_in_flight, else 503
//   an answer    cut if the client accepts nothing for stall_timeout, or lets more than
//                max_unsent_bytes of a stream wait. While more than max_total_unsent_bytes of all
//                answers are unsent, slow connections are closed, the longest pending write first
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

// The beginning or the end of an answer, for metrics.
struct HttpEvent {
  enum class Kind { kBegun, kEnded };  // kBegun: the first bytes go to the client

  Kind kind = Kind::kBegun;
  std::string_view route;  // HttpRoute::path; empty if the request was refused without a route
  int status_code = 0;     // 0: the client was gone before an answer began; no kBegun came
  bool is_stream = false;
  bool was_cut = false;    // kEnded: the client did not get the whole answer
  int64_t elapsed_ns = 0;  // since the request was complete or refused
};

struct HttpServerOptions {
  Address address;  // a host's addresses, or a Unix socket for this process's user and root
  std::shared_ptr<TlsFiles> tls = nullptr;  // null: plain text
  // Null: no key is needed. Otherwise routes without is_open need `Authorization: Bearer KEY`.
  std::shared_ptr<ApiKeys> api_keys = nullptr;

  // The server uses at most limit - min(64, limit / 4), where the limit is RLIMIT_NOFILE.
  size_t max_connections = 1024;
  // Whether a new connection may end a connection whose request still runs, if max_connections are
  // open. Meant for servers that answer at once. Their requests run long only if a client reads
  // slowly or pipelines, and such a client must not keep health checks out.
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

  // Accepts no more connections, ends connections without a request, and lets the other requests
  // finish. Calls `done` on the server's thread when no connection is left; `done` must not destroy
  // the server. Call once.
  void Drain(std::function<void()> done);

  // Runs the task on the server's thread. Drops the task if the server is destroyed first.
  void Post(std::function<void()> task);

  int port() const;

 private:
  class Impl;  // keeps Boost out of this header
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_SERVER_H_
