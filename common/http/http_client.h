// HttpClient is a blocking HTTP/1.1 client of one server, over TCP, TLS or a Unix socket. It keeps
// its connection open between calls. Redirects are returned like other answers; cookies are
// ignored.
//
// The server is not trusted: an answer's header has at most 16 KiB, and the caller bounds the body.
//
// Thread safety: Send and Stream: one thread at a time. Cancel: any thread.
// Errors:        kUnavailable HTTP_CONNECT: the server cannot be reached
//                kUnavailable HTTP_CUT: the connection breaks before the answer's end
//                kDeadlineExceeded HTTP_TIMEOUT; kCancelled
//                kInternal HTTP_ANSWER: the server's bytes are no HTTP/1.x answer
//                kInternal HTTP_ANSWER_SIZE: the answer exceeds its bound
//                kInvalidArgument HTTP_REQUEST: the request cannot be sent
//                kInvalidArgument TLS_FILE: OpenSSL refuses the files
//                An answer of any status code is no error.
#ifndef QUIRE_COMMON_HTTP_HTTP_CLIENT_H_
#define QUIRE_COMMON_HTTP_HTTP_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "common/http/http_message.h"
#include "common/wire/address.h"
#include "common/wire/tls_files.h"

namespace quire {

struct HttpClientRequest {
  std::string method = "GET";
  std::string target = "/";  // path and query, percent-encoded
  HttpHeaders headers = {};  // besides Host and Content-Length, which the client adds
  std::string body = {};
};

struct HttpClientOptions {
  Address address;
  // Null: plain text. Otherwise the server's certificate must name its host. One of these files'
  // authorities must have issued it, or one of the system's if the files have none.
  std::shared_ptr<TlsFiles> tls = nullptr;
  // The server's name in the Host header and in its certificate; empty: the address's host.
  std::string host = {};
  int64_t connect_timeout_ns = 10 * kNanosPerSecond;  // TCP and TLS handshakes included
};

// Called with the answer's status line and headers, and the next bytes of its body. `piece` is
// never empty. Returns false to cancel the call.
using HttpPieceCallback = std::function<bool(const HttpResponse& head, std::string_view piece)>;

class HttpClient {
 public:
  using Options = HttpClientOptions;

  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Returns the whole answer. timeout_ns bounds the duration of the call. The resolution of a host
  // name can go on after a timeout; the destructor waits until it ends.
  absl::StatusOr<HttpResponse> Send(const HttpClientRequest& request,
                                    size_t max_body_bytes,
                                    int64_t timeout_ns);

  // Gives the body to `on_piece` as it arrives. Returns the answer without its body. timeout_ns
  // bounds the duration of the call; kInfiniteFuture: no bound.
  absl::StatusOr<HttpResponse> Stream(const HttpClientRequest& request,
                                      int64_t timeout_ns,
                                      const HttpPieceCallback& on_piece);

  // Ends the running call, if any, with kCancelled.
  void Cancel();

 private:
  class Impl;  // keeps Boost out of this header

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_CLIENT_H_
