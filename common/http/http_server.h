// HttpServer answers GET and HEAD on a few fixed paths with text rendered on demand, such as
// metrics and health; "/" lists the paths. The server limits what each client can take, so that a
// health check is answered whatever other clients do:
//
//   connections  at most kMaxConnections; a further one ends the connection whose last answer, or
//                accept if it has had no answer, is longest ago
//   a request    8 KiB, complete within 10 s of the connection's start or previous answer, without
//                a body: a request with a body is refused unread
//   an answer    must be received by the client within 10 s
//   a page       rendered once for all concurrent requests; under constant load a page is up to
//                20 ms old, and rendering takes at most a fifth of the thread's time
//
// Thread safety: Start and the destructor from one thread. The server's one thread calls
//                HttpPage::make, for one page at a time; `make` must not wait.
#ifndef QUIRE_COMMON_HTTP_HTTP_SERVER_H_
#define QUIRE_COMMON_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

struct HttpResponse {
  unsigned status_code = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  std::string content_security_policy = {};  // empty: no header, for pages that are not HTML
};

struct HttpPage {
  std::string path;  // matched exactly; a query ("?...") is ignored
  std::function<HttpResponse()> make;
};

class HttpServer {
 public:
  // Half of the descriptors that the gRPC ports leave to the rest of the process (kReservedFiles in
  // common/wire/listener.cc).
  static constexpr size_t kMaxConnections = 32;

  // host: an address or a name; the server listens on all addresses of a name. port: 0 picks a free
  // port. Errors: kUnavailable HTTP_BIND if the server cannot listen on host and port.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& host,
                                                           int port,
                                                           std::vector<HttpPage> pages);
  // Ends all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  class Impl;  // keeps Boost out of this header
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_SERVER_H_
