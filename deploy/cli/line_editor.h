// LineEditor turns the keys of a terminal into lines. The kernel's own editor drops the bytes of a
// line beyond 4,095, so a long pasted message would be cut.
//
// Enter ends the line. Backspace, Ctrl-W and Ctrl-U erase a character, a word and the line. Ctrl-D
// ends the input if the line is empty. Line ends of a bracketed paste (LF, CR or CRLF) stay in the
// line, as LF. Escape sequences, such as those of arrow keys, and other control characters are
// dropped.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_DEPLOY_CLI_LINE_EDITOR_H_
#define QUIRE_DEPLOY_CLI_LINE_EDITOR_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/terminal_text.h"

namespace quire {

class LineEditor {
 public:
  enum class Event { kNeedsKeys, kLine, kEndOfInput };

  // prompt: shown again when the line must be redrawn. max_line_bytes: a longer line is cut to
  // max_line_bytes + 1 bytes, so that the caller can see that it was too long.
  LineEditor(std::string prompt, size_t max_line_bytes)
      : prompt_(std::move(prompt)), max_line_bytes_(max_line_bytes) {}

  // Takes keys from the front of `keys` until an event occurs or all keys are taken.
  Event Put(std::string_view* keys);

  // Returns the line, and begins the next one.
  std::string TakeLine() { return std::exchange(line_, ""); }
  // Returns what the terminal must show for the keys since the last call.
  std::string TakeEcho() { return std::exchange(echo_, ""); }

 private:
  Event Take(char key);
  Event Control(char key);
  void TakeOfSequence(char key);
  void Append(char c);
  void Erase();
  void EraseWord();
  // Erases the characters after the first `size` bytes, on the terminal too.
  void CutTo(size_t size);
  void Redraw();

  const std::string prompt_;
  const size_t max_line_bytes_;
  std::string line_;
  std::string echo_;
  TerminalText escaper_;
  std::string sequence_;     // an escape sequence that has begun
  bool is_pasting_ = false;  // inside a bracketed paste
  bool is_after_cr_ = false;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_LINE_EDITOR_H_
