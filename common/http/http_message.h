// HttpRequest is a handler's input. HttpResponse is its answer.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_HTTP_HTTP_MESSAGE_H_
#define QUIRE_COMMON_HTTP_HTTP_MESSAGE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/http/body_memory.h"

namespace quire {

// Names and values, in the order of the message.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // as sent; may be HEAD for a route of GET
  std::string path;    // percent-decoded, begins with '/', without control bytes
  std::string query;   // as sent, without '?'
  HttpHeaders headers;
  std::string body;
  std::string peer;    // IP address of the client, or "unix"
  std::string tenant;  // tenant of the API key; empty for an open route or a server without keys
  BodyCharge charge;   // the body's part of the server's BodyMemory

  // Returns the value of the first header with this name (in any letter case), or "".
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status_code = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  // Further headers. The server adds Cache-Control: no-store, Connection and the headers that frame
  // the body. A control byte in a name or value becomes a space.
  HttpHeaders headers = {};
};

// Appends status line, headers and empty line. If is_chunked, announces a body in chunks or, for
// HTTP/1.0, a body that ends with the connection. Otherwise announces the body's length.
void AppendResponseHead(const HttpResponse& response,
                        bool is_chunked,
                        bool is_http_1_0,
                        bool keep_alive,
                        std::string* out);

// Returns false for the status codes whose answers have no body: 204 and 304.
bool HasBody(int status_code);

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_MESSAGE_H_
