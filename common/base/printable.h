// Printable and OneLine make untrusted text safe for one line of a log or terminal: the result has
// no line breaks and no escape sequences.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_BASE_PRINTABLE_H_
#define QUIRE_COMMON_BASE_PRINTABLE_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// Returns at most the first `max_bytes` bytes, with '?' for each byte that is not printable ASCII.
inline std::string Printable(std::string_view text, size_t max_bytes = std::string_view::npos) {
  std::string printable(text.substr(0, max_bytes));
  std::replace_if(
      printable.begin(), printable.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return printable;
}

// Returns the whole text as one line. Control characters (C0, DEL, and C1 in UTF-8) become '?';
// letters of any language stay.
inline std::string OneLine(std::string_view text) {
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_c1 = text[i] == '\xC2' && i + 1 < text.size() &&
                       static_cast<unsigned char>(text[i + 1]) - 0x80U < 0x20U;
    const auto c = static_cast<unsigned char>(text[i]);
    line.push_back(is_c1 || c < ' ' || c == 0x7F ? '?' : text[i]);
    i += is_c1 ? 1 : 0;
  }
  return line;
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_PRINTABLE_H_
