// BytesAvx512 is the vector interface of the integer products on AVX-512 F and BW: 16 lanes of 4
// bytes. The functions of BytesAvx2 (bytes_avx2.h) do the same here. BytesVnni also has Dot and
// DotSigned of AVX-512 VNNI, which add all four products of a lane to a 32-bit sum. Include this
// header only from sources compiled for AVX-512.
//
// Thread safety: pure functions.
#ifndef QUIRE_KERNELS_CPU_BYTES_AVX512_H_
#define QUIRE_KERNELS_CPU_BYTES_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd_avx512.h"

namespace quire {

struct BytesAvx512 {
  using Float = SimdAvx512;
  using Bytes = __m512i;
  using Words = __m512i;
  using Int = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kMaxRows = 8;  // rows of a tile: their sums fit into the registers
  static constexpr int kSignedOffset = 0;
  static constexpr bool kHasDot = false;

  static Bytes Load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Bytes LowNibbles(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(0xF)); }
  static Bytes HighNibbles(Bytes v) { return LowNibbles(_mm512_srli_epi16(v, 4)); }
  template <int kLeft, uint8_t kMask>
  static Bytes Bits(Bytes v) {
    const __m512i shifted =
        kLeft >= 0 ? _mm512_slli_epi16(v, kLeft) : _mm512_srli_epi16(v, kLeft >= 0 ? 0 : -kLeft);
    return _mm512_and_si512(shifted, _mm512_set1_epi8(static_cast<char>(kMask)));
  }
  static Bytes Or(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  static Bytes Lookup(const int8_t* table, Bytes nibbles) {
    const __m128i quarter = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(quarter), nibbles);
  }

  static Int Inputs(const int8_t* p) {
    int quad = 0;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return _mm512_set1_epi32(quad);
  }
  static Words MulUnsigned(Bytes codes, Int inputs) { return _mm512_maddubs_epi16(codes, inputs); }
  static Words MulSigned(Bytes codes, Int inputs) {
    const __mmask64 is_negative = _mm512_movepi8_mask(codes);
    const __m512i turned =
        _mm512_mask_sub_epi8(inputs, is_negative, _mm512_setzero_si512(), inputs);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(codes), turned);
  }
  static Words AddWords(Words a, Words b) { return _mm512_add_epi16(a, b); }
  static Int SumWords(Words v) { return _mm512_madd_epi16(v, _mm512_set1_epi16(1)); }

  static Int Broadcast(int32_t value) { return _mm512_set1_epi32(value); }
  static Int Add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int Sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  template <int kByte>
  static Int SignedByte(Bytes v) {
    return _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * kByte), 24);
  }
  static Float::Vec ToFloat(Int v) { return _mm512_cvtepi32_ps(v); }
  static Float::Vec LoadSigned(const uint8_t* p) {
    return ToFloat(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Float::Vec LoadUnsigned(const uint8_t* p) {
    return ToFloat(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
};

#if defined(__AVX512VNNI__)
struct BytesVnni : BytesAvx512 {
  static constexpr bool kHasDot = true;
  // DotSigned adds this number to each code, because the instruction takes unsigned codes.
  // QuantizedKernel::MultiplyGroup subtracts the excess.
  static constexpr int kSignedOffset = 128;

  static Int Dot(Int sum, Bytes codes, Int inputs) {
    return _mm512_dpbusd_epi32(sum, codes, inputs);
  }
  static Int DotSigned(Int sum, Bytes codes, Int inputs) {
    return Dot(sum, _mm512_xor_si512(codes, _mm512_set1_epi8(-128)), inputs);
  }
};
#endif

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_BYTES_AVX512_H_
