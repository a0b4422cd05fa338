// BytesPortable is the vector interface of the integer products without intrinsics: 4 lanes of 4
// bytes. Functions with the names of BytesAvx2 (bytes_avx2.h) do the same here. Dot and DotSigned
// replace MulUnsigned, MulSigned, AddWords and SumWords.
//
// Thread safety: pure functions.
#ifndef QUIRE_KERNELS_CPU_BYTES_PORTABLE_H_
#define QUIRE_KERNELS_CPU_BYTES_PORTABLE_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd_portable.h"

namespace quire {

struct BytesPortable {
  using Float = SimdPortable;
  using Bytes = uint8_t __attribute__((vector_size(16)));
  using Words = Bytes;  // unused, since kHasDot
  using Int = int32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kMaxRows = 2;  // rows of a tile: their sums fit into the registers
  static constexpr bool kHasDot = true;
  static constexpr int kSignedOffset = 0;

  static Bytes Load(const uint8_t* p) {
    Bytes v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static Bytes LowNibbles(Bytes v) { return v & 0xF; }
  static Bytes HighNibbles(Bytes v) { return v >> 4; }
  template <int kLeft, uint8_t kMask>
  static Bytes Bits(Bytes v) {
    return (kLeft >= 0 ? v << kLeft : v >> (kLeft >= 0 ? 0 : -kLeft)) & kMask;
  }
  static Bytes Or(Bytes a, Bytes b) { return a | b; }
  static Bytes Lookup(const int8_t* table, Bytes nibbles) {
    Bytes v = nibbles;
    for (int i = 0; i < 4 * kLanes; ++i) {
      v[i] = static_cast<uint8_t>(table[nibbles[i]]);
    }
    return v;
  }

  static Int Inputs(const int8_t* p) {
    int32_t quad = 0;
    std::memcpy(&quad, p, sizeof(quad));
    return Broadcast(quad);
  }
  // Adds to each lane of `sum` the four products of a code and an input in this lane.
  static Int Dot(Int sum, Bytes codes, Int inputs) {
    return sum + Products<uint8_t>(codes, inputs);
  }
  static Int DotSigned(Int sum, Bytes codes, Int inputs) {
    return sum + Products<int8_t>(codes, inputs);
  }

  static Int Broadcast(int32_t value) { return Int{value, value, value, value}; }
  static Int Sub(Int a, Int b) { return a - b; }
  template <int kByte>
  static Int SignedByte(Bytes v) {
    Int bytes;
    std::memcpy(&bytes, &v, sizeof(bytes));
    return bytes << (24 - 8 * kByte) >> 24;
  }
  static Float::Vec ToFloat(Int v) { return __builtin_convertvector(v, Float::Vec); }
  static Float::Vec LoadSigned(const uint8_t* p) { return Widened<int8_t>(p); }
  static Float::Vec LoadUnsigned(const uint8_t* p) { return Widened<uint8_t>(p); }

 private:
  template <typename Code>
  static Int Products(Bytes codes, Int inputs) {
    Int products = Broadcast(0);
    for (int byte = 0; byte < 4; ++byte) {
      Int code = Broadcast(0);
      for (int lane = 0; lane < kLanes; ++lane) {
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): signed codes are numbers
        code[lane] = static_cast<Code>(codes[4 * lane + byte]);
      }
      products += code * (inputs << (24 - 8 * byte) >> 24);
    }
    return products;
  }
  template <typename Code>
  static Float::Vec Widened(const uint8_t* p) {
    Float::Vec v = Float::Zero();
    for (int lane = 0; lane < kLanes; ++lane) {
      v[lane] = static_cast<float>(static_cast<Code>(p[lane]));
    }
    return v;
  }
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_BYTES_PORTABLE_H_
