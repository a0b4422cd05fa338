#include "deploy/gateway/template/lexer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "deploy/gateway/template/cat.h"
#include "deploy/gateway/template/unicode.h"

namespace quire {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsOctalDigit(char c) { return c >= '0' && c <= '7'; }
bool IsBinaryDigit(char c) { return c == '0' || c == '1'; }
bool IsZero(char c) { return c == '0'; }
bool IsHexDigit(char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }
bool IsWordByte(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Returns the length of the white space at the start of text.
size_t SpaceAt(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view after = rest;
    if (!IsPythonSpace(TakeCodePoint(after))) {
      break;
    }
    rest = after;
  }
  return text.size() - rest.size();
}

// Returns `text` without trailing white space.
std::string_view WithoutTrailingSpace(std::string_view text) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (text[last] & 0xC0) == 0x80) {
      --last;
    }
    std::string_view c = text.substr(last);
    if (!IsPythonSpace(TakeCodePoint(c))) {
      break;
    }
    text = text.substr(0, last);
  }
  return text;
}

// Decodes the escapes of a string as jinja2 does: first escapes all that is not ASCII, then decodes
// all escapes like Python's codec unicode-escape. Returns nullopt for a broken escape, a surrogate,
// or the name of a character (\N{...}).
std::optional<std::string> Unescape(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const char32_t c = TakeCodePoint(text);
    if (c < 0x80) {
      escaped += static_cast<char>(c);
    } else {
      const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
      const char letter = c < 0x100 ? 'x' : c < 0x10000 ? 'u' : 'U';
      absl::StrAppendFormat(&escaped, "\\%c%0*x", letter, digits, static_cast<uint32_t>(c));
    }
  }
  std::string result;
  for (size_t i = 0; i < escaped.size(); ++i) {
    if (escaped[i] != '\\') {
      result += escaped[i];
      continue;
    }
    if (++i == escaped.size()) {
      return std::nullopt;
    }
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const char letter = escaped[i];
    const size_t known = kLetters.find(letter);
    const size_t num_digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (known != std::string_view::npos) {
      result += kMeanings[known];
    } else if (num_digits > 0) {
      uint32_t c = 0;
      const std::string_view digits = std::string_view(escaped).substr(i + 1, num_digits);
      if (digits.size() < num_digits || !std::all_of(digits.begin(), digits.end(), IsHexDigit) ||
          !absl::SimpleHexAtoi(ToAbsl(digits), &c) || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
        return std::nullopt;
      }
      AppendCodePoint(c, result);
      i += num_digits;
    } else if (letter >= '0' && letter <= '7') {
      char32_t c = 0;
      const size_t end = std::min(escaped.size(), i + 3);
      for (; i < end && escaped[i] >= '0' && escaped[i] <= '7'; ++i) {
        c = c * 8 + static_cast<char32_t>(escaped[i] - '0');
      }
      --i;
      AppendCodePoint(c, result);
    } else if (letter == 'N') {
      return std::nullopt;
    } else if (letter != '\n') {
      result += {'\\', letter};
    }
  }
  return result;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    source_ = absl::StrReplaceAll(ToAbsl(source), {{"\r\n", "\n"}, {"\r", "\n"}});
    if (source_.ends_with('\n')) {
      source_.pop_back();
    }
    rest_ = source_;
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (!rest_.empty()) {
      QUIRE_RETURN_IF_ERROR(TakeDataAndTag());
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(std::string_view message) const { return TemplateSyntaxError(line_, message); }

  void Skip(size_t bytes) {
    line_ += static_cast<int>(
        std::count(rest_.begin(), rest_.begin() + static_cast<int64_t>(bytes), '\n'));
    is_line_start_ = bytes > 0 ? rest_[bytes - 1] == '\n' : is_line_start_;
    rest_.remove_prefix(bytes);
  }

  void Add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, line_, std::string(text)});
  }

  // Adds the text before a tag. `sign` is the character after the tag's opening: '-', '+' or 0
  // (neither).
  void AddData(std::string_view text, char sign, bool is_variable) {
    if (sign == '-') {
      text = WithoutTrailingSpace(text);
    } else if (sign != '+' && !is_variable) {
      const size_t line_start = text.rfind('\n') + 1;
      const std::string_view last_line = text.substr(line_start);
      if ((line_start > 0 || is_line_start_) && SpaceAt(last_line) == last_line.size()) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) {
      Add(TokenKind::kData, text);
    }
  }

  static char SignAt(std::string_view text) {
    return !text.empty() && (text[0] == '-' || text[0] == '+') ? text[0] : '\0';
  }

  absl::Status TakeDataAndTag() {
    size_t place = rest_.find('{');
    while (place != std::string_view::npos &&
           (place + 1 == rest_.size() ||
            std::string_view("{%#").find(rest_[place + 1]) == std::string_view::npos)) {
      place = rest_.find('{', place + 1);
    }
    if (place == std::string_view::npos) {
      Add(TokenKind::kData, rest_);
      Skip(rest_.size());
      return absl::OkStatus();
    }
    const char type = rest_[place + 1];
    const char sign = SignAt(rest_.substr(place + 2));
    AddData(rest_.substr(0, place), sign, type == '{');
    Skip(place);
    if (type == '%') {
      if (const size_t raw = RawTagSize("raw", false); raw > 0) {
        Skip(raw);
        return TakeRaw();
      }
    }
    if (type == '#') {
      Skip(sign == '\0' ? 2 : 3);
      return TakeComment();
    }
    Add(type == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    Skip(sign == '\0' ? 2 : 3);
    return TakeTag(type == '{' ? "}}" : "%}",
                   type == '{' ? TokenKind::kVariableEnd : TokenKind::kBlockEnd);
  }

  // Returns the size of the tag's end with which `text` starts, or 0. The size includes a sign and
  // the white space that the end removes. may_keep: the sign may be '+'. is_trimmed: an end without
  // a sign removes a line end after it.
  static size_t EndSize(std::string_view text,
                        std::string_view end,
                        bool may_keep,
                        bool is_trimmed) {
    const char sign = SignAt(text);
    if ((sign == '+' && !may_keep) || !text.substr(sign == '\0' ? 0 : 1).starts_with(end)) {
      return 0;
    }
    const size_t size = end.size() + (sign == '\0' ? 0 : 1);
    if (sign == '-') {
      return size + SpaceAt(text.substr(size));
    }
    return size + (sign == '\0' && is_trimmed && text.substr(size).starts_with('\n') ? 1 : 0);
  }

  // Returns the size of the tag {% raw %} or {% endraw %} at the start of rest_, or 0.
  size_t RawTagSize(std::string_view name, bool is_end) const {
    size_t size = SignAt(rest_.substr(2)) == '\0' ? 2 : 3;
    size += SpaceAt(rest_.substr(size));
    if (!rest_.substr(size).starts_with(name)) {
      return 0;
    }
    size += name.size();
    size += SpaceAt(rest_.substr(size));
    const size_t end = EndSize(rest_.substr(size), "%}", is_end, is_end);
    return end == 0 ? 0 : size + end;
  }

  absl::Status TakeRaw() {
    const std::string_view all = rest_;
    for (size_t place = all.find("{%"); place != std::string_view::npos;
         place = all.find("{%", place + 1)) {
      rest_ = all.substr(place);
      if (const size_t size = RawTagSize("endraw", true); size > 0) {
        const char sign = SignAt(rest_.substr(2));
        rest_ = all;
        AddData(all.substr(0, place), sign, false);
        Skip(place + size);
        return absl::OkStatus();
      }
    }
    rest_ = all;
    return rest_.empty() ? absl::OkStatus() : Error("Missing end of raw directive");
  }

  absl::Status TakeComment() {
    const size_t place = rest_.find("#}");
    if (place == std::string_view::npos) {
      return rest_.empty() ? absl::OkStatus() : Error("Missing end of comment tag");
    }
    const bool has_sign = place > 0 && SignAt(rest_.substr(place - 1)) != '\0';
    const size_t start = has_sign ? place - 1 : place;
    Skip(start + EndSize(rest_.substr(start), "#}", true, true));
    return absl::OkStatus();
  }

  absl::Status TakeTag(std::string_view end, TokenKind end_kind) {
    std::string braces;  // closing braces that must still come
    while (!rest_.empty()) {
      if (braces.empty()) {
        const size_t size = EndSize(rest_, end, end == "%}", end == "%}");
        if (size > 0) {
          Add(end_kind, "");
          Skip(size);
          return absl::OkStatus();
        }
      }
      if (const size_t space = SpaceAt(rest_); space > 0) {
        Skip(space);
        continue;
      }
      QUIRE_RETURN_IF_ERROR(TakeToken(braces));
    }
    return absl::OkStatus();  // the parser reports that the tag does not end
  }

  absl::Status TakeToken(std::string& braces) {
    const char c = rest_[0];
    if (IsDigit(c)) {
      return TakeNumber();
    }
    if (IsWordByte(c)) {
      size_t size = 0;
      while (size < rest_.size() && IsWordByte(rest_[size])) {
        ++size;
      }
      Add(TokenKind::kName, rest_.substr(0, size));
      Skip(size);
      return absl::OkStatus();
    }
    return c == '"' || c == '\'' ? TakeString() : TakeOperator(braces);
  }

  absl::Status TakeString() {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != rest_[0]) {
      end += rest_[end] == '\\' ? 2 : 1;
    }
    if (end >= rest_.size()) {
      return Error("unexpected character: a string does not end");
    }
    const std::optional<std::string> text = Unescape(rest_.substr(1, end - 1));
    if (!text.has_value()) {
      return Error("a string has an escape that is not supported");
    }
    Add(TokenKind::kString, *text);
    Skip(end + 1);
    return absl::OkStatus();
  }

  // Returns the length of the digits at the start of text. Single underscores may separate digits.
  static size_t DigitsAt(std::string_view text, bool (*is_digit)(char) = IsDigit) {
    size_t size = 0;
    while (size < text.size() &&
           (is_digit(text[size]) || (text[size] == '_' && size > 0 && size + 1 < text.size() &&
                                     is_digit(text[size + 1])))) {
      ++size;
    }
    return size;
  }

  // Returns the size of the float at the start of rest_, or 0.
  size_t FloatSize() const {
    const size_t whole = DigitsAt(rest_);
    size_t size = whole;
    if (rest_.substr(size).starts_with('.')) {
      const size_t fraction = DigitsAt(rest_.substr(size + 1));
      size += fraction > 0 ? fraction + 1 : 0;
    }
    if (size < rest_.size() && (rest_[size] == 'e' || rest_[size] == 'E')) {
      const size_t sign = SignAt(rest_.substr(size + 1)) == '\0' ? 0 : 1;
      const size_t exponent = DigitsAt(rest_.substr(size + 1 + sign));
      size += exponent > 0 ? 1 + sign + exponent : 0;
    }
    const bool is_after_dot = rest_.data() != source_.data() && rest_.data()[-1] == '.';
    return size > whole && !is_after_dot ? size : 0;
  }

  absl::Status TakeNumber() {
    Token token = {TokenKind::kFloat, line_, ""};
    size_t size = FloatSize();
    const std::string text = absl::StrReplaceAll(ToAbsl(rest_.substr(0, size)), {{"_", ""}});
    if (size > 0 && !absl::SimpleAtod(text, &token.number)) {
      return Error("a number cannot be read");
    }
    if (size == 0) {
      token.kind = TokenKind::kInteger;
      if (!ReadInteger(&size, &token.integer)) {
        return Error("an integer needs more than 64 bits");
      }
    }
    tokens_.push_back(token);
    Skip(size);
    return absl::OkStatus();
  }

  bool ReadInteger(size_t* size, int64_t* value) const {
    const char letter = rest_.size() > 1 && rest_[0] == '0'
                            ? absl::ascii_tolower(static_cast<unsigned char>(rest_[1]))
                            : '\0';
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    if (base != 10) {
      bool (*const is_digit)(char) = base == 16  ? IsHexDigit
                                     : base == 8 ? IsOctalDigit
                                                 : IsBinaryDigit;
      const size_t underscore = rest_.substr(2).starts_with('_') ? 1 : 0;
      const size_t digits = DigitsAt(rest_.substr(2 + underscore), is_digit);
      if (digits > 0) {
        *size = 2 + underscore + digits;
        const std::string text =
            absl::StrReplaceAll(ToAbsl(rest_.substr(2 + underscore, digits)), {{"_", ""}});
        *value = static_cast<int64_t>(std::strtoull(text.c_str(), nullptr, base));
        return text.size() <= 15 || (base == 2 && text.size() < 63);
      }
    }
    // If the first digit is 0, only zeros belong to the number. Other digits begin the next token.
    *size = rest_[0] == '0' ? DigitsAt(rest_, IsZero) : DigitsAt(rest_);
    return absl::SimpleAtoi(absl::StrReplaceAll(ToAbsl(rest_.substr(0, *size)), {{"_", ""}}),
                            value);
  }

  absl::Status TakeOperator(std::string& braces) {
    constexpr std::array<std::string_view, 26> kOperators = {
        "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* const found =
        std::find_if(kOperators.begin(), kOperators.end(), [this](std::string_view symbol) {
          return rest_.starts_with(symbol);
        });
    const std::string_view symbol = found != kOperators.end() ? *found : "";
    if (symbol.empty()) {
      return Error("unexpected character");
    }
    const size_t open = std::string_view("[({").find(symbol);
    if (open != std::string_view::npos) {
      braces += "])}"[open];
    } else if (symbol == "]" || symbol == ")" || symbol == "}") {
      if (braces.empty() || braces.back() != symbol[0]) {
        return Error(Cat("unexpected '", symbol, "'"));
      }
      braces.pop_back();
    }
    Add(TokenKind::kOperator, symbol);
    Skip(symbol.size());
    return absl::OkStatus();
  }

  std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool is_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status TemplateSyntaxError(int line, std::string_view message) {
  return InvalidArgument("TEMPLATE_SYNTAX", Cat("template: line ", line, ": ", message));
}

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace quire
