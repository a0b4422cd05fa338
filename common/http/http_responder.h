// HttpResponder answers one request, now or later: with Answer, or with Begin, any number of Write,
// and Finish. A responder that is destroyed before it answers sends 500. A stream whose responder
// is destroyed before Finish is cut, so that the client sees that the stream is incomplete.
//
// A streamed answer is chunked (for an HTTP/1.0 client it ends with the connection). Text is sent
// at once; texts written while the socket is busy are sent together.
//
// Back-pressure: `unsent_bytes` counts bytes that the kernel has not accepted. A writer that is
// faster than its client should stop at a limit of its own, and continue in an OnDrained callback.
// A stream is cut if text is written while more than HttpServerOptions::max_unsent_bytes are
// unsent, or if its client accepts nothing for stall_timeout.
//
// A client is gone when its connection breaks, or when it ends its sending side before the
// responder has given the whole answer. From then on, calls do nothing.
//
// Thread safety: any thread, but only one moves or destroys the responder. The server's thread runs
//                callbacks; ~HttpServer runs OnDisconnect callbacks in its own thread. A callback
//                may use the responder, and may run briefly after the responder's destruction.
// Cost:          Write copies its text once, and wakes the server's thread unless a wake-up is on
//                its way.
#ifndef QUIRE_COMMON_HTTP_HTTP_RESPONDER_H_
#define QUIRE_COMMON_HTTP_HTTP_RESPONDER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "common/http/http_message.h"

namespace quire {

class HttpExchange;

class HttpResponder {
 public:
  explicit HttpResponder(std::shared_ptr<HttpExchange> exchange);
  ~HttpResponder();
  HttpResponder(HttpResponder&&) noexcept = default;
  HttpResponder& operator=(HttpResponder&&) = delete;

  // REQUIRES: neither Answer nor Begin was called.
  void Answer(HttpResponse response);
  // Begins a stream: sends the status line and headers of `response`. REQUIRES: neither Answer nor
  // Begin was called; HasBody(response.status_code).
  void Begin(HttpResponse response);

  // Returns false, and drops the text, if the client is gone or the stream was cut.
  // REQUIRES for Write and Finish: Begin was called, Finish was not.
  bool Write(std::string_view text);
  void Finish();

  // Returns true if the client is gone. More work on the answer is then useless.
  bool is_gone() const;

  size_t unsent_bytes() const;

  // Calls `callback` once, as soon as at most max_unsent_bytes are unsent, perhaps before OnDrained
  // returns. Replaces an earlier callback that has not been called. Once the client is gone, no
  // callback is called.
  void OnDrained(size_t max_unsent_bytes, std::function<void()> callback);

  // Calls `callback` once if the client leaves before the whole answer was given. If the client is
  // gone already, calls it before OnDisconnect returns. Call OnDisconnect at most once.
  void OnDisconnect(std::function<void()> callback);

  // Runs `task` on the server's thread, after the requests that have already arrived. Drops `task`
  // if the client is gone.
  void Post(std::function<void()> task);

 private:
  std::shared_ptr<HttpExchange> exchange_;  // null after a move
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_RESPONDER_H_
