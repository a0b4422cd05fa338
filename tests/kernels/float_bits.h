// Conversions to the 16-bit types for tests, by way of definition: nothing is shared with the
// kernels' own conversions.
#ifndef QUIRE_TESTS_KERNELS_FLOAT_BITS_H_
#define QUIRE_TESTS_KERNELS_FLOAT_BITS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/model/dtype.h"

namespace quire {

inline uint32_t BitsOf(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float BF16Value(uint16_t bits) { return FloatOf(uint32_t{bits} << 16); }

inline float F16Value(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float mantissa = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return mantissa == 0.0F ? sign * std::numeric_limits<float>::infinity()
                            : std::numeric_limits<float>::quiet_NaN();
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024.0F + mantissa, exponent - 25);
}

// Finite values only. Rounds to nearest, ties to even.
inline uint16_t BF16Bits(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rest = bits & 0xffffU;
  const bool up = rest > 0x8000U || (rest == 0x8000U && (bits >> 16 & 1U) != 0);
  return static_cast<uint16_t>((bits >> 16) + (up ? 1U : 0U));
}

inline float RoundedToBF16(float value) { return BF16Value(BF16Bits(value)); }

// Values of absolute value below 2048 only. Rounds to nearest, ties to even.
inline uint16_t F16Bits(float value) {
  const float magnitude = std::abs(value);
  const int exponent = magnitude < 0x1p-14F ? -14 : std::ilogb(magnitude);
  const float steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  const auto code = static_cast<uint16_t>(steps + static_cast<float>((exponent + 14) * 1024));
  return static_cast<uint16_t>(code | (std::signbit(value) ? 0x8000 : 0));
}

// Appends value rounded to dtype, and returns the rounded value.
inline float AppendAs(DType dtype, float value, std::vector<std::byte>* bytes) {
  const auto append = [&](const void* data, size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes->insert(bytes->end(), begin, begin + size);
  };
  if (dtype == DType::kF32) {
    append(&value, sizeof(value));
    return value;
  }
  const uint16_t bits = dtype == DType::kF16 ? F16Bits(value) : BF16Bits(value);
  append(&bits, sizeof(bits));
  return dtype == DType::kF16 ? F16Value(bits) : BF16Value(bits);
}

}  // namespace quire

#endif  // QUIRE_TESTS_KERNELS_FLOAT_BITS_H_
