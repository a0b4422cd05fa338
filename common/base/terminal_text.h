// TerminalText makes a stream of UTF-8 safe for a terminal. An escape sequence in an answer of a
// model could else change the terminal's title, its clipboard or what it shows.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_COMMON_BASE_TERMINAL_TEXT_H_
#define QUIRE_COMMON_BASE_TERMINAL_TEXT_H_

#include <string>
#include <string_view>

namespace quire {

class TerminalText {
 public:
  // The next piece, which may begin and end inside a character. Control characters other than
  // newline and tab (C0, DEL, and C1, also as single bytes that belong to no character) become
  // \u001b, as JSON writes them. All else stays. A byte that may begin a C1 character waits for the
  // next piece.
  std::string Escape(std::string_view piece);

  // The byte that waits, or nothing.
  std::string End();

 private:
  void Append(char c, std::string& out);

  bool holds_c2_ = false;      // 0xC2 begins U+0080 to U+00BF
  int num_continuations_ = 0;  // bytes that the character has yet to come
};

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_TERMINAL_TEXT_H_
