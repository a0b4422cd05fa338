// HttpClientPool makes concurrent calls to one server, on one thread. A call takes the idle
// connection that was used last, or opens a new one if none is idle.
//
// Thread safety: Start: any thread. The pool's thread calls the callbacks, which must not wait.
// Errors:        those of HttpClient.
#ifndef QUIRE_COMMON_HTTP_HTTP_CLIENT_POOL_H_
#define QUIRE_COMMON_HTTP_HTTP_CLIENT_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"

#include "common/http/http_client.h"

namespace quire {

class HttpClientPool {
 public:
  using OnEnd = std::function<void(absl::StatusOr<HttpResponse> head)>;

  explicit HttpClientPool(HttpClientOptions options);
  // Cancels the running calls.
  ~HttpClientPool();
  HttpClientPool(const HttpClientPool&) = delete;
  HttpClientPool& operator=(const HttpClientPool&) = delete;

  // Begins a call like HttpClient::Stream. Calls on_end once, with the head of the answer.
  void Start(HttpClientRequest request,
             int64_t timeout_ns,
             HttpPieceCallback on_piece,
             OnEnd on_end);

 private:
  class Impl;  // keeps Boost out of this header

  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_CLIENT_POOL_H_
