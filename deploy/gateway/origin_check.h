// OriginCheck refuses requests from web pages of other origins. CORS alone hides an answer from
// such a page, but the server would still compute the answer: a browser sends a POST of plain text
// without asking first.
//
// A server with API keys needs no check, because a page has no key.
//
// In DNS rebinding, the name of a hostile page resolves to this server, so the page has the same
// origin as the server. A server on loopback therefore refuses a page whose host is a DNS name,
// unless its origin is allowed or the page uses HTTPS. Other servers are called by DNS names, so
// they cannot notice rebinding.
//
// A GET without an Origin is admitted, so a rebound page can read /metrics, /top.json and the names
// of models. Such a GET looks like that of a program: plain HTTP has no Sec-Fetch-Site, and the
// page can suppress Referer. A check of Host alone would refuse programs behind proxies.
//
// Thread safety: immutable.
// Source:        https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata
#ifndef QUIRE_DEPLOY_GATEWAY_ORIGIN_CHECK_H_
#define QUIRE_DEPLOY_GATEWAY_ORIGIN_CHECK_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/http/http_message.h"
#include "common/http/http_route.h"

namespace quire {

class OriginCheck {
 public:
  // allowed: origins like https://example.com, or "*". is_local: the server listens on loopback or
  // a Unix socket.
  OriginCheck(std::vector<std::string> allowed, bool is_local)
      : allowed_(std::move(allowed)), is_local_(is_local) {}

  // True for a request from a program, from a page of an allowed origin, or from a page to its own
  // host and port. With is_local, a page's request to its own DNS name must use HTTPS.
  bool Admits(const HttpRequest& request) const;

 private:
  bool IsAllowed(std::string_view origin) const;

  const std::vector<std::string> allowed_;
  const bool is_local_;
};

// Returns the routes with handlers that answer 403 ORIGIN to a request that the check does not
// admit. The check must outlive the routes.
std::vector<HttpRoute> Guarded(std::vector<HttpRoute> routes, const OriginCheck& check);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_ORIGIN_CHECK_H_
