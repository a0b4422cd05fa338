// SseReader turns the bytes of a text/event-stream into the data of its events, as a browser's
// EventSource does (WHATWG HTML, section 9.2.6). Fields other than `data` are ignored. An event
// with the data "[DONE]" ends the stream, as in OpenAI's API.
//
// Thread safety: one thread at a time.
// Errors:        kInternal SSE_EVENT_SIZE for an event beyond max_event_bytes.
// Cost:          one pass, one copy.
#ifndef QUIRE_COMMON_HTTP_SSE_READER_H_
#define QUIRE_COMMON_HTTP_SSE_READER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace quire {

class SseReader {
 public:
  // max_event_bytes bounds the sum of an event's data and current line.
  explicit SseReader(size_t max_event_bytes) : max_event_bytes_(max_event_bytes) {}

  // Reads the next bytes, which can begin and end anywhere, and calls `on_event` with the data of
  // each event that these bytes complete. REQUIRES: no earlier call failed.
  absl::Status Put(std::string_view bytes,
                   const std::function<void(std::string_view data)>& on_event);

  // True after "[DONE]": the rest of the stream is ignored.
  bool is_done() const { return is_done_; }

 private:
  void EndLine(const std::function<void(std::string_view data)>& on_event);

  const size_t max_event_bytes_;
  std::string line_;
  std::string data_;  // data of the event's lines so far, each with a '\n'
  bool is_first_line_ = true;
  bool was_cr_ = false;  // the last byte was '\r', so a '\n' now is part of the same line end
  bool is_done_ = false;
};

}  // namespace quire

#endif  // QUIRE_COMMON_HTTP_SSE_READER_H_
