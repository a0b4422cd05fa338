// FakeCublasLt is a library with the functions of cuBLASLt that we use, which computes in plain
// loops: what surrounds the library is tested on the CPU with it. It refuses what the real one
// refuses (as far as documented) and, on top, what a test tells it to.
//
// It has three algorithms, which differ in the order of their sums and so in their bits: 0 begins
// with the first of k, 1 with the last, 2 adds up two halves (split-k, and needs a workspace). The
// heuristics name 2, 0, 1. Each is for matrices of the alignment that the heuristics were told, and
// refuses others.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_H_
#define QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_H_

#include <cstdint>
#include <vector>

namespace quire::gpu {

struct FakeCublasLt {
  static constexpr int kNumAlgorithms = 3;

  // What it is like.
  uint64_t version = 130100;
  bool has_vector_scales = true;
  // An algorithm takes numbers of rows that are multiples of this.
  int64_t row_multiple[kNumAlgorithms] = {1, 1, 1};
  // Products by this algorithm fail when they run. -1: none.
  int broken_algorithm = -1;

  // What was asked of it.
  int heuristics = 0;
  int products = 0;
  int last_algorithm = -1;
  int64_t last_rows = 0;
  std::vector<const void*> weights;  // of the products
};

// What the library exports: a function of this name and type. The object may be assigned to.
inline constexpr char kFakeCublasLtSymbol[] = "quire_fake_cublaslt";
using FakeCublasLtFunction = FakeCublasLt* (*)();

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_FAKE_CUBLASLT_H_
