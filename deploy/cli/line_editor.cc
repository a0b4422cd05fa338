#include "deploy/cli/line_editor.h"

#include <algorithm>
#include <optional>

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
constexpr std::string_view kConsoleKeyBegin = "\x1b[[";

constexpr size_t kMaxContinuations = 3;  // continuation bytes of a UTF-8 character

bool IsAscii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == kDelete; }
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n'; }
bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

size_t NumContinuations(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
}

// Returns the last UTF-8 character of `text`. A continuation byte without its lead byte counts as a
// character. REQUIRES: `text` is not empty.
std::string_view LastCharacter(std::string_view text) {
  const size_t max_continuations = std::min(kMaxContinuations, text.size() - 1);
  size_t lead = text.size() - 1;
  while (text.size() - 1 - lead < max_continuations && IsContinuation(text[lead])) {
    --lead;
  }
  const bool is_whole = NumContinuations(text[lead]) >= text.size() - 1 - lead;
  return text.substr(is_whole ? lead : text.size() - 1);
}

// Returns how many columns of the terminal a character takes. From U+3000 on, nearly all characters
// (CJK, emoji) take two. Returns nullopt for a tab, a line end, and a character that the echo
// escapes: to erase such a character, the line must be drawn anew.
std::optional<size_t> ColumnsOfCharacter(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character.front());
  const bool is_c1 =
      lead == 0xC2 && character.size() == 2 && static_cast<unsigned char>(character[1]) < 0xA0;
  if (IsControl(character.front()) || IsContinuation(character.front()) || is_c1) {
    return std::nullopt;
  }
  return lead >= 0xE3 ? 2 : 1;
}

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
  if (std::exchange(is_after_cr_, key == '\r') && key == '\n') {
    return Event::kNeedsKeys;  // CRLF is one line end
  }
  // After its ESC, an escape sequence has only printable ASCII characters. Any other character ends
  // the sequence, so Enter works after a lone Escape.
  if (!sequence_.empty() && !IsControl(key) && IsAscii(key)) {
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
    return Event::kNeedsKeys;  // drops a pasted control character, because it is no key press
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

// A sequence that begins with ESC [ or ESC O ends with the first byte from '@' to '~'. The Linux
// console's F1 to F5 are ESC [ [ and a letter. Other keys after ESC, such as Alt-x, make sequences
// of two bytes.
void LineEditor::TakeOfSequence(char key) {
  sequence_.push_back(key);
  const bool has_more =
      sequence_.size() == 2 ? key == '[' || key == 'O' : key < '@' || sequence_ == kConsoleKeyBegin;
  if (has_more) {
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
  if (!line_.empty()) {
    CutTo(line_.size() - LastCharacter(line_).size());
  }
}

void LineEditor::EraseWord() {
  size_t size = line_.size();
  while (size > 0 && IsBlank(line_[size - 1])) {
    --size;
  }
  while (size > 0 && !IsBlank(line_[size - 1])) {
    --size;
  }
  CutTo(size);
}

void LineEditor::CutTo(size_t size) {
  std::optional<size_t> columns = 0;
  while (line_.size() > size) {
    const std::string_view last = LastCharacter(line_);
    const std::optional<size_t> more = ColumnsOfCharacter(last);
    columns =
        columns.has_value() && more.has_value() ? std::optional(*columns + *more) : std::nullopt;
    line_.resize(line_.size() - last.size());
  }
  if (!columns.has_value()) {
    Redraw();
    return;
  }
  escaper_.End();
  for (size_t i = 0; i < *columns; ++i) {
    echo_ += "\b \b";
  }
}

void LineEditor::Redraw() {
  escaper_ = TerminalText();
  absl::StrAppend(&echo_, "\n", prompt_, escaper_.Escape(line_));
}

}  // namespace quire
