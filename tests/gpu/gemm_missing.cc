// Replaces gemm_cublaslt.cc if cuBLASLt's headers are not installed. The kernels can still be
// built, tested and measured.
#include "kernels/cuda/gemm.h"

namespace quire::gpu {

int CreateGemm(const GemmOptions& /*options*/, void** /*gemm*/) { return kNoGemmLibrary; }

int DestroyGemm(void* /*gemm*/) { return 0; }

int CheckGemm(void* /*gemm*/, const GemmArgs& /*args*/) { return kNoGemmLibrary; }

int IsGemmPlanned(void* /*gemm*/, const GemmArgs& /*args*/, bool* /*is_planned*/) {
  return kNoGemmLibrary;
}

int RunGemm(void* /*gemm*/, const GemmArgs& /*args*/, Stream /*stream*/) { return kNoGemmLibrary; }

}  // namespace quire::gpu
