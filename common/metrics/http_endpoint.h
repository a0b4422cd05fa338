// HttpEndpoint answers GET on a few fixed paths with text made on demand: metrics and health. It
// uses civetweb, which prometheus-cpp brings along, directly: the Exposer of prometheus-cpp has no
// room for other paths with state of their own.
//
// Thread safety: Start and the destructor from one thread; the pages are called by the server's
//                threads, several at once.
#ifndef QUIRE_COMMON_METRICS_HTTP_ENDPOINT_H_
#define QUIRE_COMMON_METRICS_HTTP_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

struct mg_context;

namespace quire {

struct HttpResponse {
  int status_code = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
};

struct HttpPage {
  std::string path;  // exactly this one
  std::function<HttpResponse()> make;
};

class HttpEndpoint {
 public:
  // host: an address; port 0 picks a free one.
  // Errors: kUnavailable HTTP_BIND when it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const std::string& host,
                                                             int port,
                                                             std::vector<HttpPage> pages);
  ~HttpEndpoint();
  HttpEndpoint(const HttpEndpoint&) = delete;
  HttpEndpoint& operator=(const HttpEndpoint&) = delete;

  int port() const { return port_; }

 private:
  explicit HttpEndpoint(std::vector<HttpPage> pages) : pages_(std::move(pages)) {}

  const std::vector<HttpPage> pages_;
  mg_context* server_ = nullptr;
  int port_ = 0;
};

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_HTTP_ENDPOINT_H_
