#include "tests/kernels/cuda/fake_cublaslt.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <cublasLt.h>

#include "tests/kernels/cuda/fake_cublaslt_element.h"

namespace {

using quire::gpu::FakeCublasLt;
using quire::gpu::LoadElement;
using quire::gpu::StoreElement;

constexpr uint64_t kMagic = 0x5155495245;  // marks algorithms and handles as ours
constexpr size_t kSplitWorkspaceBytes = 1 << 20;
constexpr int kOffered[] = {2, 0, 1};

FakeCublasLt fake;

struct Description {
  int32_t transa = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t a_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int32_t b_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
};

struct Layout {
  cudaDataType_t type;
  uint64_t rows;
  uint64_t cols;
  int64_t ld;
};

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignments[4] = {256, 256, 256, 256};  // of a, b, c, d
};

const Description& Of(cublasLtMatmulDesc_t desc) {
  return *reinterpret_cast<const Description*>(desc);
}
const Layout& Of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<const Layout*>(layout); }

template <typename T>
cublasStatus_t Assign(T* to, const void* from, size_t size) {
  if (size != sizeof(T)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(to, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

quire::DType DTypeOf(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16BF:
      return quire::DType::kBF16;
    case CUDA_R_16F:
      return quire::DType::kF16;
    case CUDA_R_8F_E4M3:
      return quire::DType::kF8E4M3;
    default:
      return quire::DType::kF32;
  }
}

bool Is16Bit(cudaDataType_t type) { return type == CUDA_R_16BF || type == CUDA_R_16F; }

// Checks an e4m3 product: TN, widths of whole 16 bytes, a scale for each row of a and column of b.
// A bias must begin at a multiple of 16 bytes. cuBLASLt 13.1 was seen to refuse multiples of 2 and
// 4, and to take 16.
cublasStatus_t CheckFp8(const Description& desc, const Layout& a, const Layout& d) {
  constexpr int32_t kVector = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  if (desc.a_scale_mode != kVector || desc.b_scale_mode != kVector || !fake.has_vector_scales) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (desc.a_scales == nullptr || desc.b_scales == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  constexpr uintptr_t kAlignment = 16;
  const bool has_bias = desc.epilogue == CUBLASLT_EPILOGUE_BIAS;
  const bool is_aligned = a.rows % kAlignment == 0 && a.cols % kAlignment == 0 &&
                          (!has_bias || reinterpret_cast<uintptr_t>(desc.bias) % kAlignment == 0);
  return is_aligned && (Is16Bit(d.type) || d.type == CUDA_R_32F) ? CUBLAS_STATUS_SUCCESS
                                                                 : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t CheckProduct(
    const Description& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  if (desc.transa != CUBLAS_OP_T || a.rows != b.rows || d.rows != a.cols || d.cols != b.cols ||
      c.type != d.type || a.type != b.type || a.ld != static_cast<int64_t>(a.rows) ||
      b.ld != static_cast<int64_t>(b.rows) || d.ld != static_cast<int64_t>(d.rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS && (desc.bias == nullptr || !Is16Bit(d.type))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (a.type == CUDA_R_8F_E4M3) {
    return CheckFp8(desc, a, d);
  }
  return Is16Bit(a.type) && (d.type == a.type || d.type == CUDA_R_32F)
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

bool TakesRows(int algorithm, uint64_t rows) {
  return static_cast<int64_t>(rows) % fake.row_multiple[algorithm] == 0;
}

cublasLtMatmulAlgo_t AlgorithmOf(int id) {
  cublasLtMatmulAlgo_t algorithm = {};
  algorithm.data[0] = static_cast<uint64_t>(id);
  algorithm.data[7] = kMagic;
  return algorithm;
}

size_t WorkspaceOf(int algorithm) { return algorithm == 2 ? kSplitWorkspaceBytes : 0; }

// The matrix in fp32, column by column as cuBLASLt sees it.
std::vector<float> Widen(const void* data, const Layout& layout) {
  std::vector<float> wide(layout.rows * layout.cols);
  for (size_t i = 0; i < wide.size(); ++i) {
    wide[i] = LoadElement(data, DTypeOf(layout.type), static_cast<int64_t>(i));
  }
  return wide;
}

// The inner product, in the order of the algorithm.
float Sum(int algorithm, const float* a, const float* b, size_t width) {
  float parts[2] = {};
  for (size_t i = 0; i < width; ++i) {
    const size_t k = algorithm == 1 ? width - 1 - i : i;
    parts[algorithm == 2 && 2 * i >= width ? 1 : 0] += a[k] * b[k];
  }
  return parts[0] + parts[1];
}

}  // namespace

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name, readability-function-size)
extern "C" {

#pragma GCC visibility push(default)

FakeCublasLt* quire_fake_cublaslt() { return &fake; }

size_t cublasLtGetVersion() { return fake.version; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static uint64_t any = kMagic;
  *handle = reinterpret_cast<cublasLtHandle_t>(&any);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Description());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<Description*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value,
                                              size_t size) {
  auto* desc = reinterpret_cast<Description*>(opaque);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Assign(&desc->transa, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Assign(&desc->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Assign(&desc->bias, value, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return Assign(&desc->a_scales, value, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return Assign(&desc->b_scales, value, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return Assign(&desc->a_scale_mode, value, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return Assign(&desc->b_scale_mode, value, size);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value,
                                                    size_t size) {
  auto* preference = reinterpret_cast<Preference*>(opaque);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Assign(&preference->workspace_bytes, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Assign(&preference->reduction_mask, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Assign(&preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                    value,
                    size);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t opaque,
                                              int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  const auto& preference = *reinterpret_cast<const Preference*>(opaque);
  ++fake.heuristics;
  *count = 0;
  const cublasStatus_t status = CheckProduct(Of(desc), Of(a), Of(b), Of(c), Of(d));
  if (status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  for (const int id : kOffered) {
    const bool splits = id == 2;
    if (*count == wanted || (splits && preference.reduction_mask == 0) ||
        WorkspaceOf(id) > preference.workspace_bytes || !TakesRows(id, Of(b).cols)) {
      continue;
    }
    results[*count] = {.algo = AlgorithmOf(id), .workspaceSize = WorkspaceOf(id)};
    std::copy_n(preference.alignments, 4, &results[*count].algo.data[1]);
    results[*count].state = CUBLAS_STATUS_SUCCESS;
    ++*count;
  }
  return *count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/,
                                       cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const uint64_t id = algorithm->data[0];
  if (algorithm->data[7] != kMagic || id >= FakeCublasLt::kNumAlgorithms ||
      !TakesRows(static_cast<int>(id), Of(b).cols)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  result->workspaceSize = WorkspaceOf(static_cast<int>(id));
  return CheckProduct(Of(desc), Of(a), Of(b), Of(c), Of(d));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t desc,
                              const void* alpha,
                              const void* a_data,
                              cublasLtMatrixLayout_t a,
                              const void* b_data,
                              cublasLtMatrixLayout_t b,
                              const void* beta,
                              const void* c_data,
                              cublasLtMatrixLayout_t c,
                              void* d_data,
                              cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace,
                              size_t workspace_bytes,
                              cudaStream_t /*stream*/) {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  const int id = static_cast<int>(algorithm->data[0]);
  const void* const matrices[] = {a_data, b_data, c_data, d_data};
  bool is_aligned = true;
  for (size_t i = 0; i < 4; ++i) {
    is_aligned =
        is_aligned && reinterpret_cast<uintptr_t>(matrices[i]) % algorithm->data[1 + i] == 0;
  }
  if (!is_aligned || *static_cast<const float*>(alpha) != 1.0F ||
      *static_cast<const float*>(beta) != 0.0F || result.workspaceSize > workspace_bytes) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  ++fake.products;
  fake.weights.push_back(a_data);
  if (id == fake.broken_algorithm) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  fake.last_algorithm = id;
  fake.last_rows = static_cast<int64_t>(Of(d).cols);
  std::memset(workspace, 0xFF, result.workspaceSize);
  const Description& description = Of(desc);
  const size_t width = Of(a).rows;
  const std::vector<float> wide_a = Widen(a_data, Of(a));
  const std::vector<float> wide_b = Widen(b_data, Of(b));
  const quire::DType y_type = DTypeOf(Of(d).type);
  for (size_t m = 0; m < Of(d).cols; ++m) {
    for (size_t n = 0; n < Of(d).rows; ++n) {
      float value = Sum(id, &wide_a[n * width], &wide_b[m * width], width);
      if (Of(a).type == CUDA_R_8F_E4M3) {
        value *= description.a_scales[n] * description.b_scales[m];
      }
      if (description.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        value += LoadElement(description.bias, y_type, static_cast<int64_t>(n));
      }
      StoreElement(d_data, y_type, static_cast<int64_t>(m * Of(d).rows + n), value);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

#pragma GCC visibility pop

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name, readability-function-size)
