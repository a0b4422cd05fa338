// HalfToFloat and FloatToHalf convert between fp32 and the bits of a binary16 number.
// FloatToBFloat16 converts fp32 to the bits of a bfloat16 number. Compilers vectorize loops of
// HalfToFloat and of FloatToBFloat16.
//
// Thread safety: free functions, safe from any thread.
// Source:        IEEE 754-2008.
#ifndef QUIRE_COMMON_MODEL_HALF_FLOAT_H_
#define QUIRE_COMMON_MODEL_HALF_FLOAT_H_

#include <bit>
#include <cstdint>

namespace quire {

// Converts exactly: every binary16 number is an fp32 number. NaN stays NaN.
constexpr float HalfToFloat(uint16_t half) {
  constexpr uint32_t kInfinity = 0x7C00U << 13;
  constexpr uint32_t kRebias = (127U - 15U) << 23;
  const uint32_t magnitude = (half & 0x7FFFU) << 13;
  const uint32_t normal = magnitude + kRebias;
  // A subnormal half is f * 2^-14. With the next exponent, `normal` reads as (1 + f) * 2^-14, so
  // 2^-14 is subtracted.
  const auto subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(normal + (1U << 23)) - 0x1p-14F);
  // Masks with all bits set, or none. With a conditional operator, gcc would make branches.
  const uint32_t is_subnormal = 0U - static_cast<uint32_t>(magnitude < (1U << 23));
  const uint32_t is_not_finite = 0U - static_cast<uint32_t>(magnitude >= kInfinity);
  const uint32_t bits = (subnormal & is_subnormal) | (normal & ~is_subnormal);
  return std::bit_cast<float>((bits + (kRebias & is_not_finite)) | (half & 0x8000U) << 16);
}

// Rounds to nearest, ties to even. A value that is too large becomes infinity; NaN stays NaN.
constexpr uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & 0x8000'0000U) >> 16);
  const uint32_t magnitude = bits & 0x7FFF'FFFFU;
  if (magnitude > 0x7F80'0000U) {
    return sign | 0x7E00U;
  }
  if (magnitude >= 0x477F'F000U) {  // 65520, halfway between the largest half and 2^16
    return sign | 0x7C00U;
  }
  if (magnitude < 0x3880'0000U) {  // 2^-14, the smallest normal half
    // fp32 numbers in [0.5, 1) are multiples of 2^-24, the smallest subnormal half. So the addition
    // of 0.5 rounds the value to a multiple of 2^-24.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F00'0000U));
  }
  const uint32_t half_ulp_or_just_below = 0xFFFU + ((magnitude >> 13) & 1U);
  const uint32_t rounded = magnitude + half_ulp_or_just_below - ((127U - 15U) << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

// Rounds to nearest, ties to even. A value that is too large becomes infinity; NaN stays NaN.
constexpr uint16_t FloatToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t half_ulp_or_just_below = 0x7FFFU + ((bits >> 16) & 1U);
  const bool is_nan = (bits & 0x7FFF'FFFFU) > 0x7F80'0000U;
  return static_cast<uint16_t>((is_nan ? bits | 0x0040'0000U : bits + half_ulp_or_just_below) >>
                               16);
}

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_HALF_FLOAT_H_
