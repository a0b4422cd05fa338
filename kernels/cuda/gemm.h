// Gemm is the dense product of the GPU backend: cuBLASLt in the CUDA build, plain loops in the
// emulated one.
//
// Thread safety: one caller at a time for one Gemm object.
// Errors:        0, a cudaError_t, kGemmError - cublasStatus_t, or kNoGemmLibrary.
// Determinism:   emulated: an output depends on its own row and column alone. cuBLASLt: see
//                GemmOptions::batch_invariant.
#ifndef QUIRE_KERNELS_CUDA_GEMM_H_
#define QUIRE_KERNELS_CUDA_GEMM_H_

#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

inline constexpr int kNoGemmLibrary = -2;
inline constexpr int kGemmError = -1000;

struct GemmOptions {
  // Every output row has the same bits whatever the number of rows: one algorithm for each weight
  // shape, without split-K. Costs speed.
  int32_t batch_invariant = 0;
  // Where libcublasLt is, or null: the usual places.
  const char* library_path = nullptr;
};

// y[m][n] = sum over k of x[m][k] * weight[n][k], plus bias[n]; accumulated in fp32.
struct GemmArgs {
  int64_t rows = 0;              // m
  int64_t out_features = 0;      // n
  int64_t in_features = 0;       // k
  const void* x = nullptr;       // [m, k] of T
  const void* weight = nullptr;  // [n, k] of T
  const void* bias = nullptr;    // [n] of T, or null; only where y is of T
  void* y = nullptr;             // [m, n] of y_dtype
  DType dtype = DType::kBF16;    // T
  DType y_dtype = DType::kBF16;  // T or f32
};

// An opaque object: the library's handle, its workspace and the algorithms found so far.
int CreateGemm(const GemmOptions& options, void** gemm);
int DestroyGemm(void* gemm);
int RunGemm(void* gemm, const GemmArgs& args, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_H_
