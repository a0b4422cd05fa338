// The products that benchmarks measure, and whose bits they compare.
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

// Returns whether FP8 quantizes the product, which is so for products of layers, and whether the
// device has FP8 products.
bool HasFp8(Bench& bench, const ProductShape& shape);

// Returns scales of e4m3 rows, all positive.
Buffer Fp8Scales(int64_t count);

// Returns the relative error, or infinity if a number is NaN. squares: pairs of a squared error and
// a squared value, as the probes write them.
double RelativeError(const std::vector<float>& squares);

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_GPU_BENCH_GEMM_H_
