// CublasLt is the cuBLASLt library with a handle and a workspace. The library is opened at run
// time, so that quire_cuda.so can be loaded where no CUDA library is installed.
//
// Thread safety: one caller at a time.
// Errors:        those of gemm.h.
#ifndef QUIRE_KERNELS_CUDA_CUBLASLT_H_
#define QUIRE_KERNELS_CUDA_CUBLASLT_H_

#include <cstddef>
#include <cstdint>

#include <cublasLt.h>

#if CUBLAS_VERSION < 120900
#error "the headers of cuBLAS 12.9 or later are needed, for the names of its scaling modes"
#endif

namespace quire::gpu {

// The functions of the library that we call.
struct CublasLtFunctions {
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) algorithm_check;
  decltype(&cublasLtMatmul) matmul;
};

class CublasLt {
 public:
  static constexpr size_t kWorkspaceBytes = 32 << 20;

  CublasLt() = default;
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // path: the library's file, or null for the usual names and folders. The library stays open until
  // the process ends.
  int Open(const char* path);

  const CublasLtFunctions& f() const { return functions_; }
  cublasLtHandle_t handle() const { return handle_; }
  void* workspace() const { return workspace_; }
  uint64_t version() const { return functions_.get_version(); }

 private:
  CublasLtFunctions functions_ = {};
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

// Returns 0 for success, else kGemmError minus the status.
int ErrorOf(cublasStatus_t status);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_CUBLASLT_H_
