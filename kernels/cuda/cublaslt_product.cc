#include "kernels/cuda/cublaslt_product.h"

#include <algorithm>
#include <array>

namespace quire::gpu {
namespace {

constexpr int kMaxCandidates = 8;

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    default:
      return CUDA_R_16BF;
  }
}

// Returns the alignment of every row of a matrix that starts at a multiple of 256 bytes. cuBLASLt
// may assume no more, because the x and y of a product can start at any row of such a matrix.
uint32_t RowAlignment(int64_t row_bytes) {
  constexpr int64_t kMemoryAlignment = 256;
  return static_cast<uint32_t>(std::min(kMemoryAlignment, row_bytes & -row_bytes));
}

}  // namespace

CublasLtProduct::~CublasLtProduct() {
  for (cublasLtMatrixLayout_t layout : {y_, x_, weight_}) {
    if (layout != nullptr) {
      f_.layout_destroy(layout);
    }
  }
  if (desc_ != nullptr) {
    f_.desc_destroy(desc_);
  }
}

template <typename Value>
void CublasLtProduct::Set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  if (status_ == CUBLAS_STATUS_SUCCESS) {
    status_ = f_.desc_set(desc_, attribute, &value, sizeof(value));
  }
}

void CublasLtProduct::MakeLayout(cublasLtMatrixLayout_t* layout,
                                 DType dtype,
                                 int64_t height,
                                 int64_t width) {
  if (status_ == CUBLAS_STATUS_SUCCESS) {
    status_ = f_.layout_create(
        layout, TypeOf(dtype), static_cast<uint64_t>(height), static_cast<uint64_t>(width), height);
  }
}

int CublasLtProduct::Describe(const GemmArgs& args) {
  args_ = args;
  status_ = f_.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (args.bias != nullptr) {
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  }
  if (args.dtype == DType::kF8E4M3) {
    DescribeScales();
  }
  MakeLayout(&weight_, args.dtype, args.in_features, args.out_features);
  MakeLayout(&x_, args.dtype, args.in_features, args.rows);
  MakeLayout(&y_, args.y_dtype, args.out_features, args.rows);
  return ErrorOf(status_);
}

void CublasLtProduct::DescribeScales() {
  constexpr int32_t kVector = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  // The heuristics require pointers to scales. Callers of CheckGemm may pass null, so the
  // workspace's address replaces null.
  const auto pointer = [this](const float* scales) {
    return scales == nullptr ? library_.workspace() : static_cast<const void*>(scales);
  };
  Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kVector);
  Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kVector);
  Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointer(args_.weight_scales));
  Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointer(args_.x_scales));
}

int CublasLtProduct::Candidates(bool split_k, std::vector<cublasLtMatmulAlgo_t>* algorithms) {
  cublasLtMatmulPreference_t preference = nullptr;
  cublasStatus_t status = f_.preference_create(&preference);
  auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = f_.preference_set(preference, attribute, &value, sizeof(value));
    }
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CublasLt::kWorkspaceBytes);
  // Without these settings, the library would assume 256-byte alignment, which only weights have.
  const uint32_t x_alignment = RowAlignment(args_.in_features * SizeOf(args_.dtype));
  const uint32_t y_alignment = RowAlignment(args_.out_features * SizeOf(args_.y_dtype));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment);
  if (!split_k) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  }
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results = {};
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = f_.heuristic(library_.handle(),
                          desc_,
                          weight_,
                          x_,
                          y_,
                          y_,
                          preference,
                          kMaxCandidates,
                          results.data(),
                          &count);
  }
  if (preference != nullptr) {
    f_.preference_destroy(preference);
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    return ErrorOf(status);
  }
  algorithms->clear();
  for (int i = 0; i < count; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) {
      algorithms->push_back(result.algo);
    }
  }
  return algorithms->empty() ? ErrorOf(CUBLAS_STATUS_NOT_SUPPORTED) : 0;
}

bool CublasLtProduct::Takes(const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      f_.algorithm_check(library_.handle(), desc_, weight_, x_, y_, y_, &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= CublasLt::kWorkspaceBytes;
}

int CublasLtProduct::MultiplyBy(const void* weight,
                                const cublasLtMatmulAlgo_t& algorithm,
                                Stream stream) {
  constexpr float kOne = 1.0F;
  constexpr float kZero = 0.0F;
  return ErrorOf(f_.matmul(library_.handle(),
                           desc_,
                           &kOne,
                           weight,
                           weight_,
                           args_.x,
                           x_,
                           &kZero,
                           args_.y,
                           y_,
                           args_.y,
                           y_,
                           &algorithm,
                           library_.workspace(),
                           CublasLt::kWorkspaceBytes,
                           static_cast<cudaStream_t>(stream)));
}

}  // namespace quire::gpu
