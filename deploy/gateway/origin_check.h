// OriginCheck refuses requests of web pages of other origins. CORS alone hides an answer from such
// a page, but the server has computed it: a browser sends a POST of plain text without asking
// first.
//
// A server with API keys needs no check, because a page has no key. DNS rebinding is not noticed: a
// page whose own name leads to this server is of the same origin.
//
// Thread safety: immutable.
// Source:        https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata
#ifndef QUIRE_DEPLOY_GATEWAY_ORIGIN_CHECK_H_
#define QUIRE_DEPLOY_GATEWAY_ORIGIN_CHECK_H_

#include <string>
#include <utility>
#include <vector>

#include "common/http/http_message.h"
#include "common/http/http_route.h"

namespace quire {

class OriginCheck {
 public:
  // allowed: as AllowedOrigins.
  explicit OriginCheck(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {}

  // True for a program, a page of the host and port that it calls, and a page of an allowed origin.
  bool Admits(const HttpRequest& request) const;

 private:
  const std::vector<std::string> allowed_;
};

// Returns the routes with a handler that answers 403 ORIGIN to a request that is not admitted. The
// check must outlive the routes.
std::vector<HttpRoute> Guarded(std::vector<HttpRoute> routes, const OriginCheck& check);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_ORIGIN_CHECK_H_
