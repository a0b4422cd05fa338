// ElementToFloat widens a number in a model file's storage type to fp32.
//
// Thread safety: any thread.
#ifndef QUIRE_COMMON_MODEL_ELEMENT_FLOAT_H_
#define QUIRE_COMMON_MODEL_ELEMENT_FLOAT_H_

#include <cstddef>

#include "common/model/dtype.h"

namespace quire {

// Returns the number at `at`, without rounding. `at` needs no alignment.
// REQUIRES: dtype is kF32, kF16 or kBF16.
float ElementToFloat(const std::byte* at, DType dtype);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_ELEMENT_FLOAT_H_
