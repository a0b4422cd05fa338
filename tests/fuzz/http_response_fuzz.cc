// Bytes as a server's answer. The first byte is the size of the pieces that they come in; the
// second says whether the request was HEAD. The answer is refused or read in the same way whatever
// the pieces are. Its body, as a stream of events, gives the events of the definition in any
// pieces.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/http/response_reader.h"
#include "common/http/sse_reader.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

using quire::HttpResponse;
using quire::ResponseReader;
using quire::SseReader;

constexpr size_t kMaxEventBytes = 64;

struct Outcome {
  bool is_ok = false;
  bool is_done = false;  // before the connection's end
  bool keeps_alive = false;
  HttpResponse head;
  std::string body;
};

Outcome Read(std::string_view bytes, size_t step, bool is_head) {
  Outcome outcome;
  ResponseReader reader(is_head, [&outcome](const HttpResponse& /*head*/, std::string_view piece) {
    outcome.body.append(piece);
    return true;
  });
  size_t num_used = 0;
  size_t end = 0;
  while (!reader.is_done() && num_used < bytes.size()) {
    const std::string_view unused = bytes.substr(num_used, end - num_used);
    size_t used = 0;
    if (!unused.empty()) {
      const auto put = reader.Put(unused);
      if (!put.ok()) {
        return outcome;
      }
      QUIRE_CHECK_LE(*put, unused.size());
      used = *put;
    }
    num_used += used;
    if (used == 0) {
      QUIRE_CHECK(unused.size() < ResponseReader::kMaxHeaderBytes);
      if (end == bytes.size()) {
        break;
      }
      end += std::min(step, bytes.size() - end);
    }
  }
  outcome.is_done = reader.is_done();
  outcome.is_ok = reader.is_done() || reader.PutEnd().ok();
  if (reader.has_head()) {
    outcome.head = reader.head();
  }
  outcome.keeps_alive = outcome.is_done && reader.keep_alive();
  return outcome;
}

struct Events {
  bool is_ok = true;
  bool is_done = false;
  std::vector<std::string> data;

  friend bool operator==(const Events&, const Events&) = default;
};

Events ReadEvents(std::string_view text, size_t step) {
  Events events;
  SseReader reader(kMaxEventBytes);
  while (!text.empty() && events.is_ok) {
    events.is_ok = reader
                       .Put(text.substr(0, step),
                            [&](std::string_view data) { events.data.emplace_back(data); })
                       .ok();
    text.remove_prefix(std::min(step, text.size()));
  }
  events.is_done = reader.is_done();
  return events;
}

// The definition, without bounds: WHATWG HTML, section 9.2.6.
Events DefinedEvents(std::string text) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.erase(0, 3);
  }
  Events events;
  std::vector<std::string> lines;
  for (size_t end = 0; (end = text.find_first_of("\r\n")) != std::string::npos;) {
    const std::string line = text.substr(0, end);
    text.erase(0, end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1));
    if (line.starts_with("data:") || line == "data") {
      std::string value = line.size() > 5 ? line.substr(5) : "";
      lines.push_back(value.starts_with(' ') ? value.substr(1) : value);
    } else if (line.empty() && !lines.empty()) {
      std::string data = lines.front();
      std::for_each(lines.begin() + 1, lines.end(), [&](const auto& more) { data += "\n" + more; });
      lines.clear();
      if (data == "[DONE]") {
        events.is_done = true;
        return events;
      }
      events.data.push_back(data);
    }
  }
  return events;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::FuzzInput input(data, size);
  const size_t step = std::max<size_t>(input.TakeByte(), 1);
  const bool is_head = (input.TakeByte() & 1) != 0;
  const std::string_view bytes = input.TakeRest();

  const Outcome whole = Read(bytes, bytes.size() + 1, is_head);
  const Outcome pieces = Read(bytes, step, is_head);
  QUIRE_CHECK_EQ(whole.is_ok, pieces.is_ok);
  if (whole.is_ok) {
    QUIRE_CHECK_EQ(whole.is_done, pieces.is_done);
    QUIRE_CHECK_EQ(whole.keeps_alive, pieces.keeps_alive);
    QUIRE_CHECK_EQ(whole.head.status_code, pieces.head.status_code);
    QUIRE_CHECK(whole.head.content_type == pieces.head.content_type);
    QUIRE_CHECK(whole.head.headers == pieces.head.headers);
    QUIRE_CHECK(whole.body == pieces.body);
    QUIRE_CHECK(!is_head || whole.body.empty());
    QUIRE_CHECK(whole.head.status_code >= 200 && whole.head.status_code < 1000);
  }
  QUIRE_CHECK(whole.body.size() <= bytes.size());

  // Bytes that are no HTTP are tried as a stream of events too.
  const std::string_view text = whole.is_ok && !whole.body.empty() ? whole.body : bytes;
  const Events events = ReadEvents(text, text.size() + 1);
  QUIRE_CHECK(events == ReadEvents(text, step));
  QUIRE_CHECK(!events.is_ok || events == DefinedEvents(std::string(text)));
  quire::is_accepted = whole.is_ok && events.is_ok;
  return 0;
}
