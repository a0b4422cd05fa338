// SimdAvx2 is the vector interface of the kernels on AVX2 with FMA and F16C: 8 lanes. The contract
// is that of SimdAvx512 (simd_avx512.h); include this header only from sources compiled for AVX2.
//
// Thread safety: pure functions.
#ifndef QUIRE_KERNELS_CPU_SIMD_AVX2_H_
#define QUIRE_KERNELS_CPU_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/storage_types.h"

namespace quire {

struct SimdAvx2 {
  static constexpr int kLanes = 8;
  using Vec = __m256;

  static Vec Zero() { return _mm256_setzero_ps(); }
  static Vec Broadcast(float value) { return _mm256_set1_ps(value); }

  static Vec Load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec Load(const BFloat16* p) { return Widen(p, LoadBits(p)); }
  static Vec Load(const Float16* p) { return Widen(p, LoadBits(p)); }
  static Vec Load(const Float8E4M3* p) { return Widen(p, LoadBytes(p)); }
  static Vec Load(const Int8* p) { return Widen(p, LoadBytes(p)); }
  static void LoadPairs(const BFloat16* p, Vec* even, Vec* odd) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)));
  }
  static Vec LoadN(const float* p, int n) { return _mm256_maskload_ps(p, MaskOf(n)); }
  static Vec LoadN(const BFloat16* p, int n) { return Widen(p, LoadBitsN(&p->bits, n)); }
  static Vec LoadN(const Float16* p, int n) { return Widen(p, LoadBitsN(&p->bits, n)); }
  static Vec LoadN(const Float8E4M3* p, int n) { return Widen(p, LoadBytesN(p, n)); }
  static Vec LoadN(const Int8* p, int n) { return Widen(p, LoadBytesN(p, n)); }

  static void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static void Store(BFloat16* p, Vec v) { StoreBits(p, Narrow(p, v)); }
  static void Store(Float16* p, Vec v) { StoreBits(p, Narrow(p, v)); }
  static void StoreN(float* p, Vec v, int n) { _mm256_maskstore_ps(p, MaskOf(n), v); }
  static void StoreN(BFloat16* p, Vec v, int n) { StoreBitsN(&p->bits, Narrow(p, v), n); }
  static void StoreN(Float16* p, Vec v, int n) { StoreBitsN(&p->bits, Narrow(p, v), n); }
  static void StoreN(Float8E4M3* p, Vec v, int n) { StoreBytesN(p, Narrow(p, v), n); }
  static void StoreN(Int8* p, Vec v, int n) { StoreBytesN(p, Narrow(p, v), n); }

  static Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec Div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
  static Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec Min(Vec a, Vec b) { return _mm256_min_ps(a, b); }

  static uint32_t EqualMask(Vec a, Vec b) { return BitsOf(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
  static uint32_t GreaterMask(Vec a, Vec b) { return BitsOf(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
  static uint32_t GreaterEqualMask(Vec a, Vec b) { return BitsOf(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
  static Vec Select(uint32_t mask, Vec a, Vec b) {
    const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i chosen = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), lane_bit);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(chosen, lane_bit)));
  }

  static float ReduceMax(Vec v) {
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }
  static float ReduceSum(Vec v) {
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }

  static Vec Exp(Vec x) {
    const Vec alive = _mm256_cmp_ps(x, Broadcast(-87.33F), _CMP_NLT_UQ);
    const Vec held = _mm256_min_ps(Broadcast(88.37F), x);
    const Vec n = _mm256_round_ps(_mm256_mul_ps(held, Broadcast(1.44269504F)),
                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Vec r = _mm256_fnmadd_ps(n, Broadcast(0.693359375F), held);
    r = _mm256_fnmadd_ps(n, Broadcast(-2.12194440e-4F), r);
    Vec p = Broadcast(1.39505e-3F);
    p = Fma(p, r, Broadcast(8.36892e-3F));
    p = Fma(p, r, Broadcast(4.166621e-2F));
    p = Fma(p, r, Broadcast(1.6666519e-1F));
    p = Fma(p, r, Broadcast(5.0e-1F));
    p = Add(Fma(p, Mul(r, r), r), Broadcast(1.0F));
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(alive, Mul(p, _mm256_castsi256_ps(exponent)));
  }

 private:
  static __m256i MaskOf(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static uint32_t BitsOf(Vec mask) { return static_cast<uint32_t>(_mm256_movemask_ps(mask)); }

  static __m128i LoadBits(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static __m128i LoadBitsN(const uint16_t* p, int n) {
    alignas(16) uint16_t lanes[8] = {};
    for (int i = 0; i < n; ++i) {
      lanes[i] = p[i];
    }
    return LoadBits(lanes);
  }
  static void StoreBits(void* p, __m128i bits) { _mm_storeu_si128(static_cast<__m128i*>(p), bits); }
  static void StoreBitsN(uint16_t* p, __m128i bits, int n) {
    alignas(16) uint16_t lanes[8];
    StoreBits(lanes, bits);
    for (int i = 0; i < n; ++i) {
      p[i] = lanes[i];
    }
  }

  static __m128i LoadBytes(const void* p) {
    return _mm_loadl_epi64(static_cast<const __m128i*>(p));
  }
  static __m128i LoadBytesN(const void* p, int n) {
    uint64_t bytes = 0;
    __builtin_memcpy(&bytes, p, static_cast<size_t>(n));
    return _mm_set_epi64x(0, static_cast<int64_t>(bytes));
  }
  // Stores the low byte of each lane.
  static void StoreBytesN(void* p, __m256i lanes, int n) {
    const __m256i low = _mm256_and_si256(lanes, _mm256_set1_epi32(0xff));
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    const int64_t bytes = _mm_cvtsi128_si64(_mm_packus_epi16(words, words));
    __builtin_memcpy(p, &bytes, static_cast<size_t>(n));
  }

  static Vec Widen(const BFloat16*, __m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Vec Widen(const Float16*, __m128i bits) { return _mm256_cvtph_ps(bits); }
  static Vec Widen(const Float8E4M3*, __m128i bytes) {
    const __m128i shifted = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
    const __m128i half = _mm_and_si128(shifted, _mm_set1_epi16(-0x4080));  // the bits 0xbf80
    return _mm256_mul_ps(_mm256_cvtph_ps(half), Broadcast(256.0F));
  }
  static Vec Widen(const Int8*, __m128i bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }

  static __m128i Narrow(const BFloat16*, Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const Vec nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    const __m256i out = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
    const __m256i high = _mm256_srli_epi32(out, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
  static __m128i Narrow(const Float16*, Vec v) {
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static __m256i Narrow(const Float8E4M3*, Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    const Vec positive = _mm256_andnot_ps(Broadcast(-0.0F), v);
    const Vec size = _mm256_min_ps(positive, Broadcast(448.0F));
    const __m256i size_bits = _mm256_castps_si256(size);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(size_bits, 20), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(size_bits, odd),
                                             _mm256_set1_epi32(0x7ffff - (120 << 23)));
    const Vec steps = _mm256_add_ps(size, Broadcast(16384.0F));
    const Vec small = _mm256_cmp_ps(size, Broadcast(0x1p-6F), _CMP_LT_OQ);
    const __m256i code = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_srli_epi32(rounded, 20)), steps, small));
    return _mm256_or_si256(sign, _mm256_and_si256(code, _mm256_set1_epi32(0x7f)));
  }
  static __m256i Narrow(const Int8*, Vec v) {
    const Vec held = _mm256_max_ps(_mm256_min_ps(v, Broadcast(127.0F)), Broadcast(-127.0F));
    return _mm256_cvtps_epi32(held);
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_SIMD_AVX2_H_
