// LoadVector and StoreVector move N elements of type T, and convert them to or from fp32.
//
// N * sizeof(T) must be 8 bytes, which one access moves, or a multiple of 16 bytes, which 16-byte
// accesses move. The pointer must be aligned to the size of an access.
//
// Thread safety: any thread of a kernel may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_VECTOR_H_
#define QUIRE_KERNELS_CUDA_DEVICE_VECTOR_H_

#include "kernels/cuda/device/element.h"
#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// Loads kBytes bytes as 32-bit words.
template <int kBytes>
QUIRE_DEVICE void LoadWords(const void* from,
                            uint32_t (&words)[kBytes / 4],
                            [[maybe_unused]] SourceLine at = SourceLine::Here()) {
  static_assert(kBytes == 8 || kBytes % 16 == 0);
#ifdef __CUDACC__
  if constexpr (kBytes == 8) {
    const uint2 pair = *static_cast<const uint2*>(from);
    words[0] = pair.x;
    words[1] = pair.y;
  } else {
    QUIRE_UNROLL
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 quad = static_cast<const uint4*>(from)[i];
      words[4 * i] = quad.x;
      words[4 * i + 1] = quad.y;
      words[4 * i + 2] = quad.z;
      words[4 * i + 3] = quad.w;
    }
  }
#else
  emulator::CheckAligned(from, kBytes == 8 ? 8 : 16, at);
  std::memcpy(words, from, kBytes);
#endif
}

template <int kBytes>
QUIRE_DEVICE void StoreWords(void* to,
                             const uint32_t (&words)[kBytes / 4],
                             [[maybe_unused]] SourceLine at = SourceLine::Here()) {
  static_assert(kBytes == 8 || kBytes % 16 == 0);
#ifdef __CUDACC__
  if constexpr (kBytes == 8) {
    *static_cast<uint2*>(to) = uint2{words[0], words[1]};
  } else {
    QUIRE_UNROLL
    for (int i = 0; i < kBytes / 16; ++i) {
      static_cast<uint4*>(to)[i] =
          uint4{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
    }
  }
#else
  emulator::CheckAligned(to, kBytes == 8 ? 8 : 16, at);
  std::memcpy(to, words, kBytes);
#endif
}

template <typename T, int N>
QUIRE_DEVICE void LoadVector(const T* from, float (&out)[N], SourceLine at = SourceLine::Here()) {
  constexpr int kBytes = N * static_cast<int>(sizeof(T));
  uint32_t words[kBytes / 4];
  LoadWords<kBytes>(from, words, at);
  QUIRE_UNROLL
  for (int i = 0; i < kBytes / 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(words[i]);
    } else if constexpr (sizeof(T) == 2) {
      const float2 pair = Unpack2<T>(words[i]);
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    } else {
      static_assert(std::is_same_v<T, F8E4M3>);
      const float2 low = Unpack2<F16>(F8x2ToF16x2(static_cast<uint16_t>(words[i])));
      const float2 high = Unpack2<F16>(F8x2ToF16x2(static_cast<uint16_t>(words[i] >> 16)));
      out[4 * i] = low.x;
      out[4 * i + 1] = low.y;
      out[4 * i + 2] = high.x;
      out[4 * i + 3] = high.y;
    }
  }
}

template <typename T, int N>
QUIRE_DEVICE void StoreVector(T* to, const float (&in)[N], SourceLine at = SourceLine::Here()) {
  constexpr int kBytes = N * static_cast<int>(sizeof(T));
  uint32_t words[kBytes / 4];
  QUIRE_UNROLL
  for (int i = 0; i < kBytes / 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(in[i]);
    } else if constexpr (sizeof(T) == 2) {
      words[i] = Pack2<T>(in[2 * i], in[2 * i + 1]);
    } else {
      static_assert(std::is_same_v<T, F8E4M3>);
      words[i] = PackF8(in[4 * i], in[4 * i + 1]) |
                 static_cast<uint32_t>(PackF8(in[4 * i + 2], in[4 * i + 3])) << 16;
    }
  }
  StoreWords<kBytes>(to, words, at);
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_VECTOR_H_
