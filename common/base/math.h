// Integer arithmetic that is easy to get wrong.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_BASE_MATH_H_
#define QUIRE_COMMON_BASE_MATH_H_

#include <cstdint>
#include <optional>
#include <type_traits>

namespace quire {

// Returns ceil(a / b). REQUIRES: a >= 0, b > 0.
template <typename T>
constexpr T DivCeil(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}

// Returns the least multiple of b that is at least a. REQUIRES: a >= 0, b > 0.
template <typename T>
constexpr T RoundUp(T a, std::type_identity_t<T> b) {
  return DivCeil(a, b) * b;
}

// Returns a * b, or nullopt if the product does not fit. For sizes read from files and messages.
inline std::optional<int64_t> CheckedMultiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return std::nullopt;
  }
  return product;
}

// Returns a + b, or nullopt if the sum does not fit.
inline std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    return std::nullopt;
  }
  return sum;
}

}  // namespace quire

#endif  // QUIRE_COMMON_BASE_MATH_H_
