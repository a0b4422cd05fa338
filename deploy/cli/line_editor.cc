#include "deploy/cli/line_editor.h"

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr char kCtrlD = '\x04';
constexpr char kBackspace = '\x08';
constexpr char kCtrlU = '\x15';
constexpr char kCtrlW = '\x17';
constexpr char kEscape = '\x1b';
constexpr char kDelete = '\x7f';
constexpr std::string_view kPasteBegin = "\x1b[200~";
constexpr std::string_view kPasteEnd = "\x1b[201~";

bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == kDelete; }
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n'; }
bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

// Returns the columns of the character that begins with this byte. From U+3000 on nearly all
// characters are wide: CJK and emoji.
int ColumnsOf(char lead) { return static_cast<unsigned char>(lead) >= 0xE3 ? 2 : 1; }

}  // namespace

LineEditor::Event LineEditor::Put(std::string_view* keys) {
  while (!keys->empty()) {
    const char key = keys->front();
    keys->remove_prefix(1);
    if (const Event event = Take(key); event != Event::kNeedsKeys) {
      return event;
    }
  }
  return Event::kNeedsKeys;
}

LineEditor::Event LineEditor::Take(char key) {
  // A control character ends a sequence, so Enter works after a lone Escape.
  if (!sequence_.empty() && !IsControl(key)) {
    TakeOfSequence(key);
    return Event::kNeedsKeys;
  }
  sequence_.clear();
  if (IsControl(key)) {
    return Control(key);
  }
  Append(key);
  return Event::kNeedsKeys;
}

LineEditor::Event LineEditor::Control(char key) {
  const bool is_line_end = key == '\n' || key == '\r';
  if (key == kEscape) {
    sequence_ = key;
  } else if (key == '\t' || (is_line_end && is_pasting_)) {
    Append(is_line_end ? '\n' : key);
  } else if (is_pasting_) {
    return Event::kNeedsKeys;  // a pasted control character is no key
  } else if (is_line_end) {
    absl::StrAppend(&echo_, escaper_.End(), "\n");
    return Event::kLine;
  } else if (key == kDelete || key == kBackspace) {
    Erase();
  } else if (key == kCtrlW) {
    EraseWord();
  } else if (key == kCtrlU) {
    line_.clear();
    Redraw();
  } else if (key == kCtrlD && line_.empty()) {
    return Event::kEndOfInput;
  }
  return Event::kNeedsKeys;
}

// ESC [ and ESC O begin sequences of several bytes, of which the last is '@' to '~'. Other keys
// after ESC, such as Alt-x, are sequences of two bytes.
void LineEditor::TakeOfSequence(char key) {
  sequence_.push_back(key);
  if (sequence_.size() == 2 ? key == '[' || key == 'O' : key < '@') {
    return;
  }
  if (sequence_ == kPasteBegin) {
    is_pasting_ = true;
  } else if (sequence_ == kPasteEnd) {
    is_pasting_ = false;
  }
  sequence_.clear();
}

void LineEditor::Append(char c) {
  if (line_.size() <= max_line_bytes_) {
    line_.push_back(c);
    echo_ += escaper_.Escape({&c, 1});
  }
}

void LineEditor::Erase() {
  if (line_.empty()) {
    return;
  }
  while (line_.size() > 1 && IsContinuation(line_.back())) {
    line_.pop_back();
  }
  const char first = line_.back();
  line_.pop_back();
  if (IsBlank(first) && first != ' ') {
    Redraw();  // going back over a tab or a line end needs its column
    return;
  }
  escaper_.End();
  for (int i = 0; i < ColumnsOf(first); ++i) {
    echo_ += "\b \b";
  }
}

void LineEditor::EraseWord() {
  while (!line_.empty() && IsBlank(line_.back())) {
    Erase();
  }
  while (!line_.empty() && !IsBlank(line_.back())) {
    Erase();
  }
}

void LineEditor::Redraw() {
  escaper_ = TerminalText();
  absl::StrAppend(&echo_, "\n", prompt_, escaper_.Escape(line_));
}

}  // namespace quire
