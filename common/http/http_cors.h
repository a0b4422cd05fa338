// AllowedOrigins says which pages of other origins may call a server (CORS), and answers their
// browsers. A server that allows no origin adds no header, and browsers refuse such pages.
//
// Thread safety: immutable.
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

  // Returns the headers that an answer to this request needs; none if its origin is not allowed.
  HttpHeaders HeadersFor(const HttpRequest& request) const;

  // Returns the answer to a preflight of an allowed origin, else nullopt. headers: see HeadersFor.
  static std::optional<HttpResponse> Preflight(const HttpRequest& request,
                                               const HttpHeaders& headers);

 private:
  const std::vector<std::string> origins_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_CORS_H_
