// BFloat16 and Float16 are 16-bit floating-point numbers as stored in memory. Float8E4M3 and Int8
// are 8-bit numbers. The 8-bit numbers of a vector are stored with a scale, by which kernels
// multiply them. The types have no arithmetic: the Simd structs widen stored numbers to fp32 on
// load, and round fp32 numbers on store.
//
// Thread safety: value types.
// Source:        e4m3, Micikevicius et al. 2022. The NaN of e4m3 is not used: a vector that holds a
//                NaN is stored with a scale that is NaN.
#ifndef QUIRE_KERNELS_CPU_STORAGE_TYPES_H_
#define QUIRE_KERNELS_CPU_STORAGE_TYPES_H_

#include <cstdint>

namespace quire {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

struct Float8E4M3 {
  uint8_t bits;
};

struct Int8 {
  int8_t value;
};

// The largest number of a type that is stored with scales; 0 for a type without scales.
template <typename T>
inline constexpr float kLargestScaled = 0.0F;
template <>
inline constexpr float kLargestScaled<Float8E4M3> = 448.0F;
template <>
inline constexpr float kLargestScaled<Int8> = 127.0F;  // -128 is not used, since there is no +128

template <typename T>
inline constexpr bool kHasScales = kLargestScaled<T> > 0.0F;

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_STORAGE_TYPES_H_
