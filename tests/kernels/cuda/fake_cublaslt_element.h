// Elements of the matrices of FakeCublasLt, apart from it: the emulator's types have the names of
// CUDA's, and no file can include both.
//
// Thread safety: pure functions.
#ifndef QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_ELEMENT_H_
#define QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_ELEMENT_H_

#include <cstdint>

#include "common/model/dtype.h"

namespace quire::gpu {

float LoadElement(const void* data, DType dtype, int64_t index);
// dtype: bf16, f16 or f32.
void StoreElement(void* data, DType dtype, int64_t index, float value);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_ELEMENT_H_
