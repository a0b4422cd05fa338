#include "scheduler/text/word_splitter.h"

#include <limits>

#include "scheduler/text/unicode.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloomPattern = " ?[^(\\s|[.,!?…。，、।۔،])]+";

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// The class of one character, and the offset in the text at which the character ends.
struct Character {
  CharClass char_class;
  size_t end;
};

// Reads the words of one text. Every method takes the position of a character.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool AtEnd(size_t position) const { return position >= text_.size(); }

  Character At(size_t position) const {
    size_t end = position;
    char32_t code_point = DecodeValidUtf8(text_, &end);
    return {ClassOf(code_point), end};
  }

  bool IsAt(size_t position, CharClass char_class) const {
    return !AtEnd(position) && At(position).char_class == char_class;
  }

  // Returns the end of the run of char_class at position, or of the run's first `limit` characters.
  size_t RunEnd(size_t position, CharClass char_class, size_t limit = kNoLimit) const {
    for (size_t count = 0; count < limit && !AtEnd(position); ++count) {
      Character character = At(position);
      if (character.char_class != char_class) {
        break;
      }
      position = character.end;
    }
    return position;
  }

  // Returns the end of the contraction ('s, 't, 're, 've, 'm, 'll, 'd) at position, or position if
  // there is none.
  size_t ContractionEnd(size_t position, bool ignore_case) const {
    if (text_[position] != '\'') {
      return position;
    }
    char first = Byte(position + 1, ignore_case);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') {
      return position + 2;
    }
    char second = Byte(position + 2, ignore_case);
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
        (first == 'l' && second == 'l')) {
      return position + 3;
    }
    // If case is ignored, U+017F (the long s) counts as an s.
    if (ignore_case && text_.substr(position + 1).starts_with("\xC5\xBF")) {
      return position + 3;
    }
    return position;
  }

  // Returns the end of the white space at position, as matched by `\s+(?!\S)|\s+`: a run of several
  // characters leaves its last character to the word that follows, if a word follows. If
  // lines_first, tries `\s*[\r\n]+` first, which cuts a run with line ends after its last line end.
  size_t SpaceEnd(size_t position, bool lines_first) const {
    size_t last = position;  // start of the last character of the run
    size_t line_end = position;
    size_t end = position;
    while (!AtEnd(end)) {
      Character character = At(end);
      if (character.char_class == CharClass::kNewline) {
        line_end = character.end;
      } else if (character.char_class != CharClass::kSpace) {
        break;
      }
      last = end;
      end = character.end;
    }
    if (lines_first && line_end > position) {
      return line_end;
    }
    return AtEnd(end) || last == position ? end : last;
  }

 private:
  char Byte(size_t position, bool ignore_case) const {
    if (AtEnd(position)) {
      return '\0';
    }
    char c = text_[position];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }

  std::string_view text_;
};

bool IsWordClass(CharClass char_class) {
  return char_class == CharClass::kLetter || char_class == CharClass::kNumber ||
         char_class == CharClass::kOther;
}

size_t Gpt2WordEnd(const Reader& reader, std::string_view text, size_t start) {
  if (size_t end = reader.ContractionEnd(start, /*ignore_case=*/false); end > start) {
    return end;
  }
  size_t word = text[start] == ' ' ? start + 1 : start;
  if (!reader.AtEnd(word)) {
    CharClass char_class = reader.At(word).char_class;
    if (IsWordClass(char_class)) {
      return reader.RunEnd(word, char_class);
    }
  }
  return reader.SpaceEnd(start, /*lines_first=*/false);
}

size_t Llama3WordEnd(const Reader& reader, std::string_view text, size_t start, size_t max_digits) {
  if (size_t end = reader.ContractionEnd(start, /*ignore_case=*/true); end > start) {
    return end;
  }
  Character first = reader.At(start);
  if (first.char_class == CharClass::kLetter) {
    return reader.RunEnd(start, CharClass::kLetter);
  }
  if (first.char_class == CharClass::kNumber) {
    return reader.RunEnd(start, CharClass::kNumber, max_digits);
  }
  if (first.char_class != CharClass::kNewline && reader.IsAt(first.end, CharClass::kLetter)) {
    return reader.RunEnd(first.end, CharClass::kLetter);
  }
  size_t symbols = text[start] == ' ' ? start + 1 : start;
  if (reader.IsAt(symbols, CharClass::kOther)) {
    return reader.RunEnd(reader.RunEnd(symbols, CharClass::kOther), CharClass::kNewline);
  }
  return reader.SpaceEnd(start, /*lines_first=*/true);
}

// True if a character belongs to no word of BLOOM's pattern.
bool SeparatesBloomWords(char32_t c) {
  constexpr std::u32string_view kSeparators = U"()|.,!?…。，、।۔،";
  return kSeparators.find(c) != std::u32string_view::npos || IsWhiteSpace(c);
}

// Returns the end of the word that starts at position, or position itself if no word starts there.
size_t BloomWordEnd(std::string_view text, size_t position) {
  const size_t first = text[position] == ' ' ? position + 1 : position;
  size_t end = first;
  for (size_t next = first; next < text.size(); end = next) {
    if (SeparatesBloomWords(DecodeValidUtf8(text, &next))) {
      break;
    }
  }
  return end > first ? end : position;
}

// Returns the word that begins at start, or, if no word begins there, the text up to the next word.
TextSpan BloomSpan(std::string_view text, size_t start) {
  if (const size_t end = BloomWordEnd(text, start); end > start) {
    return {start, end, true};
  }
  size_t end = start;
  do {
    DecodeValidUtf8(text, &end);
  } while (end < text.size() && BloomWordEnd(text, end) == end);
  return {start, end, false};
}

}  // namespace

std::optional<WordSplitter> WordSplitter::ForPattern(std::string_view pattern) {
  if (pattern == kGpt2Pattern) {
    return WordSplitter(Style::kGpt2);
  }
  if (pattern == kLlama3Pattern) {
    return WordSplitter(Style::kLlama3);
  }
  if (pattern == kQwen2Pattern) {
    return WordSplitter(Style::kQwen2);
  }
  if (pattern == kBloomPattern) {
    return WordSplitter(Style::kBloom);
  }
  return std::nullopt;
}

WordSplitter WordSplitter::Gpt2() { return WordSplitter(Style::kGpt2); }

void WordSplitter::FindAll(std::string_view text, std::vector<TextSpan>* spans) const {
  Reader reader(text);
  size_t start = 0;
  while (start < text.size()) {
    TextSpan span = {start, start, true};
    switch (style_) {
      case Style::kGpt2:
        span.end = Gpt2WordEnd(reader, text, start);
        break;
      case Style::kLlama3:
        span.end = Llama3WordEnd(reader, text, start, 3);
        break;
      case Style::kQwen2:
        span.end = Llama3WordEnd(reader, text, start, 1);
        break;
      case Style::kBloom:
        span = BloomSpan(text, start);
        break;
    }
    spans->push_back(span);
    start = span.end;
  }
}

}  // namespace quire
