// LoadElement and StoreElement read and write one stored number of any DType as fp32.
//
// Storing rounds to nearest, ties to even; NaN stays NaN; a value too large for the type becomes
// infinity, or the largest number if the type has no infinity. REQUIRES: no NaN is stored as int8,
// which has no NaN. Loading is exact.
//
// StoreScaledVector divides numbers by a scale, which kernels/api/attention.h defines, before it
// stores them.
//
// Thread safety: free functions, safe from any thread.
// Source:        IEEE 754-2008 (binary16); bfloat16 is the upper half of binary32; e4m3 as in
//                Micikevicius et al. 2022.
#ifndef QUIRE_KERNELS_REFERENCE_ELEMENT_H_
#define QUIRE_KERNELS_REFERENCE_ELEMENT_H_

#include <cstdint>

#include "common/model/dtype.h"

namespace quire::reference {

float FloatFromHalf(uint16_t bits);
uint16_t HalfFromFloat(float value);
float FloatFromBfloat16(uint16_t bits);
uint16_t Bfloat16FromFloat(float value);

float FloatFromE4m3(uint8_t bits);
uint8_t E4m3FromFloat(float value);

float LoadElement(const void* data, DType dtype, int64_t index);
void StoreElement(void* data, DType dtype, int64_t index, float value);

// Stores the vector in elements index, index + stride, ... of an 8-bit dtype. Returns the scale.
float StoreScaledVector(
    void* data, DType dtype, int64_t index, int64_t stride, const float* vector, int32_t size);

}  // namespace quire::reference

#endif  // QUIRE_KERNELS_REFERENCE_ELEMENT_H_
