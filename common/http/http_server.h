// HttpServer answers GET and HEAD on a few fixed paths with text made on demand: metrics, health
// and the page that shows them. It holds what strangers can take to what is written here, so that
// whoever asks for health is answered whatever others do:
//
//   connections  kMaxConnections; one more ends the one that has been silent longest
//   a request    8 KiB, all of it within 10 s of the answer before; a body is refused unread
//   an answer    taken within 10 s
//   a page       made once for all who ask for it meanwhile; where they ask without a pause, it is
//                up to 20 ms old, and a fifth of the time goes into making it
//
// Thread safety: Start and the destructor from one thread. Pages are made by the server's one
//                thread, one after the other: they must not wait.
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
  std::string content_security_policy = {};  // empty: a page that a browser takes for no document
};

struct HttpPage {
  std::string path;  // exactly this one; what follows a "?" is not looked at
  std::function<HttpResponse()> make;
};

class HttpServer {
 public:
  // Half of the files that the gRPC ports leave to the rest of the process.
  static constexpr size_t kMaxConnections = 32;

  // host: an address or a name, all of whose addresses are listened on; port 0 picks a free one.
  // Errors: kUnavailable HTTP_BIND when it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& host,
                                                           int port,
                                                           std::vector<HttpPage> pages);
  // Ends all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  class Impl;  // Boost stays in one file
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_SERVER_H_
