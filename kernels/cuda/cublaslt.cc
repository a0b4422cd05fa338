#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>

#include <string>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/runtime.h"

namespace quire::gpu {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool FindAll(void* library, CublasLtFunctions* f) {
  return Find(library, "cublasLtGetVersion", &f->get_version) &&
         Find(library, "cublasLtCreate", &f->create) &&
         Find(library, "cublasLtDestroy", &f->destroy) &&
         Find(library, "cublasLtMatmulDescCreate", &f->desc_create) &&
         Find(library, "cublasLtMatmulDescDestroy", &f->desc_destroy) &&
         Find(library, "cublasLtMatmulDescSetAttribute", &f->desc_set) &&
         Find(library, "cublasLtMatrixLayoutCreate", &f->layout_create) &&
         Find(library, "cublasLtMatrixLayoutDestroy", &f->layout_destroy) &&
         Find(library, "cublasLtMatmulPreferenceCreate", &f->preference_create) &&
         Find(library, "cublasLtMatmulPreferenceDestroy", &f->preference_destroy) &&
         Find(library, "cublasLtMatmulPreferenceSetAttribute", &f->preference_set) &&
         Find(library, "cublasLtMatmulAlgoGetHeuristic", &f->heuristic) &&
         Find(library, "cublasLtMatmulAlgoCheck", &f->algorithm_check) &&
         Find(library, "cublasLtMatmul", &f->matmul);
}

void* OpenLibrary(const char* path) {
  if (path != nullptr) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  for (const std::string& candidate : {name, "/usr/local/cuda/lib64/" + name}) {
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
  }
  return nullptr;
}

}  // namespace

int CublasLt::Open(const char* path) {
  void* library = OpenLibrary(path);
  if (library == nullptr || !FindAll(library, &functions_)) {
    return kNoGemmLibrary;
  }
  if (const int error = ErrorOf(functions_.create(&handle_)); error != 0) {
    return error;
  }
  return Allocate(&workspace_, kWorkspaceBytes);
}

CublasLt::~CublasLt() {
  Free(workspace_);
  if (handle_ != nullptr) {
    functions_.destroy(handle_);
  }
}

int ErrorOf(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? 0 : kGemmError - static_cast<int>(status);
}

}  // namespace quire::gpu
