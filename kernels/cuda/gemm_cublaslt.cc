// Products by cuBLASLt, which is opened at run time: the library with our kernels needs no CUDA
// library to start.
//
// Row-major y = x W^T is column-major y^T = W^T' x^T with W transposed ("TN"), the layout that
// tensor cores read best. For each shape the algorithms that the library's heuristics name are
// timed once, on the operands at hand, and the fastest is kept. Batch-invariant: one algorithm for
// each weight, chosen for a middling number of rows and without split-k, whatever the number of
// rows.
#include <dlfcn.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/gemm.h"

namespace quire::gpu {
namespace {

constexpr size_t kWorkspaceBytes = 32 << 20;
constexpr int kMaxCandidates = 8;
constexpr int kTimedRuns = 3;
constexpr int64_t kInvariantRows = 256;

// The functions of the library that are used.
struct Library {
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
  decltype(&cublasLtMatmul) matmul;
};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool FindAll(void* library, Library* f) {
  return Find(library, "cublasLtCreate", &f->create) &&
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

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_16BF;
  }
}

// Of one shape: what the library wants to be told, and the algorithm.
struct Problem {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  bool is_tuned = false;
};

// rows, out_features, in_features, has bias, type, type of y.
using Shape = std::tuple<int64_t, int64_t, int64_t, bool, DType, DType>;

class Gemm {
 public:
  Gemm(const Library& library, bool batch_invariant) : f_(library), invariant_(batch_invariant) {}

  ~Gemm() {
    for (auto& [shape, problem] : problems_) {
      Destroy(&problem);
    }
    cudaFree(workspace_);
    if (handle_ != nullptr) {
      f_.destroy(handle_);
    }
  }

  int Open() {
    if (const cublasStatus_t status = f_.create(&handle_); status != CUBLAS_STATUS_SUCCESS) {
      return kGemmError - static_cast<int>(status);
    }
    return cudaMalloc(&workspace_, kWorkspaceBytes);
  }

  int Run(const GemmArgs& args, cudaStream_t stream) {
    Problem* problem = nullptr;
    if (const int error = ProblemFor(args, stream, &problem); error != 0) {
      return error;
    }
    return Multiply(*problem, problem->algorithm, args, stream);
  }

 private:
  static int ErrorOf(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? 0 : kGemmError - static_cast<int>(status);
  }

  void Destroy(Problem* problem) {
    f_.layout_destroy(problem->y);
    f_.layout_destroy(problem->x);
    f_.layout_destroy(problem->weight);
    f_.desc_destroy(problem->desc);
  }

  int ProblemFor(const GemmArgs& args, cudaStream_t stream, Problem** out) {
    const Shape shape = {args.rows,
                         args.out_features,
                         args.in_features,
                         args.bias != nullptr,
                         args.dtype,
                         args.y_dtype};
    auto found = problems_.find(shape);
    if (found == problems_.end()) {
      Problem problem;
      if (const int error = Describe(args, args.rows, &problem); error != 0) {
        return error;
      }
      found = problems_.emplace(shape, problem).first;
    }
    *out = &found->second;
    return found->second.is_tuned ? 0 : Tune(args, stream, &found->second);
  }

  int Describe(const GemmArgs& args, int64_t rows, Problem* problem) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t status = f_.desc_create(&problem->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      if (status == CUBLAS_STATUS_SUCCESS) {
        status = f_.desc_set(problem->desc, attribute, &value, sizeof(value));
      }
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (args.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    }
    auto layout = [&](cublasLtMatrixLayout_t* to, DType dtype, int64_t height, int64_t width) {
      if (status == CUBLAS_STATUS_SUCCESS) {
        status = f_.layout_create(
            to, TypeOf(dtype), static_cast<uint64_t>(height), static_cast<uint64_t>(width), height);
      }
    };
    layout(&problem->weight, args.dtype, args.in_features, args.out_features);
    layout(&problem->x, args.dtype, args.in_features, rows);
    layout(&problem->y, args.y_dtype, args.out_features, rows);
    return ErrorOf(status);
  }

  int Multiply(const Problem& problem,
               const cublasLtMatmulAlgo_t& algorithm,
               const GemmArgs& args,
               cudaStream_t stream) {
    constexpr float kOne = 1.0F;
    constexpr float kZero = 0.0F;
    if (args.bias != nullptr) {
      const cublasStatus_t status = f_.desc_set(
          problem.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args.bias, sizeof(args.bias));
      if (status != CUBLAS_STATUS_SUCCESS) {
        return ErrorOf(status);
      }
    }
    return ErrorOf(f_.matmul(handle_,
                             problem.desc,
                             &kOne,
                             args.weight,
                             problem.weight,
                             args.x,
                             problem.x,
                             &kZero,
                             args.y,
                             problem.y,
                             args.y,
                             problem.y,
                             &algorithm,
                             workspace_,
                             kWorkspaceBytes,
                             stream));
  }

  // The algorithms that the library thinks best, best first.
  int Candidates(const Problem& problem,
                 std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates>* results,
                 int* count) {
    cublasLtMatmulPreference_t preference = nullptr;
    cublasStatus_t status = f_.preference_create(&preference);
    auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      if (status == CUBLAS_STATUS_SUCCESS) {
        status = f_.preference_set(preference, attribute, &value, sizeof(value));
      }
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    if (invariant_) {
      const uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_split);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = f_.heuristic(handle_,
                            problem.desc,
                            problem.weight,
                            problem.x,
                            problem.y,
                            problem.y,
                            preference,
                            kMaxCandidates,
                            results->data(),
                            count);
    }
    f_.preference_destroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && *count == 0) {
      status = CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return ErrorOf(status);
  }

  int Tune(const GemmArgs& args, cudaStream_t stream, Problem* problem) {
    std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results = {};
    int count = 0;
    if (invariant_) {
      return ChooseInvariant(args, problem);
    }
    if (const int error = Candidates(*problem, &results, &count); error != 0) {
      return error;
    }
    problem->algorithm = results[0].algo;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    if (const cudaError_t error = cudaStreamIsCapturing(stream, &capturing); error != cudaSuccess) {
      return error;
    }
    if (capturing != cudaStreamCaptureStatusNone) {
      return 0;  // nothing can be timed now; another run will
    }
    float best = -1.0F;
    for (int i = 0; i < count; ++i) {
      float milliseconds = 0.0F;
      const int error = Time(*problem, results[i].algo, args, stream, &milliseconds);
      if (error == 0 && (best < 0.0F || milliseconds < best)) {
        best = milliseconds;
        problem->algorithm = results[i].algo;
      }
    }
    problem->is_tuned = true;
    return 0;
  }

  // The algorithm of this weight for a middling number of rows.
  int ChooseInvariant(const GemmArgs& args, Problem* problem) {
    const Shape weight = {
        0, args.out_features, args.in_features, args.bias != nullptr, args.dtype, args.y_dtype};
    auto found = invariant_algorithms_.find(weight);
    if (found == invariant_algorithms_.end()) {
      Problem middling;
      std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results = {};
      int count = 0;
      int error = Describe(args, kInvariantRows, &middling);
      error = error != 0 ? error : Candidates(middling, &results, &count);
      Destroy(&middling);
      if (error != 0) {
        return error;
      }
      found = invariant_algorithms_.emplace(weight, results[0].algo).first;
    }
    problem->algorithm = found->second;
    problem->is_tuned = true;
    return 0;
  }

  int Time(const Problem& problem,
           const cublasLtMatmulAlgo_t& algorithm,
           const GemmArgs& args,
           cudaStream_t stream,
           float* milliseconds) {
    // Once without the clock: the first run loads the kernel.
    int error = Multiply(problem, algorithm, args, stream);
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventRecord(begin, stream);
    for (int run = 0; run < kTimedRuns && error == 0; ++run) {
      error = Multiply(problem, algorithm, args, stream);
    }
    cudaEventRecord(end, stream);
    const cudaError_t waited = cudaEventSynchronize(end);
    cudaEventElapsedTime(milliseconds, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return error != 0 ? error : static_cast<int>(waited);
  }

  const Library f_;
  const bool invariant_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Shape, Problem> problems_;
  std::map<Shape, cublasLtMatmulAlgo_t> invariant_algorithms_;
};

}  // namespace

int CreateGemm(const GemmOptions& options, void** gemm) {
  void* library = OpenLibrary(options.library_path);
  Library functions = {};
  if (library == nullptr || !FindAll(library, &functions)) {
    return kNoGemmLibrary;
  }
  auto created = std::make_unique<Gemm>(functions, options.batch_invariant != 0);
  if (const int error = created->Open(); error != 0) {
    return error;
  }
  *gemm = created.release();
  return 0;
}

int DestroyGemm(void* gemm) {
  delete static_cast<Gemm*>(gemm);
  return 0;
}

int CheckGemm(void* /*gemm*/, const GemmArgs& args) {
  return IsValidProduct(args) && args.dtype != DType::kF8E4M3 ? 0 : kUnsupported;
}

int RunGemm(void* gemm, const GemmArgs& args, Stream stream) {
  const bool has_bias = args.bias != nullptr;
  if (args.dtype != DType::kBF16 && args.dtype != DType::kF16) {
    return kUnsupported;
  }
  if (args.y_dtype != args.dtype && (args.y_dtype != DType::kF32 || has_bias)) {
    return kUnsupported;
  }
  return static_cast<Gemm*>(gemm)->Run(args, static_cast<cudaStream_t>(stream));
}

}  // namespace quire::gpu
