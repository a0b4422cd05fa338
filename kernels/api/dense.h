// Parameters of the dense operations: embedding, norms, linear layers, activations.
//
// All activations are fp32 rows, contiguous unless a stride is given. Every output row depends on
// its own input row alone, bit for bit, whatever num_tokens is.
//
// Thread safety: value types; they own nothing.
#ifndef QUIRE_KERNELS_API_DENSE_H_
#define QUIRE_KERNELS_API_DENSE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/ids.h"
#include "common/model/dtype.h"
#include "common/model/model_config.h"

namespace quire {

// A matrix in row-major order, as it lies in a model file. Owns nothing.
struct MatrixView {
  const void* data = nullptr;  // [rows, cols] of dtype; no alignment is promised
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
};

// In which order a linear layer sums over its input dimension k.
enum class Reduction : uint8_t {
  // One accumulator, k ascending.
  kSequential,
  // Eight equal segments of k, each ascending, summed as a balanced binary tree
  // ((0+1)+(2+3))+((4+5)+(6+7)): the order that ranks of tensor-parallel size 1, 2, 4 and 8
  // reproduce by recursive doubling. For row-parallel layers (attention output, MLP down); needs
  // cols % 8 == 0.
  kTree8,
};

// y = x W^T + bias. Several matrices with the same number of columns stand one above the other
// (q, k, v or gate, up): their outputs are concatenated.
struct LinearSource {
  std::span<const MatrixView> parts;
  std::span<const float> bias;  // [sum of rows], or empty
  Reduction reduction = Reduction::kSequential;
};

// Weights in the order a backend likes to read them. Made by KernelBackend::PackLinear.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual int64_t in_features() const = 0;
  virtual int64_t out_features() const = 0;
  virtual int64_t bytes() const = 0;
};

struct LinearParams {
  int64_t num_tokens = 0;
  const float* x = nullptr;  // [num_tokens, in_features]
  float* y = nullptr;        // [num_tokens, out_features]
  const PackedLinear* weight = nullptr;
};

struct EmbeddingParams {
  int64_t num_tokens = 0;
  const TokenId* token_ids = nullptr;   // [num_tokens], each < table.rows
  MatrixView table = {};                // [vocab, width]
  // Learned positions (OPT): row positions[i] + position_offset is added. Null data: none.
  MatrixView position_table = {};
  const int32_t* positions = nullptr;   // [num_tokens]
  int32_t position_offset = 0;
  float* out = nullptr;                 // [num_tokens, width]
};

// residual += delta (where given), then out = norm(residual) * weight + bias. The pre-norm
// transformer's step between two sub-layers.
struct NormParams {
  NormKind kind = NormKind::kRmsNorm;
  int64_t num_tokens = 0;
  int64_t width = 0;
  float* residual = nullptr;      // [num_tokens, width], updated when delta is given
  const float* delta = nullptr;   // [num_tokens, width], or null
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width], kLayerNorm only; null: none
  float eps = 1e-5F;
  float* out = nullptr;           // [num_tokens, width]
};

// gated: out[i] = act(in[i]) * in[i + width] with rows of 2 * width (gate, then up).
// not gated: out[i] = act(in[i]) with rows of width; out may equal in.
struct ActivationParams {
  ActivationKind kind = ActivationKind::kSilu;
  bool gated = true;
  int64_t num_tokens = 0;
  int64_t width = 0;
  const float* in = nullptr;
  float* out = nullptr;  // [num_tokens, width]
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_DENSE_H_
