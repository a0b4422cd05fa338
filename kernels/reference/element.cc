#include "kernels/reference/element.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace quire::reference {
namespace {

// Rounds value to a multiple of 2^exponent, ties to even. Scaling by a power of two is exact.
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
  // Below kSmallestNormal, a number of binary16 is n * 2^-24 and is stored as n. So is
  // kSmallestNormal itself (n = 1024), to which `magnitude` may be rounded up.
  if (magnitude < kSmallestNormal) {
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
  auto mantissa = static_cast<uint16_t>(std::ldexp(magnitude, 10 - exponent));  // in [1024, 2048)
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | (mantissa & 0x3FF));
}

float FloatFromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t Bfloat16FromFloat(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    // Sets the bit of a quiet NaN, else dropping the low bits could turn the NaN into an infinity.
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  }
  uint32_t half_ulp_or_just_below = 0x7FFF + ((bits >> 16) & 1);
  return static_cast<uint16_t>((bits + half_ulp_or_just_below) >> 16);
}

float FloatFromE4m3(uint8_t bits) {
  int exponent = (bits >> 3) & 0xF;
  int mantissa = bits & 7;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7F) == 0x7F) {
    magnitude = NAN;
  }
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

uint8_t E4m3FromFloat(float value) {
  auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) {
    return sign | 0x7F;
  }
  float magnitude = std::fmin(std::fabs(value), 448.0F);
  constexpr float kSmallestNormal = 0x1p-6F;
  // Below kSmallestNormal, a number of e4m3 is n * 2^-9 and is stored as n. So is kSmallestNormal
  // itself (n = 8), to which `magnitude` may be rounded up.
  if (magnitude < kSmallestNormal) {
    return sign | static_cast<uint8_t>(std::nearbyint(std::ldexp(magnitude, 9)));
  }
  magnitude = RoundToMultipleOfPowerOfTwo(magnitude, std::ilogb(magnitude) - 3);
  int exponent = std::ilogb(magnitude);
  auto mantissa = static_cast<int>(std::ldexp(magnitude, 3 - exponent));  // in [8, 16)
  return static_cast<uint8_t>(sign | ((exponent + 7) << 3) | (mantissa & 7));
}

float LoadElement(const void* data, DType dtype, int64_t index) {
  const auto* at = static_cast<const unsigned char*>(data) + index * SizeOf(dtype);
  if (dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (dtype == DType::kF8E4M3) {
    return FloatFromE4m3(*at);
  }
  if (dtype == DType::kInt8) {
    return static_cast<int8_t>(*at);
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
  if (dtype == DType::kF8E4M3) {
    *at = E4m3FromFloat(value);
    return;
  }
  if (dtype == DType::kInt8) {
    auto rounded = static_cast<int>(std::nearbyint(std::fmax(std::fmin(value, 127.0F), -127.0F)));
    *at = static_cast<uint8_t>(rounded);
    return;
  }
  uint16_t bits = dtype == DType::kF16 ? HalfFromFloat(value) : Bfloat16FromFloat(value);
  std::memcpy(at, &bits, sizeof(bits));
}

float StoreScaledVector(
    void* data, DType dtype, int64_t index, int64_t stride, const float* vector, int32_t size) {
  float max = 0.0F;
  bool is_finite = true;
  for (int32_t d = 0; d < size; ++d) {
    max = std::fmax(max, std::fabs(vector[d]));
    is_finite = is_finite && std::isfinite(vector[d]);
  }
  const float largest = dtype == DType::kInt8 ? 127.0F : 448.0F;
  const bool is_stored = is_finite && max >= 0x1p-100F;
  for (int32_t d = 0; d < size; ++d) {
    const float value = is_stored ? vector[d] * (largest / max) : 0.0F;
    StoreElement(data, dtype, index + d * stride, value);
  }
  if (!is_finite) {
    return NAN;
  }
  return is_stored ? max / largest : 0.0F;
}

}  // namespace quire::reference
