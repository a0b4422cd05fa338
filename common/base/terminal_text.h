// TerminalText makes a stream of UTF-8 safe for a terminal. Without it an escape sequence in a
// model's answer could change the terminal's title, clipboard or contents.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_COMMON_BASE_TERMINAL_TEXT_H_
#define QUIRE_COMMON_BASE_TERMINAL_TEXT_H_

#include <string>
#include <string_view>

namespace quire {

class TerminalText {
 public:
  // Escapes the next piece, which may begin and end inside a character. Control characters other
  // than newline and tab (C0, DEL, and C1, also as stray single bytes) are written as in JSON, like
  // \u001b. Other characters stay. A final byte that may begin a C1 character is held for the next
  // piece.
  std::string Escape(std::string_view piece);

  // Returns the held byte, or an empty string.
  std::string End();

 private:
  void Append(char c, std::string& out);

  bool holds_c2_ = false;      // holds back 0xC2, which begins U+0080 to U+00BF
  int num_continuations_ = 0;  // continuation bytes that the current character still lacks
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_TERMINAL_TEXT_H_
