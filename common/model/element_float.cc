#include "common/model/element_float.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "common/model/half_float.h"

namespace quire {

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
