// BytesAvx2 is the vector interface of the integer products on AVX2: 8 lanes of 4 bytes, one lane
// for each column of a panel (packed_codes.h). Include this header only from sources compiled for
// AVX2. The vector types hold in each lane:
//
//   Bytes   4 codes, for 4 successive values of k (the input dimension)
//   Words   two 16-bit integers, each the sum of two products
//   Int     a 32-bit integer
//
// MulUnsigned and MulSigned multiply codes by inputs in [-127, 127] and add adjacent products. The
// sum of two products of unsigned codes below 64, or of signed codes, fits into 16 bits. AddWords
// can add up 8 such sums of 4-bit codes, 4 of 5-bit codes or 2 of 6-bit codes without overflow.
//
// Thread safety: pure functions.
#ifndef QUIRE_KERNELS_CPU_BYTES_AVX2_H_
#define QUIRE_KERNELS_CPU_BYTES_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd_avx2.h"

namespace quire {

struct BytesAvx2 {
  using Float = SimdAvx2;
  using Bytes = __m256i;
  using Words = __m256i;
  using Int = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kMaxRows = 6;  // rows of a tile: their sums fit into the registers
  static constexpr int kSignedOffset = 0;
  static constexpr bool kHasDot = false;  // no Dot and DotSigned (BytesVnni has them)

  static Bytes Load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Bytes LowNibbles(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(0xF)); }
  static Bytes HighNibbles(Bytes v) { return LowNibbles(_mm256_srli_epi16(v, 4)); }
  // Shifts left by kLeft bits (right by -kLeft if negative), then keeps the bits of kMask in each
  // byte. REQUIRES: kMask drops the bits that were shifted into a neighboring byte.
  template <int kLeft, uint8_t kMask>
  static Bytes Bits(Bytes v) {
    const __m256i shifted =
        kLeft >= 0 ? _mm256_slli_epi16(v, kLeft) : _mm256_srli_epi16(v, kLeft >= 0 ? 0 : -kLeft);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(kMask)));
  }
  static Bytes Or(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
  static Bytes Lookup(const int8_t* table, Bytes nibbles) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half), nibbles);
  }

  // Loads four inputs and repeats them in each lane.
  static Int Inputs(const int8_t* p) {
    int quad = 0;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return _mm256_set1_epi32(quad);
  }
  static Words MulUnsigned(Bytes codes, Int inputs) { return _mm256_maddubs_epi16(codes, inputs); }
  static Words MulSigned(Bytes codes, Int inputs) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(inputs, codes));
  }
  static Words AddWords(Words a, Words b) { return _mm256_add_epi16(a, b); }
  static Int SumWords(Words v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

  static Int Broadcast(int32_t value) { return _mm256_set1_epi32(value); }
  static Int Add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Int Sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  // Returns byte kByte of each lane, sign-extended.
  template <int kByte>
  static Int SignedByte(Bytes v) {
    return _mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * kByte), 24);
  }
  static Float::Vec ToFloat(Int v) { return _mm256_cvtepi32_ps(v); }
  static Float::Vec LoadSigned(const uint8_t* p) {
    return ToFloat(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Float::Vec LoadUnsigned(const uint8_t* p) {
    return ToFloat(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_BYTES_AVX2_H_
