// Text of strangers for a line of ours: it neither ends the line nor moves the cursor.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_COMMON_BASE_PRINTABLE_H_
#define QUIRE_COMMON_BASE_PRINTABLE_H_

#include <algorithm>
#include <string>
#include <string_view>

namespace quire {

// At most the first `max_bytes` bytes. Those that are no printable ASCII become '?'.
inline std::string Printable(std::string_view text, size_t max_bytes = std::string_view::npos) {
  std::string printable(text.substr(0, max_bytes));
  std::replace_if(
      printable.begin(), printable.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return printable;
}

// All of it, in one line: control characters become '?', letters of any language stay.
inline std::string OneLine(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return (c >= '\0' && c < ' ') || c == '\x7f'; }, '?');
  return line;
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_PRINTABLE_H_
