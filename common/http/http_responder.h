// HttpResponder answers one request, now or later: with Answer, or with Begin, any number of Write,
// and Finish. A destroyed responder that has not answered sends 500; an unfinished stream is cut,
// so that the client sees that it is incomplete.
//
// A streamed answer is chunked (for an HTTP/1.0 client it ends with the connection). What is
// written is sent at once; writes that come while the socket is busy are sent together.
//
// Back-pressure: `unsent_bytes` counts what the kernel has not accepted. A writer that outruns its
// client stops at a mark of its own and continues in OnDrained. A stream is cut if it is written to
// while more than HttpServerOptions::max_unsent_bytes are unsent, and when its client accepts
// nothing for stall_timeout.
//
// A client is gone when its connection breaks, or when it ends its sending side before the whole
// answer was given. Later calls do nothing.
//
// Thread safety: any thread; moving and destroying, one thread. The server's thread calls the
//                callbacks (its destructor's thread calls OnDisconnect for streams that it cuts); a
//                callback may use the responder, and may come briefly after its destruction.
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
  // As Answer, but the body follows; the response's own body is unused. REQUIRES: a status code
  // whose answers have a body (HasBody).
  void Begin(HttpResponse response);

  // Returns false if the client is gone or the stream was cut: it needs no more text.
  // REQUIRES of both: Begin was called, Finish was not.
  bool Write(std::string_view text);
  void Finish();

  // True if the client is gone, so that work for it is in vain.
  bool is_gone() const;

  size_t unsent_bytes() const;

  // Calls `callback` once, when at most max_unsent_bytes are unsent, which may be at once, in the
  // caller's thread. Replaces a callback that has not been called. Never calls it after the client
  // is gone.
  void OnDrained(size_t max_unsent_bytes, std::function<void()> callback);

  // Calls `callback` once if the client is gone before the whole answer was given; at once, in the
  // caller's thread, if it is gone already. Call once.
  void OnDisconnect(std::function<void()> callback);

  // Runs `task` on the server's thread, after the requests that have already arrived. Drops it if
  // the client is gone.
  void Post(std::function<void()> task);

 private:
  std::shared_ptr<HttpExchange> exchange_;  // null after a move
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_HTTP_RESPONDER_H_
