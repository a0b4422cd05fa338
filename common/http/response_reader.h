// ResponseReader turns the bytes of a connection into one answer of a server. Interim answers (1xx)
// are dropped.
//
// Thread safety: one thread at a time.
// Errors:        those of HttpClient.
// Cost:          one pass; holds no part of the body.
#ifndef QUIRE_COMMON_HTTP_RESPONSE_READER_H_
#define QUIRE_COMMON_HTTP_RESPONSE_READER_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/http/http_client.h"
#include "common/http/http_message.h"

namespace quire {

class ResponseReader {
 public:
  // Bounds each of these: the header with its interim answers, a chunk's line, the trailers.
  static constexpr size_t kMaxHeaderBytes = 16384;

  // is_head: the request was a HEAD, so the answer has no body, even if its header announces one.
  ResponseReader(bool is_head, HttpPieceCallback on_piece);
  ~ResponseReader();
  ResponseReader(const ResponseReader&) = delete;
  ResponseReader& operator=(const ResponseReader&) = delete;

  // Reads from `bytes`, gives the body's pieces to on_piece, and returns how many bytes are used.
  // The next call must pass the unused bytes again, followed by newly received ones. A call with
  // kMaxHeaderBytes or more bytes uses at least one, or fails. REQUIRES: bytes is not empty,
  // !is_done(), and no call failed.
  absl::StatusOr<size_t> Put(std::string_view bytes);

  // Tells the reader that the connection has ended. Fails unless this end completes the answer.
  // REQUIRES: as Put.
  absl::Status PutEnd();

  bool is_done() const;
  // True once the header is complete.
  bool has_head() const { return has_head_; }
  // The answer without its body. REQUIRES: has_head().
  const HttpResponse& head() const { return head_; }
  // True if the connection can carry another call. REQUIRES: is_done().
  bool keep_alive() const;

 private:
  struct Parser;  // keeps Boost out of this header

  absl::StatusOr<size_t> PutHeader(std::string_view bytes);
  absl::StatusOr<size_t> PutBody(std::string_view bytes);
  void TakeHead();

  const bool is_head_;
  const HttpPieceCallback on_piece_;
  std::unique_ptr<Parser> parser_;
  size_t num_header_bytes_ = 0;
  size_t num_scanned_ = 0;  // bytes of the header that were searched for its end
  bool has_head_ = false;
  HttpResponse head_;
  bool is_in_chunk_line_ = false;  // the parser needs more of a chunk's line or of the trailers
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_RESPONSE_READER_H_
