// LoadElement and StoreElement read and write one stored number of any DType as fp32.
//
// Storing rounds to nearest, ties to even; NaN stays NaN; what is too large for the type becomes
// infinity. Loading is exact.
//
// Thread safety: free functions, safe from any thread.
// Source:        IEEE 754-2008 (binary16); bfloat16 is the upper half of binary32.
#ifndef QUIRE_KERNELS_REFERENCE_ELEMENT_H_
#define QUIRE_KERNELS_REFERENCE_ELEMENT_H_

#include <cstdint>

#include "common/model/dtype.h"

namespace quire::reference {

float FloatFromHalf(uint16_t bits);
uint16_t HalfFromFloat(float value);
float FloatFromBfloat16(uint16_t bits);
uint16_t Bfloat16FromFloat(float value);

float LoadElement(const void* data, DType dtype, int64_t index);
void StoreElement(void* data, DType dtype, int64_t index, float value);

}  // namespace quire::reference

#endif  // QUIRE_KERNELS_REFERENCE_ELEMENT_H_
