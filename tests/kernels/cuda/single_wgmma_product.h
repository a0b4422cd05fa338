// One product of a warpgroup in each form in which the kernels use it, for wgmma_product_test.
//
// Thread safety: as the stream's.
#ifndef QUIRE_TESTS_KERNELS_CUDA_SINGLE_WGMMA_PRODUCT_H_
#define QUIRE_TESTS_KERNELS_CUDA_SINGLE_WGMMA_PRODUCT_H_

#include <cstdint>

#include "common/model/dtype.h"
#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

inline constexpr int32_t kProductRows = 64;
inline constexpr int32_t kProductDepth = 16;   // K
inline constexpr int32_t kFragmentDepth = 64;  // 4 slices of K

// out [64, columns] = init + A B^T or A B with A = a[:, 16 slice .. 16 slice + 15], fp32.
struct SingleProduct {
  DType dtype = DType::kBF16;  // of a and b: bf16 or f16
  int32_t columns = 64;        // 64 or 128; 16 and 32 if A is in registers
  // Elements of a swizzled row of shared memory: 64, 32 or 16; at most `columns` if A is in
  // registers, 64 if columns is 128.
  int32_t row_elements = 64;
  int32_t slice = 0;  // of K
  // True: as S = Q K^T, both factors are in shared memory. a is [64, row_elements], and the product
  // reads the same slice of b, which is [columns, row_elements]. False: as O += P V, A is in
  // registers. a is [64, 64], and the product reads b, which is [64, columns], from row 16 slice
  // on.
  bool a_is_shared = true;
  bool accumulates = true;  // else init does not count; where a_is_shared
  float init = 0.0F;
  const void* a = nullptr;
  const void* b = nullptr;
  float* out = nullptr;
};
// 0, the cudaError_t of the launch, or kUnsupported for another type or size.
int RunSingleProduct(const SingleProduct& product, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_SINGLE_WGMMA_PRODUCT_H_
