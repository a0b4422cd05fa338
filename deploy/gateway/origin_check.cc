#include "deploy/gateway/origin_check.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/match.h"

#include "common/base/error.h"
#include "common/base/string_view.h"
#include "deploy/gateway/generation.h"

namespace quire {
namespace {

HttpResponse OtherOrigin() {
  return ErrorAnswer(
      Error(absl::StatusCode::kPermissionDenied,
            "ORIGIN",
            "origin: this server refuses web pages of other origins; it needs --allowed-origins"),
      std::nullopt,
      OpenAiApi::kCompletions);
}

}  // namespace

bool OriginCheck::Admits(const HttpRequest& request) const {
  const std::string_view origin = request.Header("origin");
  // Scripts cannot set Sec-Fetch-Site. It is right also behind a proxy that changes Host.
  if (origin.empty() || request.Header("sec-fetch-site") == "same-origin") {
    return true;
  }
  const bool is_allowed = std::ranges::any_of(
      allowed_, [&](const std::string& each) { return each == "*" || each == origin; });
  // A proxy may end TLS, so the scheme may differ. "null", the origin of sandboxed pages, has none.
  const size_t scheme_end = origin.find("://");
  return is_allowed || (scheme_end != std::string_view::npos &&
                        absl::EqualsIgnoreCase(ToAbsl(origin.substr(scheme_end + 3)),
                                               ToAbsl(request.Header("host"))));
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
