#include "common/http/http_route.h"

#include <algorithm>

namespace quire {
namespace {

// Returns the length of the match, plus 1 if it is exact; 0 if the route does not match the path.
size_t FitOf(const HttpRoute& route, std::string_view path) {
  if (path == route.path) {
    return path.size() + 1;
  }
  return route.is_prefix && path.starts_with(route.path) ? route.path.size() : 0;
}

}  // namespace

HttpRouteTable::Found HttpRouteTable::Find(std::string_view method, std::string_view path) const {
  size_t best = 0;
  for (const HttpRoute& route : routes_) {
    best = std::max(best, FitOf(route, path));
  }
  Found found;
  for (const HttpRoute& route : routes_) {
    if (best == 0 || FitOf(route, path) != best) {
      continue;
    }
    if (method == route.method || (method == "HEAD" && route.method == "GET")) {
      found.route = &route;
    }
    found.allow += (found.allow.empty() ? "" : ", ") + route.method;
    found.allow += route.method == "GET" ? ", HEAD" : "";
  }
  return found;
}

}  // namespace quire
