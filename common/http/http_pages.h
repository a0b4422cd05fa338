// ServePages answers GET and HEAD on a few fixed paths with text rendered on demand, such as
// metrics and health; "/" lists the paths. Limits keep health checks answered whatever clients do:
//
//   connections  at most kMaxPageConnections; a further one ends the least recent one
//   a request    has no body
//   an answer    must be received by the client within 10 s
//   a page       rendered once for all concurrent requests; under constant load a page is up to
//                20 ms old, and rendering takes at most a fifth of the thread's time
//
// Thread safety: as HttpServer. The server's thread calls HttpPage::make, for one page at a time;
//                `make` must not wait.
#ifndef QUIRE_COMMON_HTTP_HTTP_PAGES_H_
#define QUIRE_COMMON_HTTP_HTTP_PAGES_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/http/http_message.h"
#include "common/http/http_server.h"

namespace quire {

// Half of kReservedFiles (common/wire/listener.cc), the descriptors that the gRPC ports leave to
// the rest of the process.
inline constexpr size_t kMaxPageConnections = 32;

struct HttpPage {
  std::string path;  // matched exactly; a query ("?...") is ignored
  std::function<HttpResponse()> make;
};

// host: an address or a name; the server listens on all addresses of a name. port: 0 picks a free
// port. Errors: as HttpServer::Start.
absl::StatusOr<std::unique_ptr<HttpServer>> ServePages(const std::string& host,
                                                       int port,
                                                       std::vector<HttpPage> pages);

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_PAGES_H_
