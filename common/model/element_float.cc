#include "common/model/element_float.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace quire {
namespace {

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t fraction = half & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in fp32
    const float value = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  const uint32_t wide = exponent == 0x1FU ? 0xFFU : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

}  // namespace

float ElementToFloat(const std::byte* at, DType dtype) {
  if (dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kF16 ? HalfToFloat(bits)
                              : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace quire
