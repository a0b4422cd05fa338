// AllowedOrigins says which pages of other origins may call a server (CORS), and answers their
// browsers. If no origin is allowed, answers have no CORS header, and browsers hide the answers
// from pages of other origins.
//
// Thread safety: any thread; immutable.
// Source:        https://fetch.spec.whatwg.org/#http-cors-protocol
#ifndef QUIRE_COMMON_HTTP_HTTP_CORS_H_
#define QUIRE_COMMON_HTTP_HTTP_CORS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/http/http_message.h"

namespace quire {

class AllowedOrigins {
 public:
  // origins: as browsers send them ("https://example.com"), or "*" for all.
  explicit AllowedOrigins(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // Returns the answer's CORS headers; none if the request's origin is not allowed.
  HttpHeaders HeadersFor(const HttpRequest& request) const;

  // Returns the answer to a preflight of an allowed origin, else nullopt. headers: from HeadersFor.
  static std::optional<HttpResponse> Preflight(const HttpRequest& request,
                                               const HttpHeaders& headers);

 private:
  const std::vector<std::string> origins_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_CORS_H_
