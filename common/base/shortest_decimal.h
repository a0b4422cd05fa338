// ShortestDecimal writes a number for an error message. absl::StrCat writes six digits, so an error
// about 1.0000001 above the limit 1 would read "got 1, limit 1".
//
// Thread safety: free function, safe from any thread.
#ifndef QUIRE_COMMON_BASE_SHORTEST_DECIMAL_H_
#define QUIRE_COMMON_BASE_SHORTEST_DECIMAL_H_

#include <array>
#include <charconv>
#include <concepts>
#include <string>

namespace quire {

// Returns the shortest decimal text that parses back to the same value.
template <std::floating_point T>
std::string ShortestDecimal(T value) {
  std::array<char, 32> digits = {};
  const auto end = std::to_chars(digits.begin(), digits.end(), value).ptr;
  return {digits.begin(), end};
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_SHORTEST_DECIMAL_H_
