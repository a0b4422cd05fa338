// FakeCublasLt is a library with the functions of cuBLASLt that Quire uses, which computes in plain
// loops. Tests on the CPU use it to check the code that calls cuBLASLt. It refuses calls that
// cuBLASLt documents as refused, and further ones that a test chooses.
//
// It has three algorithms. They differ in the order of their sums, and so in their bits. Algorithm
// 0 begins with the first of k, 1 with the last, 2 adds up two halves (split-k, and needs a
// workspace). The heuristics name 2, 0, 1. Each algorithm is for matrices of the alignment that the
// heuristics were told, and refuses others.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_H_
#define QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_H_

#include <cstdint>
#include <vector>

namespace quire::gpu {

struct FakeCublasLt {
  static constexpr int kNumAlgorithms = 3;

  // The library's properties.
  uint64_t version = 130100;
  bool has_vector_scales = true;
  // An algorithm takes numbers of rows that are multiples of this.
  int64_t row_multiple[kNumAlgorithms] = {1, 1, 1};
  // Products by this algorithm fail when they run. -1: none.
  int broken_algorithm = -1;

  // Counts and arguments of the calls that were made.
  int heuristics = 0;
  int products = 0;
  int last_algorithm = -1;
  int64_t last_rows = 0;
  std::vector<const void*> weights;  // of the products
};

// The library exports a function of this name and type. The test may assign to the object.
inline constexpr char kFakeCublasLtSymbol[] = "quire_fake_cublaslt";
using FakeCublasLtFunction = FakeCublasLt* (*)();

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_H_
