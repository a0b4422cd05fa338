// The products that are measured and those whose bits are compared are the same.
#ifndef QUIRE_TESTS_GPU_BENCH_GEMM_H_
#define QUIRE_TESTS_GPU_BENCH_GEMM_H_

#include <cstdint>
#include <vector>

#include "tests/gpu/bench.h"

namespace quire::gpu {

struct ProductShape {
  const char* name;
  int64_t out_features;
  int64_t in_features;
  DType y_dtype;
};
std::vector<ProductShape> ProductShapes(const Bench& bench);

// Whether the product is one of a layer, which FP8 quantises, and the device has such products.
bool HasFp8(Bench& bench, const ProductShape& shape);

// Scales of e4m3 rows, all positive.
Buffer Fp8Scales(int64_t count);

// squares: pairs of squared error and squared value, as the probes write them. Infinite for NaN.
double RelativeError(const std::vector<float>& squares);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_GEMM_H_
