// Gemm is the dense product of the GPU backend: cuBLASLt in the CUDA build, plain loops in the
// emulated build.
//
// Thread safety: one caller at a time for one Gemm object.
// Errors:        0, a cudaError_t, kGemmError - cublasStatus_t, or kNoGemmLibrary.
// Determinism:   in the emulated build the number of rows does not change the bits of a row. For
//                cuBLASLt, see GemmOptions::batch_invariant: if it is 0, algorithms are chosen by
//                timing, so another start of the process can choose different algorithms.
#ifndef QUIRE_KERNELS_CUDA_GEMM_H_
#define QUIRE_KERNELS_CUDA_GEMM_H_

#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

inline constexpr int kNoGemmLibrary = -2;
inline constexpr int kGemmError = -1000;

struct GemmOptions {
  // If 1, an output row has the same bits for every number of rows: each weight shape has one
  // algorithm, without split-K. Costs speed.
  int32_t batch_invariant = 0;
  // Path of libcublasLt, or null for the usual names and folders.
  const char* library_path = nullptr;
  // File that keeps the fastest algorithms for the next start (gemm_cache.h), or null. The emulated
  // build and batch_invariant do not use the file, because they time no algorithms.
  const char* cache_path = nullptr;
  const char* device_name = "";  // part of the file's keys: different devices can share a file
  // Called once if the file cannot be used, with a sentence that says why. May be null.
  void (*warn)(const char* sentence) = nullptr;
};

// y[m][n] = sum over k of x[m][k] * weight[n][k], plus bias[n]; accumulated in fp32.
//
// For e4m3 the sum is multiplied by x_scales[m] and weight_scales[n] before the bias is added, and
// out_features and in_features must be multiples of 16.
struct GemmArgs {
  int64_t rows = 0;                      // m
  int64_t out_features = 0;              // n
  int64_t in_features = 0;               // k
  const void* x = nullptr;               // [m, k] of dtype
  const void* weight = nullptr;          // [n, k] of dtype
  const void* bias = nullptr;            // [n] of y_dtype, bf16 or f16; or null
  void* y = nullptr;                     // [m, n] of y_dtype
  DType dtype = DType::kBF16;            // bf16, f16 or e4m3
  DType y_dtype = DType::kBF16;          // dtype or f32; for e4m3 bf16, f16 or f32
  const float* x_scales = nullptr;       // [m], e4m3 only
  const float* weight_scales = nullptr;  // [n], e4m3 only
};

// Creates an opaque object: the library's handle and workspace, and the algorithms found so far.
int CreateGemm(const GemmOptions& options, void** gemm);
int DestroyGemm(void* gemm);
// Returns 0 if the library can compute a product of this shape and these types, else kUnsupported.
// Ignores pointers, except whether bias is null.
int CheckGemm(void* gemm, const GemmArgs& args);
// Sets *is_planned to whether RunGemm knows how to compute products of this shape and these types.
// If *is_planned is false, RunGemm may allocate and free memory and wait for the device.
int IsGemmPlanned(void* gemm, const GemmArgs& args, bool* is_planned);
int RunGemm(void* gemm, const GemmArgs& args, Stream stream);

// Returns whether args keep the rules of GemmArgs for types and widths.
inline bool IsValidProduct(const GemmArgs& args) {
  // cuBLASLt requires e4m3 rows whose size is a multiple of 16 bytes.
  constexpr int64_t kFp8Multiple = 16;
  const bool has_16_bits = args.y_dtype == DType::kBF16 || args.y_dtype == DType::kF16;
  if (!has_16_bits && (args.y_dtype != DType::kF32 || args.bias != nullptr)) {
    return false;
  }
  if (args.dtype == DType::kF8E4M3) {
    return args.in_features % kFp8Multiple == 0 && args.out_features % kFp8Multiple == 0;
  }
  return (args.dtype == DType::kBF16 || args.dtype == DType::kF16) &&
         (args.y_dtype == args.dtype || args.y_dtype == DType::kF32);
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_GEMM_H_
