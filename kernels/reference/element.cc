#include "kernels/reference/element.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace quire::reference {
namespace {

// Rounds value to a multiple of 2^exponent, ties to even. Exact: scaling by a power of two is.
float RoundToMultipleOfPowerOfTwo(float value, int exponent) {
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

}  // namespace

float FloatFromHalf(uint16_t bits) {
  int exponent = (bits >> 10) & 0x1F;
  int mantissa = bits & 0x3FF;
  float magnitude = 0.0F;
  if (exponent == 0x1F) {
    magnitude = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(0x400 + mantissa), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t HalfFromFloat(float value) {
  auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) {
    return sign | 0x7E00;
  }
  float magnitude = std::fabs(value);
  constexpr float kSmallestNormal = 0x1p-14F;
  if (magnitude < kSmallestNormal) {  // multiples of 2^-24; may round up to the smallest normal
    return sign |
           static_cast<uint16_t>(std::ldexp(RoundToMultipleOfPowerOfTwo(magnitude, -24), 24));
  }
  int exponent = std::isinf(magnitude) ? 16 : std::ilogb(magnitude);
  if (exponent < 16) {
    magnitude = RoundToMultipleOfPowerOfTwo(magnitude, exponent - 10);
    exponent = std::ilogb(magnitude);
  }
  if (exponent >= 16) {
    return sign | 0x7C00;  // infinity
  }
  auto mantissa = static_cast<uint16_t>(std::ldexp(magnitude, 10 - exponent));  // [1024, 2048)
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | (mantissa & 0x3FF));
}

float FloatFromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t Bfloat16FromFloat(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet, so that it cannot become infinity
  }
  uint32_t half_ulp_or_just_below = 0x7FFF + ((bits >> 16) & 1);
  return static_cast<uint16_t>((bits + half_ulp_or_just_below) >> 16);
}

float LoadElement(const void* data, DType dtype, int64_t index) {
  const auto* at = static_cast<const unsigned char*>(data) + index * SizeOf(dtype);
  if (dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kF16 ? FloatFromHalf(bits) : FloatFromBfloat16(bits);
}

void StoreElement(void* data, DType dtype, int64_t index, float value) {
  auto* at = static_cast<unsigned char*>(data) + index * SizeOf(dtype);
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  uint16_t bits = dtype == DType::kF16 ? HalfFromFloat(value) : Bfloat16FromFloat(value);
  std::memcpy(at, &bits, sizeof(bits));
}

}  // namespace quire::reference
