// CublasLtProduct describes one product to cuBLASLt, asks it for algorithms, and runs it.
//
// Row-major y = x W^T is column-major y^T = W^T' x^T with W transposed ("TN"). Tensor cores read
// this layout best, and cuBLASLt takes no other for e4m3. e4m3 has one scale per row of W and of x
// (OUTER_VEC_32F, which needs cuBLASLt 12.9 and compute capability 9.0). Partial sums stay in fp32
// (no fast accumulation).
//
// Thread safety: one caller at a time.
// Errors:        those of gemm.h.
// Cost:          the library makes a few small allocations for each product; a step replayed as a
//                graph makes none.
// Source:        cublasLt.h of CUDA 13.0 on cublasLtMatmul and on its scaling modes.
#ifndef QUIRE_KERNELS_CUDA_CUBLASLT_PRODUCT_H_
#define QUIRE_KERNELS_CUDA_CUBLASLT_PRODUCT_H_

#include <cstdint>
#include <vector>

#include <cublasLt.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/gemm.h"

namespace quire::gpu {

class CublasLtProduct {
 public:
  // Keeps a reference to the library.
  explicit CublasLtProduct(const CublasLt& library) : library_(library), f_(library.f()) {}
  ~CublasLtProduct();
  CublasLtProduct(const CublasLtProduct&) = delete;
  CublasLtProduct& operator=(const CublasLtProduct&) = delete;

  // REQUIRES: called once, before anything else; IsValidProduct(args).
  int Describe(const GemmArgs& args);

  // Sets *algorithms to at least one algorithm, the heuristics' best first. Algorithms that cut the
  // sum over k are included only if split_k. All accept x and y that start at any row of 256-byte
  // aligned memory.
  int Candidates(bool split_k, std::vector<cublasLtMatmulAlgo_t>* algorithms);

  // Returns whether the library can run the algorithm on this product.
  bool Takes(const cublasLtMatmulAlgo_t& algorithm);

  int Multiply(const cublasLtMatmulAlgo_t& algorithm, Stream stream) {
    return MultiplyBy(args_.weight, algorithm, stream);
  }
  // Multiplies by another weight of this shape.
  int MultiplyBy(const void* weight, const cublasLtMatmulAlgo_t& algorithm, Stream stream);

 private:
  void DescribeScales();
  template <typename Value>
  void Set(cublasLtMatmulDescAttributes_t attribute, const Value& value);
  void MakeLayout(cublasLtMatrixLayout_t* layout, DType dtype, int64_t height, int64_t width);

  const CublasLt& library_;
  const CublasLtFunctions& f_;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;  // first error in Describe
  GemmArgs args_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_CUBLASLT_PRODUCT_H_
