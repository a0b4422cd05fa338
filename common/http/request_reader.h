// RequestReader turns the bytes of a connection into one request. Boost.Beast parses the bytes. The
// reader also enforces the rules below. A request that breaks one could mean something else to
// another server on the way (request smuggling, RFC 9112 section 11.2):
//
//   lines           only CRLF ends a line; no control byte; no folded header
//   request line    an origin-form target ("/...") of visible ASCII; a valid percent encoding
//   Host            exactly one, in HTTP/1.0 at most one
//   body's length   one Content-Length of digits, or Transfer-Encoding: chunked in HTTP/1.1 alone
//   chunks          extensions of at most kMaxChunkExtensionBytes each; trailers of at most
//                   kMaxHeaderBytes, which are dropped
//
// Thread safety: one thread at a time.
// Cost:          one pass over the header, one copy of the body, which grows as it arrives.
#ifndef QUIRE_COMMON_HTTP_REQUEST_READER_H_
#define QUIRE_COMMON_HTTP_REQUEST_READER_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "common/http/body_memory.h"
#include "common/http/http_message.h"

namespace quire {

class RequestReader {
 public:
  static constexpr size_t kMaxHeaderBytes = 8192;
  static constexpr size_t kMaxChunkExtensionBytes = 256;

  enum class State { kHeader, kBody, kDone, kFailed };

  // max_body_bytes: 0 refuses each request with a body.
  RequestReader(size_t max_body_bytes, std::shared_ptr<BodyMemory> memory);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // Reads from `bytes`, and returns the number of used bytes. The next call must pass the unused
  // bytes again, followed by newly received ones. The call that completes the header returns early,
  // so that the caller can refuse the request before its body.
  // REQUIRES: bytes is not empty, and the state is kHeader or kBody.
  size_t Put(std::string_view bytes);

  State state() const { return state_; }

  // Returns the status code that answers a request in state kFailed: 400, 413 (body too large), 431
  // (header too large), 503 (BodyMemory exhausted) or 505 (neither HTTP/1.0 nor 1.1).
  int failure() const { return failure_; }

  // In kBody the request lacks only its body; in kDone it is complete.
  const HttpRequest& request() const { return request_; }
  HttpRequest TakeRequest() { return std::move(request_); }

  // REQUIRES for the next three functions: the state is kBody or kDone.
  bool is_http_1_0() const { return is_http_1_0_; }
  bool keep_alive() const { return keep_alive_; }
  // Returns true if the client waits for "100 Continue" before it sends the body.
  bool expects_continue() const { return expects_continue_; }

 private:
  struct Parser;  // keeps Boost out of this header

  // Returns the size of the header in bytes, or 0 if the header is incomplete or was refused.
  size_t FindHeaderEnd(std::string_view bytes);
  size_t PutHeader(std::string_view bytes);
  size_t PutBody(std::string_view bytes);
  // TakeHeader and TakeTarget return false if the request violates a rule of the file comment.
  bool TakeHeader();
  bool TakeTarget(std::string_view target);
  size_t Fail(int status_code);
  void Finish();

  const size_t max_body_bytes_;
  std::unique_ptr<Parser> parser_;
  State state_ = State::kHeader;
  int failure_ = 0;
  size_t num_scanned_ = 0;  // bytes of the header that FindHeaderEnd has checked
  size_t line_begin_ = 0;   // index of the first byte of the line that FindHeaderEnd checks
  HttpRequest request_;
  bool is_http_1_0_ = false;
  bool keep_alive_ = false;
  bool expects_continue_ = false;
  bool is_in_chunk_line_ = false;  // the parser needs more of a chunk's line or of the trailers
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_REQUEST_READER_H_
