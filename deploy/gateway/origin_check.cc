#include "deploy/gateway/origin_check.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/match.h"

#include "common/base/error.h"
#include "common/base/string_view.h"
#include "deploy/gateway/generation.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace quire {
namespace {

HttpResponse OtherOrigin() {
  return ErrorAnswer(
      Error(absl::StatusCode::kPermissionDenied,
            "ORIGIN",
            "origin: this server refuses web pages of this origin; it needs --allowed-origins"),
      std::nullopt,
      OpenAiApi::kCompletions);
}

// Returns the host of "HOST:PORT" or "[IPV6]:PORT". The port may be missing.
std::string HostOf(std::string_view authority) {
  const bool has_brackets = authority.starts_with('[');
  return std::string(has_brackets ? authority.substr(1, authority.find(']') - 1)
                                  : authority.substr(0, authority.find(':')));
}

bool IsIpAddress(const std::string& host) {
  in6_addr address = {};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// Returns true if browsers do not ask DNS for the host. DNS rebinding cannot use such a host.
bool IsOutsideDns(std::string_view authority) {
  const std::string host = HostOf(authority);
  return absl::EqualsIgnoreCase(host, "localhost") ||
         absl::EndsWithIgnoreCase(host, ".localhost") || IsIpAddress(host);
}

// Returns true if a page of `origin` calls its own host and port. The scheme may differ, because a
// proxy may end TLS. "null", the origin of sandboxed pages, has no host.
bool IsOfHost(std::string_view origin, std::string_view host) {
  const size_t scheme_end = origin.find("://");
  return scheme_end != std::string_view::npos &&
         absl::EqualsIgnoreCase(ToAbsl(origin.substr(scheme_end + 3)), ToAbsl(host));
}

}  // namespace

bool OriginCheck::Admits(const HttpRequest& request) const {
  const std::string_view origin = request.Header("origin");
  // Scripts cannot set Sec-Fetch-Site, and browsers send this header only to HTTPS and loopback
  // URLs. So the header can be trusted even if a proxy changes Host.
  if (origin.empty() || request.Header("sec-fetch-site") == "same-origin" || IsAllowed(origin)) {
    return true;
  }
  const std::string_view host = request.Header("host");
  return IsOfHost(origin, host) && (!is_local_ || IsOutsideDns(host));
}

bool OriginCheck::IsAllowed(std::string_view origin) const {
  return std::ranges::any_of(
      allowed_, [&](const std::string& each) { return each == "*" || each == origin; });
}

std::vector<HttpRoute> Guarded(std::vector<HttpRoute> routes, const OriginCheck& check) {
  for (HttpRoute& route : routes) {
    route.handler = [&check, handler = std::move(route.handler)](HttpRequest request,
                                                                 HttpResponder responder) {
      if (check.Admits(request)) {
        handler(std::move(request), std::move(responder));
      } else {
        responder.Answer(OtherOrigin());
      }
    };
  }
  return routes;
}

}  // namespace quire
