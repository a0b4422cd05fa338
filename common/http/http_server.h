// HttpServer answers GET and HEAD on a few fixed paths with text rendered on demand: metrics,
// health and the page that shows them; "/" lists the paths. It limits what each client can take, so
// that a health check is answered whatever other clients do:
//
//   connections  kMaxConnections; a further one ends the one that has been silent longest
//   a request    8 KiB, complete within 10 s of the previous answer; a body is refused unread
//   an answer    the client must take it within 10 s
//   a page       rendered once for all concurrent requests; under constant load a page is up to
//                20 ms old, and rendering takes a fifth of the thread's time
//
// Thread safety: Start and the destructor from one thread. The server's one thread calls
//                HttpPage::make, one page at a time. The function must not wait.
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
  std::string content_security_policy = {};  // empty: no header; browsers do not render the page
};

struct HttpPage {
  std::string path;  // matched exactly; a query ("?...") is ignored
  std::function<HttpResponse()> make;
};

class HttpServer {
 public:
  // Half of the descriptors that the gRPC ports reserve for the rest of the process.
  static constexpr size_t kMaxConnections = 32;

  // host: an address, or a name, of which all addresses are listened on. port: 0 picks a free one.
  // Errors: kUnavailable HTTP_BIND if the server cannot listen there.
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
