// SimdAvx512 is the vector interface of the kernels on AVX-512 (F, BW, DQ, VL): 16 lanes.
//
// SimdAvx512, SimdAvx2 and SimdPortable offer the same static functions; a kernel is a template
// over one of them (`template <typename S>`), written once. Include this header only from sources
// that are compiled for AVX-512, and keep other code out of these sources. Else the linker could
// keep the AVX-512 copy of an inline function for all callers, and machines without AVX-512 would
// crash in it.
//
// Conventions: `N` variants touch only the first n lanes (0 <= n <= kLanes); a load sets the other
//              lanes to zero. Stores to narrow types round to nearest, ties to even. Stores to
//              8-bit types REQUIRE finite numbers, and clamp their magnitude to the type's largest
//              number. Bit i of a mask stands for lane i.
// Determinism: ReduceSum adds in one fixed tree; Exp is one fixed polynomial.
// Thread safety: pure functions.
#ifndef QUIRE_KERNELS_CPU_SIMD_AVX512_H_
#define QUIRE_KERNELS_CPU_SIMD_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/storage_types.h"

namespace quire {

struct SimdAvx512 {
  static constexpr int kLanes = 16;
  using Vec = __m512;

  static Vec Zero() { return _mm512_setzero_ps(); }
  static Vec Broadcast(float value) { return _mm512_set1_ps(value); }

  static Vec Load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec Load(const BFloat16* p) { return Widen(p, LoadBits(p)); }
  static Vec Load(const Float16* p) { return Widen(p, LoadBits(p)); }
  static Vec Load(const Float8E4M3* p) { return Widen(p, LoadBytes(p)); }
  static Vec Load(const Int8* p) { return Widen(p, LoadBytes(p)); }
  // Loads 2 * kLanes values; `even` gets the values with even index, `odd` those with odd index.
  static void LoadPairs(const BFloat16* p, Vec* even, Vec* odd) {
    const __m512i bits = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-0x10000)));
  }
  static Vec LoadN(const float* p, int n) { return _mm512_maskz_loadu_ps(MaskOf(n), p); }
  static Vec LoadN(const BFloat16* p, int n) { return Widen(p, LoadBitsN(p, n)); }
  static Vec LoadN(const Float16* p, int n) { return Widen(p, LoadBitsN(p, n)); }
  static Vec LoadN(const Float8E4M3* p, int n) { return Widen(p, LoadBytesN(p, n)); }
  static Vec LoadN(const Int8* p, int n) { return Widen(p, LoadBytesN(p, n)); }

  static void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static void Store(BFloat16* p, Vec v) { StoreBits(p, Narrow(p, v)); }
  static void Store(Float16* p, Vec v) { StoreBits(p, Narrow(p, v)); }
  static void StoreN(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, MaskOf(n), v); }
  static void StoreN(BFloat16* p, Vec v, int n) { StoreBitsN(p, Narrow(p, v), n); }
  static void StoreN(Float16* p, Vec v, int n) { StoreBitsN(p, Narrow(p, v), n); }
  static void StoreN(Float8E4M3* p, Vec v, int n) { StoreBytesN(p, Narrow(p, v), n); }
  static void StoreN(Int8* p, Vec v, int n) { StoreBytesN(p, Narrow(p, v), n); }

  static Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
  // In a lane where either operand is NaN, Max and Min return the second operand.
  static Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }

  static uint32_t EqualMask(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static uint32_t GreaterMask(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static uint32_t GreaterEqualMask(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  // Returns a vector with lane i of `a` where bit i of the mask is set, else with lane i of `b`.
  static Vec Select(uint32_t mask, Vec a, Vec b) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), b, a);
  }

  static float ReduceMax(Vec v) {
    const __m256 half = _mm256_max_ps(LowHalf(v), HighHalf(v));
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }
  static float ReduceSum(Vec v) {
    const __m256 half = _mm256_add_ps(LowHalf(v), HighHalf(v));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }

  // Returns exp(x), off by about 1.5 ulp. Returns 0 for x below -87.33, so that no result is a
  // denormal. An x above 88.37 counts as 88.37.
  static Vec Exp(Vec x) {
    const __mmask16 alive = _mm512_cmp_ps_mask(x, Broadcast(-87.33F), _CMP_NLT_UQ);
    const Vec held = _mm512_min_ps(Broadcast(88.37F), x);
    const Vec n = _mm512_roundscale_ps(_mm512_mul_ps(held, Broadcast(1.44269504F)),
                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Vec r = _mm512_fnmadd_ps(n, Broadcast(0.693359375F), held);
    r = _mm512_fnmadd_ps(n, Broadcast(-2.12194440e-4F), r);
    Vec p = Broadcast(1.39505e-3F);
    p = Fma(p, r, Broadcast(8.36892e-3F));
    p = Fma(p, r, Broadcast(4.166621e-2F));
    p = Fma(p, r, Broadcast(1.6666519e-1F));
    p = Fma(p, r, Broadcast(5.0e-1F));
    p = Add(Fma(p, Mul(r, r), r), Broadcast(1.0F));
    return _mm512_maskz_scalef_ps(alive, p, n);
  }

 private:
  static __mmask16 MaskOf(int n) { return static_cast<__mmask16>((1U << n) - 1U); }

  static __m256 LowHalf(Vec v) { return _mm512_castps512_ps256(v); }
  static __m256 HighHalf(Vec v) { return _mm512_extractf32x8_ps(v, 1); }

  static __m256i LoadBits(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static __m256i LoadBitsN(const void* p, int n) { return _mm256_maskz_loadu_epi16(MaskOf(n), p); }
  static void StoreBits(void* p, __m256i bits) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), bits);
  }
  static void StoreBitsN(void* p, __m256i bits, int n) {
    _mm256_mask_storeu_epi16(p, MaskOf(n), bits);
  }

  static __m128i LoadBytes(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  static __m128i LoadBytesN(const void* p, int n) { return _mm_maskz_loadu_epi8(MaskOf(n), p); }
  static void StoreBytesN(void* p, __m512i lanes, int n) {
    _mm_mask_storeu_epi8(p, MaskOf(n), _mm512_cvtepi32_epi8(lanes));
  }

  // In Widen and Narrow, the type of the unused pointer selects the overload.
  static Vec Widen(const BFloat16*, __m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Vec Widen(const Float16*, __m256i bits) { return _mm512_cvtph_ps(bits); }
  // Moves exponent and mantissa to their places in a binary16. The exponent bias is 15 in binary16
  // and 7 in e4m3, hence the factor 2^8.
  static Vec Widen(const Float8E4M3*, __m128i bytes) {
    const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(-0x4080));  // the bits 0xbf80
    return _mm512_mul_ps(_mm512_cvtph_ps(half), Broadcast(256.0F));
  }
  static Vec Widen(const Int8*, __m128i bytes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }

  static __m256i Narrow(const BFloat16*, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    // A NaN keeps its sign and becomes quiet. It is not rounded, because rounding could turn it
    // into an infinity.
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    const __m512i out = _mm512_mask_blend_epi32(nan, rounded, quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(out, 16));
  }
  static __m256i Narrow(const Float16*, Vec v) {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // Returns the e4m3 code in the low byte of each lane.
  static __m512i Narrow(const Float8E4M3*, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const Vec size = _mm512_min_ps(_mm512_abs_ps(v), Broadcast(448.0F));
    const __m512i size_bits = _mm512_castps_si512(size);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(size_bits, 20), _mm512_set1_epi32(1));
    // Rounds to nearest, ties to even, and subtracts 120 from the exponent, because the exponent
    // bias is 127 in fp32 and 7 in e4m3.
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(size_bits, odd),
                                             _mm512_set1_epi32(0x7ffff - (120 << 23)));
    // For magnitudes below 2^-6: adding 2^14 rounds them to multiples of 2^-9.
    const __m512i steps = _mm512_castps_si512(_mm512_add_ps(size, Broadcast(16384.0F)));
    const __mmask16 small = _mm512_cmp_ps_mask(size, Broadcast(0x1p-6F), _CMP_LT_OQ);
    const __m512i code = _mm512_mask_blend_epi32(small, _mm512_srli_epi32(rounded, 20), steps);
    return _mm512_or_si512(sign, _mm512_and_si512(code, _mm512_set1_epi32(0x7f)));
  }
  static __m512i Narrow(const Int8*, Vec v) {
    const Vec held = _mm512_max_ps(_mm512_min_ps(v, Broadcast(127.0F)), Broadcast(-127.0F));
    return _mm512_cvtps_epi32(held);
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_SIMD_AVX512_H_
