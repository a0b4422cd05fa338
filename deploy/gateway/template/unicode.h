// Code points and letter case of UTF-8 text, as Python's str methods see them.
//
// Thread safety: free functions, safe from any thread.
// Cost:          linear in the text. REQUIRES: texts are valid UTF-8.
#ifndef QUIRE_DEPLOY_GATEWAY_TEMPLATE_UNICODE_H_
#define QUIRE_DEPLOY_GATEWAY_TEMPLATE_UNICODE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

// True if the text is valid UTF-8, which has no surrogates and no overlong forms.
bool IsUtf8(std::string_view text);

int64_t NumCodePoints(std::string_view text);

// Returns the byte offset of the code point with this index (from 0), or of the text's end.
size_t OffsetOf(std::string_view text, int64_t index);

// Returns the first code point, and removes it from the text. REQUIRES: text is not empty.
char32_t TakeCodePoint(std::string_view& text);

void AppendCodePoint(char32_t code_point, std::string& text);

// Returns the byte offset of the first `part` at or after the offset `from`, or npos. Takes linear
// time, unlike std::string_view::find.
size_t FindText(std::string_view text, std::string_view part, size_t from = 0);

// Returns `text` without the trailing code points for which is_stripped is true.
template <typename Predicate>
std::string_view StripRight(std::string_view text, Predicate is_stripped) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (text[last] & 0xC0) == 0x80) {
      --last;
    }
    std::string_view c = text.substr(last);
    if (!is_stripped(TakeCodePoint(c))) {
      break;
    }
    text = text.substr(0, last);
  }
  return text;
}

bool IsPythonSpace(char32_t code_point);      // str.isspace()
bool IsPythonPrintable(char32_t code_point);  // str.isprintable()

enum class LetterCase : uint8_t { kLower, kUpper, kTitle, kCapitalize };

// str.lower(), upper(), title() and capitalize(), with the special cases of Unicode.
std::string ChangeCase(std::string_view text, LetterCase letter_case);

enum class TextClass : uint8_t { kDigit, kDecimal, kAlpha, kAlnum, kSpace, kLower, kUpper };

// str.isdigit(), isdecimal(), isalpha(), isalnum(), isspace(), islower() and isupper().
bool IsTextClass(std::string_view text, TextClass text_class);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_TEMPLATE_UNICODE_H_
