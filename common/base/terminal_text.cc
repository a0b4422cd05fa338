#include "common/base/terminal_text.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace quire {
namespace {

constexpr char kC2 = '\xC2';

bool IsContinuation(unsigned char c) { return c >= 0x80 && c <= 0xBF; }
// Returns true for a byte that is a C1 control character by itself. In UTF-8 the same character is
// 0xC2 followed by this byte.
bool IsC1(unsigned char c) { return c >= 0x80 && c <= 0x9F; }
bool IsC0(unsigned char c) { return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F; }

int NumContinuations(unsigned char lead) {
  return lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
}

}  // namespace

std::string TerminalText::Escape(std::string_view piece) {
  std::string out;
  for (const char c : piece) {
    if (std::exchange(holds_c2_, false)) {
      // If c is a C1 byte, the held 0xC2 and c are one C1 character in UTF-8. Terminals treat this
      // character like c alone: both U+009B and 0x9B begin an escape sequence (CSI).
      if (IsC1(static_cast<unsigned char>(c))) {
        Append(c, out);
        continue;
      }
      out.push_back(kC2);
      num_continuations_ = 1;
    }
    if (c == kC2) {
      num_continuations_ = 0;
      holds_c2_ = true;
    } else {
      Append(c, out);
    }
  }
  return out;
}

std::string TerminalText::End() {
  num_continuations_ = 0;
  return std::exchange(holds_c2_, false) ? std::string(1, kC2) : std::string();
}

void TerminalText::Append(char c, std::string& out) {
  const auto byte = static_cast<unsigned char>(c);
  const bool continues = IsContinuation(byte) && num_continuations_ > 0;
  if (IsC0(byte) || (IsC1(byte) && !continues)) {
    absl::StrAppendFormat(&out, "\\u%04x", byte);
  } else {
    out.push_back(c);
  }
  num_continuations_ = continues ? num_continuations_ - 1 : NumContinuations(byte);
}

}  // namespace quire
