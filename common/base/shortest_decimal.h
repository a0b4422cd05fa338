// ShortestDecimal writes a number of an error message. Six digits, as absl::StrCat writes them,
// would say that 1.0000001 exceeds the limit 1 as "got 1, limit 1".
//
// Thread safety: free function, safe from any thread.
#ifndef QUIRE_COMMON_BASE_SHORTEST_DECIMAL_H_
#define QUIRE_COMMON_BASE_SHORTEST_DECIMAL_H_

#include <array>
#include <charconv>
#include <concepts>
#include <string>

namespace quire {

// Returns the number as text with the fewest digits that identify it among the values of its type.
template <std::floating_point T>
std::string ShortestDecimal(T value) {
  std::array<char, 32> digits = {};
  const auto end = std::to_chars(digits.begin(), digits.end(), value).ptr;
  return {digits.begin(), end};
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_SHORTEST_DECIMAL_H_
