// Reading and validation of UTF-8 as Unicode defines it (table 3-7): no overlong form, no
// surrogate, nothing above U+10FFFF, no truncated character at the end. Tokenizer::Encode validates
// its text first, and the code that it calls relies on this.
//
// Thread safety: free functions, safe from any thread.
// Cost:          O(bytes); runs of ASCII are checked eight bytes at a time.
// Source:        The Unicode Standard 15.0, section 3.9.
#ifndef QUIRE_SCHEDULER_TEXT_UTF8_H_
#define QUIRE_SCHEDULER_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace quire {

// U+FFFD, which stands for bytes that form no character.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Kind of the bytes at one position.
enum class Utf8Unit {
  kCharacter,   // a complete character of `length` bytes
  kIncomplete,  // the text ends inside a character that is well formed so far
  kInvalid,     // `length` bytes that no continuation can make valid
};

// The unit at one position. For kInvalid, `length` counts the bytes that one U+FFFD replaces (the
// "maximal subpart").
struct Utf8Step {
  Utf8Unit unit;
  size_t length;
  char32_t code_point;  // meaningful for kCharacter only
};

// Reads the unit at text[0]. REQUIRES: !text.empty().
Utf8Step NextUtf8(std::string_view text);

// Returns the offset of the first byte that is not part of a complete character, or npos.
size_t FindInvalidUtf8(std::string_view text);

inline bool IsValidUtf8(std::string_view text) {
  return FindInvalidUtf8(text) == std::string_view::npos;
}

// Returns OK if text is valid. Errors: kInvalidArgument INVALID_UTF8; the message names the field
// and the offset of the first bad byte.
absl::Status CheckUtf8(std::string_view field, std::string_view text);

// Returns the character at *position, and advances *position past it. REQUIRES: text is valid
// UTF-8.
char32_t DecodeValidUtf8(std::string_view text, size_t* position);

// Appends one character. REQUIRES: code_point is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_UTF8_H_
