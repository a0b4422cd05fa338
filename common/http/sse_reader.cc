#include "common/http/sse_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"

namespace quire {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kData = "data";
constexpr std::string_view kDone = "[DONE]";

}  // namespace

absl::Status SseReader::Put(std::string_view bytes,
                            const std::function<void(std::string_view data)>& on_event) {
  while (!bytes.empty() && !is_done_) {
    if (std::exchange(was_cr_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    if (data_.size() + line_.size() + end > max_event_bytes_) {
      return Error(
          absl::StatusCode::kInternal,
          "SSE_EVENT_SIZE",
          absl::StrCat("an event of the server is too large (limit ", max_event_bytes_, " bytes)"));
    }
    line_.append(bytes.substr(0, end));
    if (end == bytes.size()) {
      return absl::OkStatus();
    }
    was_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    EndLine(on_event);
  }
  return absl::OkStatus();
}

void SseReader::EndLine(const std::function<void(std::string_view data)>& on_event) {
  const std::string text = std::exchange(line_, "");
  std::string_view line = text;
  if (std::exchange(is_first_line_, false) && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (line.empty()) {
    std::string data = std::exchange(data_, "");
    if (data.empty()) {
      return;
    }
    data.pop_back();
    if (data == kDone) {
      is_done_ = true;
    } else {
      on_event(data);
    }
    return;
  }
  const size_t colon = std::min(line.find(':'), line.size());
  if (line.substr(0, colon) != kData) {
    return;
  }
  line.remove_prefix(std::min(colon + 1, line.size()));
  if (line.starts_with(' ')) {
    line.remove_prefix(1);
  }
  data_.append(line);
  data_.push_back('\n');
}

}  // namespace quire
