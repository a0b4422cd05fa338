#include "deploy/gateway/template/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace quire {
namespace {

// Letters whose upper or title case has several code points, from Unicode's SpecialCasing.txt. An
// entry is the letter, its upper case, '=', its title case and '|'.
constexpr std::u32string_view kSpecialCases =
    U"\u00DFSS=Ss|\u0149\u02BCN=\u02BCN|\u01F0J\u030C=J\u030C|"
    U"\u0390\u0399\u0308\u0301=\u0399\u0308\u0301|\u03B0\u03A5\u0308\u0301=\u03A5\u0308\u0301|"
    U"\u0587\u0535\u0552=\u0535\u0582|\u1E96H\u0331=H\u0331|\u1E97T\u0308=T\u0308|"
    U"\u1E98W\u030A=W\u030A|\u1E99Y\u030A=Y\u030A|\u1E9AA\u02BE=A\u02BE|"
    U"\u1F50\u03A5\u0313=\u03A5\u0313|\u1F52\u03A5\u0313\u0300=\u03A5\u0313\u0300|"
    U"\u1F54\u03A5\u0313\u0301=\u03A5\u0313\u0301|\u1F56\u03A5\u0313\u0342=\u03A5\u0313\u0342|"
    U"\u1F80\u1F08\u0399=\u1F88|\u1F81\u1F09\u0399=\u1F89|\u1F82\u1F0A\u0399=\u1F8A|"
    U"\u1F83\u1F0B\u0399=\u1F8B|\u1F84\u1F0C\u0399=\u1F8C|\u1F85\u1F0D\u0399=\u1F8D|"
    U"\u1F86\u1F0E\u0399=\u1F8E|\u1F87\u1F0F\u0399=\u1F8F|\u1F88\u1F08\u0399=\u1F88|"
    U"\u1F89\u1F09\u0399=\u1F89|\u1F8A\u1F0A\u0399=\u1F8A|\u1F8B\u1F0B\u0399=\u1F8B|"
    U"\u1F8C\u1F0C\u0399=\u1F8C|\u1F8D\u1F0D\u0399=\u1F8D|\u1F8E\u1F0E\u0399=\u1F8E|"
    U"\u1F8F\u1F0F\u0399=\u1F8F|\u1F90\u1F28\u0399=\u1F98|\u1F91\u1F29\u0399=\u1F99|"
    U"\u1F92\u1F2A\u0399=\u1F9A|\u1F93\u1F2B\u0399=\u1F9B|\u1F94\u1F2C\u0399=\u1F9C|"
    U"\u1F95\u1F2D\u0399=\u1F9D|\u1F96\u1F2E\u0399=\u1F9E|\u1F97\u1F2F\u0399=\u1F9F|"
    U"\u1F98\u1F28\u0399=\u1F98|\u1F99\u1F29\u0399=\u1F99|\u1F9A\u1F2A\u0399=\u1F9A|"
    U"\u1F9B\u1F2B\u0399=\u1F9B|\u1F9C\u1F2C\u0399=\u1F9C|\u1F9D\u1F2D\u0399=\u1F9D|"
    U"\u1F9E\u1F2E\u0399=\u1F9E|\u1F9F\u1F2F\u0399=\u1F9F|\u1FA0\u1F68\u0399=\u1FA8|"
    U"\u1FA1\u1F69\u0399=\u1FA9|\u1FA2\u1F6A\u0399=\u1FAA|\u1FA3\u1F6B\u0399=\u1FAB|"
    U"\u1FA4\u1F6C\u0399=\u1FAC|\u1FA5\u1F6D\u0399=\u1FAD|\u1FA6\u1F6E\u0399=\u1FAE|"
    U"\u1FA7\u1F6F\u0399=\u1FAF|\u1FA8\u1F68\u0399=\u1FA8|\u1FA9\u1F69\u0399=\u1FA9|"
    U"\u1FAA\u1F6A\u0399=\u1FAA|\u1FAB\u1F6B\u0399=\u1FAB|\u1FAC\u1F6C\u0399=\u1FAC|"
    U"\u1FAD\u1F6D\u0399=\u1FAD|\u1FAE\u1F6E\u0399=\u1FAE|\u1FAF\u1F6F\u0399=\u1FAF|"
    U"\u1FB2\u1FBA\u0399=\u1FBA\u0345|\u1FB3\u0391\u0399=\u1FBC|"
    U"\u1FB4\u0386\u0399=\u0386\u0345|\u1FB6\u0391\u0342=\u0391\u0342|"
    U"\u1FB7\u0391\u0342\u0399=\u0391\u0342\u0345|\u1FBC\u0391\u0399=\u1FBC|"
    U"\u1FC2\u1FCA\u0399=\u1FCA\u0345|\u1FC3\u0397\u0399=\u1FCC|"
    U"\u1FC4\u0389\u0399=\u0389\u0345|\u1FC6\u0397\u0342=\u0397\u0342|"
    U"\u1FC7\u0397\u0342\u0399=\u0397\u0342\u0345|\u1FCC\u0397\u0399=\u1FCC|"
    U"\u1FD2\u0399\u0308\u0300=\u0399\u0308\u0300|\u1FD3\u0399\u0308\u0301=\u0399\u0308\u0301|"
    U"\u1FD6\u0399\u0342=\u0399\u0342|\u1FD7\u0399\u0308\u0342=\u0399\u0308\u0342|"
    U"\u1FE2\u03A5\u0308\u0300=\u03A5\u0308\u0300|\u1FE3\u03A5\u0308\u0301=\u03A5\u0308\u0301|"
    U"\u1FE4\u03A1\u0313=\u03A1\u0313|\u1FE6\u03A5\u0342=\u03A5\u0342|"
    U"\u1FE7\u03A5\u0308\u0342=\u03A5\u0308\u0342|\u1FF2\u1FFA\u0399=\u1FFA\u0345|"
    U"\u1FF3\u03A9\u0399=\u1FFC|\u1FF4\u038F\u0399=\u038F\u0345|"
    U"\u1FF6\u03A9\u0342=\u03A9\u0342|\u1FF7\u03A9\u0342\u0399=\u03A9\u0342\u0345|"
    U"\u1FFC\u03A9\u0399=\u1FFC|\uFB00FF=Ff|\uFB01FI=Fi|\uFB02FL=Fl|\uFB03FFI=Ffi|"
    U"\uFB04FFL=Ffl|\uFB05ST=St|\uFB06ST=St|\uFB13\u0544\u0546=\u0544\u0576|"
    U"\uFB14\u0544\u0535=\u0544\u0565|\uFB15\u0544\u053B=\u0544\u056B|"
    U"\uFB16\u054E\u0546=\u054E\u0576|\uFB17\u0544\u053D=\u0544\u056D|";

utf8proc_int32_t Signed(char32_t c) { return static_cast<utf8proc_int32_t>(c); }

// False for most letters, so that kSpecialCases is rarely searched.
bool MayBeSpecial(char32_t c) {
  return (c >= 0xDF && c <= 0x587) || (c >= 0x1E96 && c <= 0x1FFC) || (c >= 0xFB00 && c <= 0xFB17);
}

std::u32string UpperOf(char32_t c, bool title) {
  for (size_t start = MayBeSpecial(c) ? 0 : kSpecialCases.size(); start < kSpecialCases.size();) {
    const size_t end = kSpecialCases.find(U'|', start);
    if (kSpecialCases[start] == c) {
      const size_t equals = kSpecialCases.find(U'=', start);
      return std::u32string(title ? kSpecialCases.substr(equals + 1, end - equals - 1)
                                  : kSpecialCases.substr(start + 1, equals - start - 1));
    }
    start = end + 1;
  }
  const utf8proc_int32_t simple = title ? utf8proc_totitle(Signed(c)) : utf8proc_toupper(Signed(c));
  return std::u32string(1, static_cast<char32_t>(simple));
}

bool IsUpper(char32_t c) {
  return utf8proc_category(Signed(c)) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) ||
         (c >= 0x24B6 && c <= 0x24CF);
}

bool IsLower(char32_t c) {
  return utf8proc_category(Signed(c)) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA ||
         (c >= 0x2B0 && c <= 0x2B8) || (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9);
}

bool IsCased(char32_t c) {
  return IsUpper(c) || IsLower(c) || utf8proc_category(Signed(c)) == UTF8PROC_CATEGORY_LT;
}

// True for a character, such as an apostrophe, that is skipped in the search for the cased letter
// before or after a sigma.
bool IsCaseIgnorable(char32_t c) {
  switch (utf8proc_category(Signed(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019;
  }
}

// Appends the lower case of c. `before`: the last code point before c that is not case-ignorable,
// or 0. `after`: the text after c. Both decide whether a sigma is a final one.
void AppendLower(char32_t c, char32_t before, std::string_view after, std::string& out) {
  constexpr char32_t kSigma = 0x3A3, kDottedI = 0x130;
  if (c == kDottedI) {
    out += "i\u0307";
  } else if (c == kSigma) {
    bool next_is_cased = false;
    while (!after.empty()) {
      const char32_t next = TakeCodePoint(after);
      if (!IsCaseIgnorable(next)) {
        next_is_cased = IsCased(next);
        break;
      }
    }
    const bool is_final = IsCased(before) && !next_is_cased;
    AppendCodePoint(is_final ? 0x3C2 : 0x3C3, out);
  } else {
    AppendCodePoint(static_cast<char32_t>(utf8proc_tolower(Signed(c))), out);
  }
}

// True for digits that are not decimal, such as superscripts and circled digits.
bool IsOtherDigit(char32_t c) {
  constexpr std::array<std::array<char32_t, 2>, 20> kRanges = {
      {{0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
       {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
       {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
       {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
       {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}}};
  return std::any_of(kRanges.begin(), kRanges.end(), [c](const auto& range) {
    return c >= range[0] && c <= range[1];
  });
}

bool IsOfClass(char32_t c, TextClass text_class) {
  const utf8proc_category_t category = utf8proc_category(Signed(c));
  const bool is_decimal = category == UTF8PROC_CATEGORY_ND;
  const bool is_alpha = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
  switch (text_class) {
    case TextClass::kDigit:
      return is_decimal || IsOtherDigit(c);
    case TextClass::kDecimal:
      return is_decimal;
    case TextClass::kAlpha:
      return is_alpha;
    case TextClass::kAlnum:
      return is_alpha || is_decimal || category == UTF8PROC_CATEGORY_NL ||
             category == UTF8PROC_CATEGORY_NO;
    default:
      return IsPythonSpace(c);
  }
}

}  // namespace

bool IsUtf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t i = 0; i < text.size();) {
    utf8proc_int32_t code_point = 0;
    const auto length =
        utf8proc_iterate(bytes + i, static_cast<utf8proc_ssize_t>(text.size() - i), &code_point);
    if (length <= 0) {
      return false;
    }
    i += static_cast<size_t>(length);
  }
  return true;
}

int64_t NumCodePoints(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

size_t OffsetOf(std::string_view text, int64_t index) {
  size_t offset = 0;
  for (; index > 0 && offset < text.size(); --index) {
    do {
      ++offset;
    } while (offset < text.size() && (text[offset] & 0xC0) == 0x80);
  }
  return offset;
}

char32_t TakeCodePoint(std::string_view& text) {
  utf8proc_int32_t code_point = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()),
                                       &code_point);
  text.remove_prefix(length > 0 ? static_cast<size_t>(length) : 1);
  return static_cast<char32_t>(code_point);
}

void AppendCodePoint(char32_t code_point, std::string& text) {
  std::array<utf8proc_uint8_t, 4> bytes = {};
  const auto length = utf8proc_encode_char(Signed(code_point), bytes.data());
  std::copy_n(bytes.begin(), length, std::back_inserter(text));
}

size_t FindText(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) {
    return std::string_view::npos;
  }
  const void* const place =
      ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return place == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(place) - text.data());
}

bool IsPythonSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsPythonPrintable(char32_t c) {
  if (c < 0x7F) {
    return c >= ' ';
  }
  const utf8proc_category_t category = utf8proc_category(Signed(c));
  return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

std::string ChangeCase(std::string_view text, LetterCase letter_case) {
  std::string result;
  result.reserve(text.size());
  char32_t before = 0;  // the last code point that is not case-ignorable
  bool starts_word = true;
  while (!text.empty()) {
    const char32_t c = TakeCodePoint(text);
    const bool is_title = letter_case >= LetterCase::kTitle;
    if (letter_case == LetterCase::kUpper || (is_title && starts_word)) {
      for (char32_t upper : UpperOf(c, is_title)) {
        AppendCodePoint(upper, result);
      }
    } else {
      AppendLower(c, before, text, result);
    }
    starts_word = letter_case == LetterCase::kTitle && !IsCased(c);
    before = IsCaseIgnorable(c) ? before : c;
  }
  return result;
}

bool IsTextClass(std::string_view text, TextClass text_class) {
  const bool is_case = text_class == TextClass::kLower || text_class == TextClass::kUpper;
  bool has_cased = false;
  const bool is_empty = text.empty();
  while (!text.empty()) {
    const char32_t c = TakeCodePoint(text);
    if (!is_case) {
      if (!IsOfClass(c, text_class)) {
        return false;
      }
    } else if (IsCased(c)) {
      has_cased = true;
      if (!(text_class == TextClass::kLower ? IsLower(c) : IsUpper(c))) {
        return false;
      }
    }
  }
  return is_case ? has_cased : !is_empty;
}

}  // namespace quire
