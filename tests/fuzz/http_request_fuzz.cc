// Bytes as the input of a HTTP connection. The first byte is the size of the pieces that they come
// in, the second the limit of the body in units of 16 bytes. The request is refused or read in the
// same way whatever the pieces are; its header is free of what Beast and another server could read
// differently; its body keeps to the limits.
#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/http/request_reader.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_verdict.h"

namespace {

using quire::BodyMemory;
using quire::HttpRequest;
using quire::RequestReader;
using State = RequestReader::State;

struct Outcome {
  State state = State::kHeader;
  int failure = 0;
  size_t num_used = 0;
  size_t num_header_bytes = 0;
  HttpRequest request;
};

Outcome Read(std::string_view bytes,
             size_t step,
             size_t max_body_bytes,
             const std::shared_ptr<BodyMemory>& memory) {
  RequestReader reader(max_body_bytes, memory);
  Outcome outcome;
  size_t end = 0;
  while (reader.state() == State::kHeader || reader.state() == State::kBody) {
    const std::string_view unused = bytes.substr(outcome.num_used, end - outcome.num_used);
    const State before = reader.state();
    const size_t used = unused.empty() ? 0 : reader.Put(unused);
    QUIRE_CHECK_LE(used, unused.size());
    outcome.num_used += used;
    if (before == State::kHeader && used > 0) {
      outcome.num_header_bytes = used;
    }
    if (used == 0) {
      if (end == bytes.size()) {
        break;
      }
      end += std::min(step, bytes.size() - end);
    }
  }
  outcome.state = reader.state();
  outcome.failure = reader.failure();
  if (outcome.state == State::kDone) {
    outcome.request = reader.TakeRequest();
  }
  return outcome;
}

size_t Count(const HttpRequest& request, std::string_view name) {
  return static_cast<size_t>(
      std::count_if(request.headers.begin(), request.headers.end(), [name](const auto& header) {
        return std::equal(
            header.first.begin(), header.first.end(), name.begin(), name.end(), [](char a, char b) {
              return std::tolower(a) == b;
            });
      }));
}

// Every line of the header ends with CRLF, has no control byte and continues no other line.
void CheckLines(std::string_view header) {
  QUIRE_CHECK(header.ends_with("\r\n\r\n"));
  header.remove_suffix(2);
  while (!header.empty()) {
    const size_t end = header.find("\r\n");
    QUIRE_CHECK(end != std::string_view::npos && end > 0);
    const std::string_view line = header.substr(0, end);
    QUIRE_CHECK(line[0] != ' ' && line[0] != '\t');
    QUIRE_CHECK(std::all_of(line.begin(), line.end(), [](char c) {
      return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    }));
    header.remove_prefix(end + 2);
  }
}

void CheckRequest(const HttpRequest& request, size_t max_body_bytes) {
  QUIRE_CHECK(request.path.starts_with('/'));
  QUIRE_CHECK(std::none_of(
      request.path.begin(), request.path.end(), [](unsigned char c) { return std::iscntrl(c); }));
  QUIRE_CHECK_LE(Count(request, "host"), size_t{1});
  QUIRE_CHECK_LE(request.body.size(), max_body_bytes);
  const size_t num_lengths = Count(request, "content-length");
  const size_t num_encodings = Count(request, "transfer-encoding");
  QUIRE_CHECK_LE(num_lengths + num_encodings, size_t{1});
  if (num_lengths == 1) {
    QUIRE_CHECK_EQ(std::stoull(std::string(request.Header("content-length"))), request.body.size());
  } else {
    QUIRE_CHECK(num_encodings == 1 || request.body.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::FuzzInput input(data, size);
  const size_t step = std::max<size_t>(input.TakeByte(), 1);
  const size_t max_body_bytes = size_t{16} * input.TakeByte();
  const std::string_view bytes = input.TakeRest();
  const auto memory = std::make_shared<BodyMemory>(1 << 20);
  const auto small_memory = std::make_shared<BodyMemory>(4096);
  {
    const Outcome whole = Read(bytes, bytes.size() + 1, max_body_bytes, memory);
    const Outcome pieces = Read(bytes, step, max_body_bytes, memory);
    // A quoted extension that does not end in its line is never accepted, but Beast charges its
    // chunk again with each piece, so it may end as 413, as 400 or unfinished.
    const bool is_header_read = whole.num_header_bytes > 0;
    QUIRE_CHECK_EQ(is_header_read, pieces.num_header_bytes > 0);
    QUIRE_CHECK(is_header_read || whole.failure == pieces.failure);
    QUIRE_CHECK_EQ(whole.state == State::kDone, pieces.state == State::kDone);
    QUIRE_CHECK(whole.num_used == pieces.num_used || whole.state != State::kDone);
    QUIRE_CHECK(whole.request.path == pieces.request.path);
    QUIRE_CHECK(whole.request.headers == pieces.request.headers);
    QUIRE_CHECK(whole.request.body == pieces.request.body);
    QUIRE_CHECK((whole.state == State::kFailed) == (whole.failure != 0));
    if (whole.state == State::kDone) {
      CheckLines(bytes.substr(0, whole.num_header_bytes));
      CheckRequest(whole.request, max_body_bytes);
    }
    quire::is_accepted = whole.state == State::kDone;
    // A body that fits the string object itself takes no memory.
    QUIRE_CHECK(memory->used_bytes() >= 2 * whole.request.body.size() ||
                whole.request.body.size() <= std::string().capacity());

    const Outcome poor = Read(bytes, step, max_body_bytes, small_memory);
    QUIRE_CHECK(poor.failure == 503 || poor.state == pieces.state);
    QUIRE_CHECK_LE(small_memory->used_bytes(), size_t{4096});
  }
  QUIRE_CHECK_EQ(memory->used_bytes(), size_t{0});
  QUIRE_CHECK_EQ(small_memory->used_bytes(), size_t{0});
  return 0;
}
