#include "tests/kernels/cuda/fake_cublaslt_element.h"

#include "kernels/cuda/device/element.h"

namespace quire::gpu {

float LoadElement(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kBF16:
      return ToFloat(static_cast<const Bf16*>(data)[index]);
    case DType::kF16:
      return ToFloat(static_cast<const F16*>(data)[index]);
    case DType::kF8E4M3:
      return ToFloat(static_cast<const F8E4M3*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

void StoreElement(void* data, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<Bf16*>(data)[index] = FromFloat<Bf16>(value);
      return;
    case DType::kF16:
      static_cast<F16*>(data)[index] = FromFloat<F16>(value);
      return;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

}  // namespace quire::gpu
