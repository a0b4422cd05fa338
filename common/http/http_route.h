// HttpRoute names the handler of requests to a path. HttpRouteTable finds a request's route.
//
// Thread safety: HttpRoute is a value type; a HttpRouteTable does not change.
#ifndef QUIRE_COMMON_HTTP_HTTP_ROUTE_H_
#define QUIRE_COMMON_HTTP_HTTP_ROUTE_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/http/http_message.h"
#include "common/http/http_responder.h"

namespace quire {

// Called on the server's thread, so it must not wait; the answer may come later, from any thread.
using HttpHandler = std::function<void(HttpRequest, HttpResponder)>;

struct HttpRoute {
  std::string method;  // GET also takes HEAD; the answer's body is then not sent
  // The exact path or, with is_prefix, a prefix of paths. An exact match wins over a prefix, and a
  // longer prefix over a shorter one.
  std::string path;
  HttpHandler handler;
  bool is_prefix = false;
  bool is_open = false;  // needs no API key, even if the server has keys
};

class HttpRouteTable {
 public:
  explicit HttpRouteTable(std::vector<HttpRoute> routes) : routes_(std::move(routes)) {}

  struct Found {
    const HttpRoute* route = nullptr;  // null: no route has this method and path
    std::string allow = {};            // value of the Allow header; empty: no route has the path
  };
  Found Find(std::string_view method, std::string_view path) const;

 private:
  const std::vector<HttpRoute> routes_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_ROUTE_H_
