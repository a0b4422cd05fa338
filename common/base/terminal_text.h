// TerminalText makes a stream of UTF-8 safe for a terminal. Without TerminalText, an escape
// sequence in a model's answer could change the terminal's title, clipboard or contents.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_COMMON_BASE_TERMINAL_TEXT_H_
#define QUIRE_COMMON_BASE_TERMINAL_TEXT_H_

#include <string>
#include <string_view>

namespace quire {

class TerminalText {
 public:
  // Escapes the next piece, which can begin and end in the middle of a character. Writes control
  // characters as JSON does, for example \u001b. Control characters are DEL, C0 (except newline and
  // tab) and C1, as UTF-8 or as a single byte. Other characters stay. Keeps a final 0xC2 back until
  // the next call, because 0xC2 could begin a C1 character.
  std::string Escape(std::string_view piece);

  // Ends the stream: returns the byte that Escape kept back, or an empty string.
  std::string End();

 private:
  void Append(char c, std::string& out);

  bool holds_c2_ = false;      // true: Escape kept 0xC2 back, the first byte of U+0080 to U+00BF
  int num_continuations_ = 0;  // continuation bytes that the current character still lacks
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_TERMINAL_TEXT_H_
