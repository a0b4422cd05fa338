#include "common/metrics/http_endpoint.h"

#include <civetweb.h>

#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"

namespace quire {
namespace {

constexpr std::string_view kMethodNotAllowed =
    "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\n\r\n";

void Send(mg_connection* connection, std::string_view bytes) {
  mg_write(connection, bytes.data(), bytes.size());  // a client that is gone is no concern of ours
}

const char* ReasonPhrase(int status_code) {
  return status_code == 200 ? "OK" : "Service Unavailable";
}

// Registered for everything below the page's path as well, hence the comparison.
int HandleRequest(mg_connection* connection, void* page_pointer) {
  const auto& page = *static_cast<const HttpPage*>(page_pointer);
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string_view method(request->request_method);
  if (request->local_uri == nullptr || page.path != request->local_uri) {
    return 0;  // civetweb answers 404
  }
  if (method != "GET" && method != "HEAD") {
    Send(connection, kMethodNotAllowed);
    return 405;
  }
  const HttpResponse response = page.make();
  Send(connection,
       absl::StrCat("HTTP/1.1 ",
                    response.status_code,
                    " ",
                    ReasonPhrase(response.status_code),
                    "\r\nContent-Type: ",
                    response.content_type,
                    "\r\nContent-Length: ",
                    response.body.size(),
                    "\r\nCache-Control: no-store\r\n\r\n"));
  if (method == "GET") {
    Send(connection, response.body);
  }
  return response.status_code;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const std::string& host,
                                                                  int port,
                                                                  std::vector<HttpPage> pages) {
  std::unique_ptr<HttpEndpoint> endpoint(new HttpEndpoint(std::move(pages)));
  const bool is_ipv6 = host.find(':') != std::string::npos;
  const std::string address =
      absl::StrCat(is_ipv6 ? absl::StrCat("[", host, "]") : host, ":", port);
  const std::array<const char*, 13> options = {"listening_ports",
                                               address.c_str(),
                                               "num_threads",
                                               "8",
                                               "enable_keep_alive",
                                               "yes",
                                               "keep_alive_timeout_ms",
                                               "15000",
                                               "tcp_nodelay",
                                               "1",
                                               "request_timeout_ms",
                                               "10000",
                                               nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };  // quiet
  // Without a document root, civetweb serves no file.
  endpoint->server_ = mg_start(&callbacks, nullptr, const_cast<const char**>(options.data()));
  mg_server_port listening = {};
  if (endpoint->server_ == nullptr || mg_get_server_ports(endpoint->server_, 1, &listening) < 1) {
    return Error(absl::StatusCode::kUnavailable,
                 "HTTP_BIND",
                 absl::StrCat("http: cannot listen on ", address));
  }
  endpoint->port_ = listening.port;
  for (const HttpPage& page : endpoint->pages_) {
    mg_set_request_handler(
        endpoint->server_, page.path.c_str(), HandleRequest, const_cast<HttpPage*>(&page));
  }
  return endpoint;
}

HttpEndpoint::~HttpEndpoint() {
  if (server_ != nullptr) {
    mg_stop(server_);
  }
}

}  // namespace quire
