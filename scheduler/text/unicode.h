// The character classes of tokenizer patterns, normal forms, and lower case. The classes have the
// Unicode version that Hugging Face `tokenizers` uses today (16.0), so that a text is cut at the
// same places.
//
// Thread safety: free functions, safe from any thread.
// Cost:          a table look-up for a class.
#ifndef QUIRE_SCHEDULER_TEXT_UNICODE_H_
#define QUIRE_SCHEDULER_TEXT_UNICODE_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

enum class CharClass : uint8_t {
  kLetter,   // general category L
  kNumber,   // general category N
  kNewline,  // \r or \n
  kSpace,    // White_Space other than \r and \n
  kOther,
};

CharClass ClassOf(char32_t code_point);

// True for Perl's \w in Unicode: letters, marks, decimal numbers, connectors, joiners.
bool IsWordCharacter(char32_t code_point);

inline bool IsWhiteSpace(char32_t code_point) {
  CharClass char_class = ClassOf(code_point);
  return char_class == CharClass::kSpace || char_class == CharClass::kNewline;
}

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Returns text in the given form. Leaves characters newer than Unicode 9 as they are, because
// Hugging Face's normalizer does not change them. REQUIRES: text is valid UTF-8.
// Cost: O(n log n), even for long runs of combining marks.
std::string Normalize(NormalizationForm form, std::string_view text);

// Returns text in lower case, converted character by character without regard to context or
// language.
std::string ToLowerCase(std::string_view text);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_UNICODE_H_
