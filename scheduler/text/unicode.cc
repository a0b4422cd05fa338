#include "scheduler/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

bool Contains(std::span<const Range> ranges, char32_t code_point) {
  auto after = std::upper_bound(
      ranges.begin(), ranges.end(), code_point, [](char32_t value, const Range& range) {
        return value < range.first;
      });
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

// Letters and numbers added by Unicode 15.1 and 16.0. The system's utf8proc has Unicode 15.0.
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D},
};
constexpr Range kNewNumbers[] = {
    {0x10D40, 0x10D49},
    {0x116D0, 0x116E3},
    {0x11BF0, 0x11BF9},
    {0x16130, 0x16139},
    {0x16D70, 0x16D79},
    {0x1CCF0, 0x1CCF9},
    {0x1E5F1, 0x1E5FA},
};

// Characters that compose, decompose or reorder in Unicode 15.0 but did not exist in the Unicode
// version of Hugging Face's normalizer. Hugging Face's normalizer never changes these characters,
// and composes nothing across them. U+11A7 is listed because utf8proc 2.8.0 wrongly drops U+11A7
// after a Hangul syllable.
constexpr Range kUnknownToNormalizer[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},
    {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x11A7, 0x11A7},
    {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
    {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

// Symbols that count as alphabetic: circled and squared Latin letters.
constexpr Range kAlphabeticSymbols[] = {
    {0x24B6, 0x24E9},
    {0x1F130, 0x1F149},
    {0x1F150, 0x1F169},
    {0x1F170, 0x1F189},
};

// Letters newer than Unicode 15.0. A letter's lower case is its code point plus `distance`.
struct CaseRange {
  char32_t first;
  char32_t last;
  int32_t distance;
};
constexpr CaseRange kNewLowerCase[] = {
    {0x1C89, 0x1C89, 1},
    {0xA7CB, 0xA7CB, -0xA567},
    {0xA7CC, 0xA7CC, 1},
    {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},
    {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},
    {0xA7DC, 0xA7DC, -0xA641},
    {0x10D50, 0x10D65, 0x20},
    {0x16EA0, 0x16EB8, 0x1B},
};

char32_t LowerCase(char32_t code_point) {
  for (const CaseRange& range : kNewLowerCase) {
    if (code_point >= range.first && code_point <= range.last) {
      return static_cast<char32_t>(static_cast<int32_t>(code_point) + range.distance);
    }
  }
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
}

bool IsSpaceSeparatorOrControl(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

CharClass ComputeClass(char32_t c) {
  if (c == '\r' || c == '\n') {
    return CharClass::kNewline;
  }
  if (IsSpaceSeparatorOrControl(c)) {
    return CharClass::kSpace;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_CN:
      if (Contains(kNewLetters, c)) {
        return CharClass::kLetter;
      }
      return Contains(kNewNumbers, c) ? CharClass::kNumber : CharClass::kOther;
    default:
      return CharClass::kOther;
  }
}

std::array<CharClass, 128> MakeAsciiTable() {
  std::array<CharClass, 128> table{};
  for (char32_t c = 0; c < 128; ++c) {
    table[c] = ComputeClass(c);
  }
  return table;
}

// Appends the full decomposition of one character, not yet in canonical order.
void AppendDecomposition(char32_t code_point,
                         utf8proc_option_t options,
                         std::vector<utf8proc_int32_t>* out) {
  // The longest decomposition in Unicode is 18 characters (U+FDFA).
  std::array<utf8proc_int32_t, 32> buffer;
  int last_boundclass = 0;
  utf8proc_ssize_t length = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point),
                                                    buffer.data(),
                                                    static_cast<utf8proc_ssize_t>(buffer.size()),
                                                    options,
                                                    &last_boundclass);
  QUIRE_CHECK(length >= 0 && static_cast<size_t>(length) <= buffer.size());
  out->insert(out->end(), buffer.begin(), buffer.begin() + length);
}

// Puts every run of combining marks in canonical order. utf8proc's own ordering takes quadratic
// time on long runs.
void OrderMarks(std::vector<utf8proc_int32_t>* text) {
  auto mark_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  auto run = text->begin();
  while (run != text->end()) {
    if (mark_class(*run) == 0) {
      ++run;
      continue;
    }
    auto end = std::find_if(run, text->end(), [&](auto c) { return mark_class(c) == 0; });
    std::stable_sort(run, end, [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
    run = end;
  }
}

// Appends the segment in the normal form to *out, and clears the segment. REQUIRES: the segment is
// decomposed, and has no character of kUnknownToNormalizer.
void FlushSegment(NormalizationForm form,
                  std::vector<utf8proc_int32_t>* segment,
                  std::string* out) {
  if (segment->empty()) {
    return;
  }
  OrderMarks(segment);
  bool compose = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  utf8proc_ssize_t length = static_cast<utf8proc_ssize_t>(segment->size());
  if (compose) {
    length = utf8proc_normalize_utf32(
        segment->data(),
        length,
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    QUIRE_CHECK(length >= 0);
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    AppendUtf8(static_cast<char32_t>((*segment)[static_cast<size_t>(i)]), out);
  }
  segment->clear();
}

bool IsAscii(std::string_view text) {
  return std::all_of(
      text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

CharClass ClassOf(char32_t code_point) {
  static const std::array<CharClass, 128> ascii = MakeAsciiTable();
  return code_point < 128 ? ascii[code_point] : ComputeClass(code_point);
}

bool IsWordCharacter(char32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return ClassOf(code_point) == CharClass::kLetter || Contains(kNewNumbers, code_point) ||
             code_point == 0x200C || code_point == 0x200D ||
             Contains(kAlphabeticSymbols, code_point);
  }
}

std::string Normalize(NormalizationForm form, std::string_view text) {
  if (IsAscii(text)) {
    return std::string(text);
  }
  bool compatibility = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                (compatibility ? UTF8PROC_COMPAT : 0));
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> segment;
  size_t position = 0;
  while (position < text.size()) {
    char32_t code_point = DecodeValidUtf8(text, &position);
    if (Contains(kUnknownToNormalizer, code_point)) {
      FlushSegment(form, &segment, &out);
      AppendUtf8(code_point, &out);
    } else {
      AppendDecomposition(code_point, options, &segment);
    }
  }
  FlushSegment(form, &segment, &out);
  return out;
}

std::string ToLowerCase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t position = 0;
  while (position < text.size()) {
    char32_t code_point = DecodeValidUtf8(text, &position);
    // Only U+0130 has a lower case of two characters: i and the combining dot above.
    if (code_point == 0x130) {
      out += "i\xCC\x87";
    } else {
      AppendUtf8(LowerCase(code_point), &out);
    }
  }
  return out;
}

}  // namespace quire
