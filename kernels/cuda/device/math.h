// Functions of one fp32 number. On a GPU, Exp2 and Reciprocal are approximate and flush results
// below 2^-126 to zero. The other functions are the platform's accurate versions.
//
// Thread safety: any thread may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_MATH_H_
#define QUIRE_KERNELS_CUDA_DEVICE_MATH_H_

#include <cmath>

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

inline constexpr float kLog2E = 1.44269504088896340736F;

#ifdef __CUDACC__

QUIRE_DEVICE float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
QUIRE_DEVICE float Reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
QUIRE_DEVICE float Exp(float x) { return expf(x); }
QUIRE_DEVICE float Log(float x) { return logf(x); }
QUIRE_DEVICE float Rsqrt(float x) { return rsqrtf(x); }
QUIRE_DEVICE float Erf(float x) { return erff(x); }

#else

QUIRE_DEVICE float Exp2(float x) { return std::exp2(x); }
QUIRE_DEVICE float Reciprocal(float x) { return 1.0F / x; }
QUIRE_DEVICE float Exp(float x) { return std::exp(x); }
QUIRE_DEVICE float Log(float x) { return std::log(x); }
QUIRE_DEVICE float Rsqrt(float x) { return 1.0F / std::sqrt(x); }
QUIRE_DEVICE float Erf(float x) { return std::erf(x); }

#endif

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_MATH_H_
