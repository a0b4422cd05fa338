// Bf16, F16 and F8E4M3 are storage types; computation is in fp32.
//
// Conversion to fp32 is exact. Conversion from fp32 rounds to nearest, ties to even; NaN stays NaN.
// A number that is too large becomes infinity. In e4m3, which has no infinity, such a number
// becomes the largest number, 448.
//
// Thread safety: any thread may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_ELEMENT_H_
#define QUIRE_KERNELS_CUDA_DEVICE_ELEMENT_H_

#include <cstdint>

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
// 4 bits of exponent, 3 of mantissa; 0x7F and 0xFF are NaN.
struct F8E4M3 {
  uint8_t bits;
};

// Conversions for the CPU, and for GPUs without e4m3 instructions (before sm_89).
namespace portable {

QUIRE_DEVICE float FloatFromF16(uint16_t bits) {
  constexpr uint32_t kExponent = 0x7C00;
  // The shift moves the exponent to fp32's exponent bits, still with f16's bias. The multiplication
  // corrects the bias and normalizes subnormals. Infinity and NaN are not multiplied: they get
  // fp32's largest exponent.
  uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFF) << 13;
  magnitude = (bits & kExponent) == kExponent
                  ? magnitude | 0x7F800000
                  : __float_as_uint(__uint_as_float(magnitude) * 0x1p112F);
  return __uint_as_float(magnitude | static_cast<uint32_t>(bits & 0x8000) << 16);
}

QUIRE_DEVICE uint16_t F16FromFloat(float value) {
  uint32_t bits = __float_as_uint(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7FFFFFFF;
  if (bits > 0x7F800000) {
    return 0x7FFF;
  }
  if (bits >= 0x477FF000) {  // 65520, half way from the largest number to the next power of two
    return static_cast<uint16_t>(sign | 0x7C00);
  }
  if (bits < 0x38800000) {  // 2^-14
    // The result is a subnormal, a multiple of 2^-24. The last bit of 0.5 is worth 2^-24, so adding
    // 0.5 rounds to such a multiple.
    return static_cast<uint16_t>(
        sign | (__float_as_uint(__uint_as_float(bits) + 0.5F) - __float_as_uint(0.5F)));
  }
  bits += 0xFFF + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | ((bits >> 13) - ((127 - 15) << 10)));
}

QUIRE_DEVICE uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) {
    return 0x7FFF;
  }
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Returns the bits of the F16 of equal value.
QUIRE_DEVICE uint16_t F16FromF8E4M3(uint8_t bits) {
  const uint32_t sign = (bits & 0x80u) << 8;
  const uint32_t magnitude = bits & 0x7Fu;
  if (magnitude == 0x7F) {
    return static_cast<uint16_t>(sign | 0x7FFF);
  }
  if (magnitude >= 8) {
    return static_cast<uint16_t>(sign | ((magnitude << 7) + ((15 - 7) << 10)));
  }
  // The value is magnitude * 2^-9, which is subnormal in e4m3 and normal in F16.
  if (magnitude == 0) {
    return static_cast<uint16_t>(sign);
  }
  const uint32_t top = 31 - static_cast<uint32_t>(__clz(static_cast<int>(magnitude)));
  const uint32_t mantissa = (magnitude << (10 - top)) & 0x3FF;
  return static_cast<uint16_t>(sign | ((top + 15 - 9) << 10) | mantissa);
}

QUIRE_DEVICE uint8_t F8E4M3FromFloat(float value) {
  constexpr uint32_t kLargest = 0x7E;
  uint32_t bits = __float_as_uint(value);
  const uint32_t sign = (bits >> 24) & 0x80;
  bits &= 0x7FFFFFFF;
  if (bits > 0x7F800000) {
    return 0x7F;
  }
  uint32_t magnitude = 0;
  if (bits < 0x3C800000) {  // 2^-6
    // The result is a subnormal, a multiple of 2^-9. The last bit of 2^14 is worth 2^-9, so adding
    // 2^14 rounds to such a multiple.
    magnitude = __float_as_uint(__uint_as_float(bits) + 0x1p14F) - __float_as_uint(0x1p14F);
  } else {
    bits += 0x7FFFF + ((bits >> 20) & 1);
    magnitude = (bits >> 20) - ((127 - 7) << 3);
  }
  return static_cast<uint8_t>(sign | (magnitude < kLargest ? magnitude : kLargest));
}

}  // namespace portable

#ifdef __CUDACC__

QUIRE_DEVICE uint32_t PackBf16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
QUIRE_DEVICE uint32_t PackF16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
QUIRE_DEVICE uint16_t PackF8(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t result;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(high), "f"(low));
  return result;
#else
  return static_cast<uint16_t>(portable::F8E4M3FromFloat(low) | portable::F8E4M3FromFloat(high)
                                                                    << 8);
#endif
}
QUIRE_DEVICE float ToFloat(F16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
QUIRE_DEVICE uint32_t F8x2ToF16x2(uint16_t pair) {
#if __CUDA_ARCH__ >= 890
  uint32_t result;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(pair));
  return result;
#else
  // The shift moves exponents to f16's exponent bits, still with e4m3's bias. Multiplying by 256
  // corrects the bias, also for subnormals.
  const uint32_t spread = (pair & 0xFFu) | static_cast<uint32_t>(pair >> 8) << 16;
  const uint32_t magnitude = (spread & 0x007F007F) << 7;
  uint32_t result;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(magnitude), "r"(0x5C005C00));
  // Only the magnitude of NaN, 0x7F, carries into bit 7 when 1 is added. Each half of the register
  // with that carry becomes a NaN of f16: all bits below the sign are set.
  const uint32_t nan = ((spread & 0x007F007F) + 0x00010001) & 0x00800080;
  return result | ((nan << 8) - (nan >> 7)) | ((spread & 0x00800080) << 8);
#endif
}

#else  // the CPU

QUIRE_DEVICE uint32_t PackBf16(float low, float high) {
  return portable::Bf16FromFloat(low) | static_cast<uint32_t>(portable::Bf16FromFloat(high)) << 16;
}
QUIRE_DEVICE uint32_t PackF16(float low, float high) {
  return portable::F16FromFloat(low) | static_cast<uint32_t>(portable::F16FromFloat(high)) << 16;
}
QUIRE_DEVICE uint16_t PackF8(float low, float high) {
  return static_cast<uint16_t>(portable::F8E4M3FromFloat(low) | portable::F8E4M3FromFloat(high)
                                                                    << 8);
}
QUIRE_DEVICE float ToFloat(F16 value) { return portable::FloatFromF16(value.bits); }
QUIRE_DEVICE uint32_t F8x2ToF16x2(uint16_t pair) {
  return portable::F16FromF8E4M3(static_cast<uint8_t>(pair)) |
         static_cast<uint32_t>(portable::F16FromF8E4M3(static_cast<uint8_t>(pair >> 8))) << 16;
}

#endif  // __CUDACC__

QUIRE_DEVICE float ToFloat(float value) { return value; }
QUIRE_DEVICE float ToFloat(Bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
QUIRE_DEVICE float ToFloat(F8E4M3 value) {
  return ToFloat(F16{static_cast<uint16_t>(F8x2ToF16x2(value.bits))});
}

template <typename T>
QUIRE_DEVICE T FromFloat(float value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return Bf16{static_cast<uint16_t>(PackBf16(value, 0.0F))};
  } else if constexpr (std::is_same_v<T, F16>) {
    return F16{static_cast<uint16_t>(PackF16(value, 0.0F))};
  } else if constexpr (std::is_same_v<T, F8E4M3>) {
    return F8E4M3{static_cast<uint8_t>(PackF8(value, 0.0F))};
  } else {
    static_assert(std::is_same_v<T, float>);
    return value;
  }
}

// Packs two Bf16 or F16 numbers into a register, `low` in the lower half.
template <typename T>
QUIRE_DEVICE uint32_t Pack2(float low, float high) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return PackBf16(low, high);
  } else {
    static_assert(std::is_same_v<T, F16>);
    return PackF16(low, high);
  }
}

template <typename T>
QUIRE_DEVICE float2 Unpack2(uint32_t pair) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return float2{__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000)};
  } else {
    static_assert(std::is_same_v<T, F16>);
    return float2{ToFloat(F16{static_cast<uint16_t>(pair)}),
                  ToFloat(F16{static_cast<uint16_t>(pair >> 16)})};
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_ELEMENT_H_
