// SimdPortable is the vector interface of the kernels in plain C++ with the 16-byte vectors that
// gcc and clang offer on every machine: 4 lanes. The contract is that of SimdAvx512
// (simd_avx512.h), except that Fma rounds twice here, because most baseline machines have no fused
// instruction.
//
// Thread safety: pure functions.
#ifndef QUIRE_KERNELS_CPU_SIMD_PORTABLE_H_
#define QUIRE_KERNELS_CPU_SIMD_PORTABLE_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/storage_types.h"

namespace quire {

struct SimdPortable {
  static constexpr int kLanes = 4;
  using Vec = float __attribute__((vector_size(16)));

  static Vec Zero() { return Vec{0.0F, 0.0F, 0.0F, 0.0F}; }
  static Vec Broadcast(float value) { return Vec{value, value, value, value}; }

  static Vec Load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static Vec Load(const BFloat16* p) { return LoadN(p, kLanes); }
  static Vec Load(const Float16* p) { return LoadN(p, kLanes); }
  static Vec Load(const Float8E4M3* p) { return LoadN(p, kLanes); }
  static Vec Load(const Int8* p) { return LoadN(p, kLanes); }
  static void LoadPairs(const BFloat16* p, Vec* even, Vec* odd) {
    IntVec bits;  // each lane holds two values, the one with even index in the low half
    std::memcpy(&bits, p, sizeof(bits));
    const IntVec low = bits << 16;
    const IntVec high = bits & 0xffff0000U;
    std::memcpy(even, &low, sizeof(low));
    std::memcpy(odd, &high, sizeof(high));
  }
  template <typename T>
  static Vec LoadN(const T* p, int n) {
    Vec v = Zero();
    for (int i = 0; i < n; ++i) {
      v[i] = Widen(p[i]);
    }
    return v;
  }

  static void Store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
  static void Store(BFloat16* p, Vec v) { StoreN(p, v, kLanes); }
  static void Store(Float16* p, Vec v) { StoreN(p, v, kLanes); }
  template <typename T>
  static void StoreN(T* p, Vec v, int n) {
    for (int i = 0; i < n; ++i) {
      Narrow(v[i], &p[i]);
    }
  }

  static Vec Add(Vec a, Vec b) { return a + b; }
  static Vec Sub(Vec a, Vec b) { return a - b; }
  static Vec Mul(Vec a, Vec b) { return a * b; }
  static Vec Div(Vec a, Vec b) { return a / b; }
  static Vec Fma(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec Max(Vec a, Vec b) { return a > b ? a : b; }
  static Vec Min(Vec a, Vec b) { return a < b ? a : b; }

  static uint32_t EqualMask(Vec a, Vec b) { return BitsOf(a == b); }
  static uint32_t GreaterMask(Vec a, Vec b) { return BitsOf(a > b); }
  static uint32_t GreaterEqualMask(Vec a, Vec b) { return BitsOf(a >= b); }
  static Vec Select(uint32_t mask, Vec a, Vec b) {
    Vec v = b;
    for (int i = 0; i < kLanes; ++i) {
      v[i] = (mask >> i & 1U) != 0 ? a[i] : b[i];
    }
    return v;
  }

  static float ReduceMax(Vec v) {
    const float even = v[0] > v[2] ? v[0] : v[2];
    const float odd = v[1] > v[3] ? v[1] : v[3];
    return even > odd ? even : odd;
  }
  static float ReduceSum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }

  static Vec Exp(Vec x) {
    const Vec held = Min(Broadcast(88.37F), x);
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
    const Vec magic = Broadcast(12582912.0F);
    const Vec shifted = held * Broadcast(1.44269504F) + magic;
    const Vec n = shifted - magic;
    Vec r = held - n * Broadcast(0.693359375F);
    r = r - n * Broadcast(-2.12194440e-4F);
    Vec p = Broadcast(1.39505e-3F);
    p = Fma(p, r, Broadcast(8.36892e-3F));
    p = Fma(p, r, Broadcast(4.166621e-2F));
    p = Fma(p, r, Broadcast(1.6666519e-1F));
    p = Fma(p, r, Broadcast(5.0e-1F));
    p = Add(Fma(p, r * r, r), Broadcast(1.0F));
    IntVec exponent;
    std::memcpy(&exponent, &shifted, sizeof(exponent));
    exponent = (exponent + 127) << 23;  // shifts out the bits of 1.5 * 2^23
    Vec scale;
    std::memcpy(&scale, &exponent, sizeof(scale));
    return x < Broadcast(-87.33F) ? Zero() : p * scale;
  }

 private:
  using IntVec = uint32_t __attribute__((vector_size(16)));

  template <typename Mask>
  static uint32_t BitsOf(Mask mask) {
    uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) {
      bits |= static_cast<uint32_t>(mask[i] != 0) << i;
    }
    return bits;
  }

  static uint32_t BitsOf(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }
  static float FloatOf(uint32_t bits) {
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  static float Widen(float value) { return value; }
  static float Widen(BFloat16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }
  static float Widen(Float16 value) {
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
    const uint32_t magnitude = value.bits & 0x7fffU;
    if (magnitude >= 0x7c00U) {  // an infinity or a NaN; a NaN becomes quiet
      const uint32_t quiet = magnitude > 0x7c00U ? 0x00400000U : 0U;
      return FloatOf(sign | 0x7f800000U | quiet | (magnitude & 0x3ffU) << 13);
    }
    // Exponent and mantissa, shifted to their places in fp32, give the value times 2^-112, also for
    // denormals. The reason is the exponent bias, which is 127 in fp32 and 15 in binary16.
    const float scaled = FloatOf(magnitude << 13) * 0x1p112F;
    return FloatOf(sign | BitsOf(scaled));
  }

  static float Widen(Float8E4M3 value) {
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80U) << 24;
    const uint32_t size = value.bits & 0x7fU;
    // If `size` is below 8, the exponent bits are zero, and the value is a multiple of 2^-9.
    const float normal = FloatOf((size << 20) + (120U << 23));
    const float small = static_cast<float>(size) * 0x1p-9F;
    return FloatOf(sign | BitsOf(size < 8U ? small : normal));
  }
  static float Widen(Int8 value) { return static_cast<float>(value.value); }

  static void Narrow(float value, float* out) { *out = value; }
  static void Narrow(float value, BFloat16* out) {
    const uint32_t bits = BitsOf(value);
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    const uint32_t rounded = is_nan ? bits | 0x00400000U : bits + 0x7fffU + (bits >> 16 & 1U);
    out->bits = static_cast<uint16_t>(rounded >> 16);
  }
  static void Narrow(float value, Float16* out) {
    const uint32_t bits = BitsOf(value);
    const uint32_t sign = bits >> 16 & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    uint32_t half = 0;
    if (magnitude > 0x7f800000U) {
      half = 0x7e00U | (magnitude >> 13 & 0x3ffU);
    } else if (magnitude >= 0x477ff000U) {  // rounds to 65536 or more: infinity
      half = 0x7c00U;
    } else if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
      half = BitsOf(FloatOf(magnitude) + 0.5F) - 0x3f000000U;
    } else {
      const uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U);
      half = (rounded - 0x38000000U) >> 13;
    }
    out->bits = static_cast<uint16_t>(sign | half);
  }
  static void Narrow(float value, Float8E4M3* out) {
    const uint32_t sign = BitsOf(value) >> 24 & 0x80U;
    const float positive = FloatOf(BitsOf(value) & 0x7fffffffU);
    const float size = positive < 448.0F ? positive : 448.0F;
    const uint32_t bits = BitsOf(size);
    uint32_t code = 0;
    if (size < 0x1p-6F) {  // adding 2^14 rounds to multiples of 2^-9
      code = BitsOf(size + 16384.0F) & 0x7fU;
    } else {
      code = (bits + 0x7ffffU + (bits >> 20 & 1U) - (120U << 23)) >> 20;
    }
    out->bits = static_cast<uint8_t>(sign | code);
  }
  static void Narrow(float value, Int8* out) {
    const float below = value < 127.0F ? value : 127.0F;
    const float held = below > -127.0F ? below : -127.0F;
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
    out->value = static_cast<int8_t>(BitsOf(held + 12582912.0F) & 0xffU);
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_SIMD_PORTABLE_H_
