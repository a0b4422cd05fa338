// CublasLtProduct describes one product to cuBLASLt, asks for algorithms, and runs the product.
//
// Matrices are row-major here and column-major in cuBLASLt, where the same memory holds the
// transposed matrix. So y = x W^T is computed as y^T = W x^T, with a transposed first operand and a
// plain second one ("TN"). Tensor cores read this layout best, and cuBLASLt accepts no other
// layout for e4m3. For e4m3, each row of W and of x has one scale (OUTER_VEC_32F, which needs
// cuBLASLt 12.9 and compute capability 9.0). Partial sums stay in fp32 (no fast accumulation).
//
// Thread safety: one caller at a time.
// Errors:        those of gemm.h.
// Cost:          the library makes a few small allocations for each product. A step that is
//                replayed as a graph makes none.
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

  // Must be called once, before any other function. REQUIRES: IsValidProduct(args).
  int Describe(const GemmArgs& args);

  // Sets *algorithms to at least one algorithm, the heuristics' best first. Algorithms that cut the
  // sum over k into parts are included only if split_k is true. All algorithms accept x and y that
  // start at any row of 256-byte aligned memory.
  int Candidates(bool split_k, std::vector<cublasLtMatmulAlgo_t>* algorithms);

  // Returns whether the library can run the algorithm on this product.
  bool Takes(const cublasLtMatmulAlgo_t& algorithm);

  int Multiply(const cublasLtMatmulAlgo_t& algorithm, Stream stream) {
    return MultiplyBy(args_.weight, algorithm, stream);
  }
  // Multiplies by `weight`, which has the shape of args.weight, instead of by args.weight.
  int MultiplyBy(const void* weight, const cublasLtMatmulAlgo_t& algorithm, Stream stream);

 private:
  void DescribeScales();
  template <typename Value>
  void Set(cublasLtMatmulDescAttributes_t attribute, const Value& value);
  void MakeLayout(cublasLtMatrixLayout_t* layout, DType dtype, int64_t height, int64_t width);

  const CublasLt& library_;
  const CublasLtFunctions& f_;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;  // the first error of Describe
  GemmArgs args_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_CUBLASLT_PRODUCT_H_
