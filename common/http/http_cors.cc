#include "common/http/http_cors.h"

#include <algorithm>

namespace quire {
namespace {

// Headers that a page of another origin may read besides the CORS-safelisted ones.
constexpr char kExpose[] = "Access-Control-Expose-Headers";
constexpr char kExposed[] = "Retry-After, X-Request-Id";

}  // namespace

HttpHeaders AllowedOrigins::HeadersFor(const HttpRequest& request) const {
  const std::string origin(request.Header("origin"));
  if (origins_.empty() || origin.empty()) {
    return {};
  }
  // Allowing all origins is safe, because API keys come in a header, never in cookies. So a page
  // can use only a key that its user gives to the page.
  if (std::ranges::count(origins_, "*") > 0) {
    return {{"Access-Control-Allow-Origin", "*"}, {kExpose, kExposed}};
  }
  if (std::ranges::count(origins_, origin) == 0) {
    return {};
  }
  return {{"Access-Control-Allow-Origin", origin}, {"Vary", "Origin"}, {kExpose, kExposed}};
}

std::optional<HttpResponse> AllowedOrigins::Preflight(const HttpRequest& request,
                                                      const HttpHeaders& headers) {
  if (headers.empty() || request.method != "OPTIONS" ||
      request.Header("access-control-request-method").empty()) {
    return std::nullopt;
  }
  HttpResponse response = {.status_code = 204};
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST"},
                      {"Access-Control-Max-Age", "600"}};
  if (const std::string_view asked = request.Header("access-control-request-headers");
      !asked.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", asked);
  }
  return response;
}

}  // namespace quire
