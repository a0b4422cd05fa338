// The types and sizes that decode by lines has kernels for, as parameters of tests.
//
// Usage: derive a test from TypesAndSizeTest, and instantiate its suite with AllTypesAndSizes and
// NameOfTypesAndSize.
#ifndef QUIRE_TESTS_KERNELS_CUDA_LINE_TYPES_H_
#define QUIRE_TESTS_KERNELS_CUDA_LINE_TYPES_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "gtest/gtest.h"

#include "tests/kernels/cuda/attention_data.h"

namespace quire::gpu {

// Types of the activations and of the cache; head_dim.
using TypesAndSize = std::tuple<std::pair<DType, DType>, int32_t>;

inline auto AllTypesAndSizes() {
  return testing::Combine(testing::Values(std::pair{DType::kBF16, DType::kBF16},
                                          std::pair{DType::kF16, DType::kF16},
                                          std::pair{DType::kBF16, DType::kF8E4M3},
                                          std::pair{DType::kF16, DType::kF8E4M3}),
                          testing::Values(64, 80, 96, 112, 128, 256));
}

inline std::string NameOfTypesAndSize(const testing::TestParamInfo<TypesAndSize>& info) {
  auto short_name = [](DType dtype) {
    return dtype == DType::kBF16 ? "Bf16" : dtype == DType::kF16 ? "F16" : "E4m3";
  };
  auto [types, head_dim] = info.param;
  return std::string(short_name(types.first)) + "Cache" + short_name(types.second) + "HeadDim" +
         std::to_string(head_dim);
}

class TypesAndSizeTest : public testing::TestWithParam<TypesAndSize> {
 protected:
  // Returns a problem without sequences.
  AttentionProblem Problem() const {
    AttentionProblem problem;
    problem.dtype = std::get<0>(GetParam()).first;
    problem.cache_dtype = std::get<0>(GetParam()).second;
    problem.head_dim = std::get<1>(GetParam());
    if (problem.cache_dtype == DType::kF8E4M3) {
      problem.k_scale = 0.03F;
      problem.v_scale = 0.25F;
    }
    return problem;
  }
};

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_LINE_TYPES_H_
