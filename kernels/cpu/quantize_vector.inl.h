// QuantizeVector stores a vector of fp32 numbers in an 8-bit type with one scale (storage_types.h).
// The functions are templates over a Simd struct S.
//
// The largest magnitude becomes the type's largest number; all numbers are then rounded to nearest,
// ties to even. A vector with an infinity or a NaN gets the scale NaN, so that all its numbers read
// as NaN. If the largest magnitude is below kSmallestScaled, all numbers are stored as zeros: such
// a small scale would lose digits, or its inverse would overflow. The result depends on the vector
// alone, and is the same on every instruction set.
#ifndef QUIRE_KERNELS_CPU_QUANTIZE_VECTOR_INL_H_
#define QUIRE_KERNELS_CPU_QUANTIZE_VECTOR_INL_H_

#include <cstdint>
#include <limits>

#include "kernels/cpu/storage_types.h"

namespace quire {
namespace {

inline constexpr float kSmallestScaled = 0x1p-100F;

// Calls fn(offset, n) for each piece of n = S::kLanes elements, and for a shorter piece at the end.
template <typename S, typename Fn>
void ForEachPiece(int32_t size, const Fn& fn) {
  for (int32_t d = 0; d < size; d += S::kLanes) {
    const int32_t left = size - d;
    fn(d, left < S::kLanes ? left : S::kLanes);
  }
}

struct VectorScale {
  float scale = 0.0F;    // multiplies a stored number when it is read
  float inverse = 0.0F;  // multiplies a number before it is stored; 0: zeros are stored
};

template <typename S>
VectorScale ScaleOf(const float* vector, int32_t size, float largest) {
  auto max = S::Zero();
  // Stays 0 if all numbers are finite, else becomes NaN. Max alone could lose a NaN.
  auto not_finite = S::Zero();
  ForEachPiece<S>(size, [&](int32_t d, int n) {
    const auto x = S::LoadN(vector + d, n);
    max = S::Max(max, S::Max(x, S::Sub(S::Zero(), x)));
    not_finite = S::Fma(x, S::Zero(), not_finite);
  });
  if (S::ReduceSum(not_finite) != 0.0F) {
    return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  }
  const float max_size = S::ReduceMax(max);
  if (max_size < kSmallestScaled) {
    return {};
  }
  return {max_size / largest, largest / max_size};
}

// Returns the scale.
template <typename S, typename T>
float QuantizeVector(const float* vector, int32_t size, T* to) {
  const VectorScale scale = ScaleOf<S>(vector, size, kLargestScaled<T>);
  const auto inverse = S::Broadcast(scale.inverse);
  ForEachPiece<S>(size, [&](int32_t d, int n) {
    const auto x = S::LoadN(vector + d, n);
    S::StoreN(to + d, scale.inverse == 0.0F ? S::Zero() : S::Mul(x, inverse), n);
  });
  return scale.scale;
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_QUANTIZE_VECTOR_INL_H_
