// Parameters of the dense operations: embedding, norms, linear layers, activations.
//
// Activations are rows of the backend's activation type (KernelBackend::activation_dtype: fp32 on
// the host), contiguous unless a stride is given. The residual, norm weights and logits are always
// fp32. On a CPU, and on a GPU with batch_invariant, an output row has the same bits for the same
// input row, whatever num_tokens and the other rows are.
//
// Thread safety: value types; they own nothing.
#ifndef QUIRE_KERNELS_API_DENSE_H_
#define QUIRE_KERNELS_API_DENSE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/model/dtype.h"
#include "common/model/layer_kinds.h"
#include "kernels/api/weight_format.h"

namespace quire {

class RowReader;

// A matrix in row-major order, as in a model file. Owns nothing.
struct MatrixView {
  const void* data = nullptr;  // rows of RowBytes bytes each, not necessarily aligned
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  // Number of weights before column 0 in each row's first weight block. Not 0 if a rank's columns
  // begin inside a block. Less than block_weights.
  int32_t skipped_cols = 0;
};

// Returns the bytes of a row: whole weight blocks, also if its columns begin or end inside one.
constexpr int64_t RowBytes(const MatrixView& matrix) {
  const WeightFormatInfo& info = InfoOf(matrix.format);
  return DivCeil(matrix.skipped_cols + matrix.cols, info.block_weights) * info.block_bytes;
}

// A row-parallel layer (attention output, MLP down) splits its input dimension over ranks. Each of
// its sums is cut into this many segments. With 1, 2, 4 or 8 ranks, each rank adds up its own
// segments as a binary tree. AllReduce then completes the tree over all eight segments.
inline constexpr int64_t kTreeSegments = 8;

// Weights of y = x W^T + bias. W is made of one or several parts with the same number of columns
// (q, k and v; gate and up), stacked by rows, so that y has the parts' outputs side by side.
struct LinearSource {
  std::span<const MatrixView> parts;
  std::span<const float> bias;  // [rows of all parts], or empty
  // 1, 2, 4 or 8. The CPU backend cuts the input dimension into this many equal segments; segments
  // of quantized weights begin at whole groups (CpuQuantizedLinear). Each segment is summed in one
  // accumulator, in ascending order of the inputs. The segments' sums are added as a balanced
  // binary tree, ((0+1)+(2+3))+((4+5)+(6+7)). Other backends choose their own order of sums.
  int64_t num_segments = 1;
  // Whether a backend that quantizes weights may store this layer in its smallest type. If false,
  // a GPU keeps the activations' type, and a CPU rounds to Q8_0 (CpuQuantization).
  bool is_quantizable = false;
  // If not null, the parts have no data, and PackLinear reads each row once, through this reader.
  const RowReader* reader = nullptr;
};

// Weights in the order that the backend's kernels read. Made by KernelBackend::PackLinear.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual int64_t in_features() const = 0;
  virtual int64_t out_features() const = 0;
  virtual int64_t bytes() const = 0;
  // Returns the ranges of main memory that hold the weights; empty if a device holds them.
  virtual std::vector<std::span<const std::byte>> memory() const { return {}; }
};

struct LinearParams {
  int64_t num_tokens = 0;
  const void* x = nullptr;  // [num_tokens, in_features], activations
  void* y = nullptr;        // [num_tokens, out_features], activations
  const PackedLinear* weight = nullptr;
  bool f32_out = false;  // whether y is fp32 instead of the activation type
};

struct EmbeddingParams {
  int64_t num_tokens = 0;
  const TokenId* token_ids = nullptr;  // [num_tokens]
  // [rows, width]. In main memory of any format, on a device F32, F16 or BF16.
  // REQUIRES: skipped_cols is 0.
  MatrixView table = {};
  // If `table` has no data, Embed reads the token table's rows from this packed matrix. Otherwise
  // the packed matrix is ignored. REQUIRES: `table` has data if KernelBackend::packs_while_reading
  // returns false.
  const PackedLinear* packed_table = nullptr;
  // The token of the table's first row. With several ranks, each rank's table has only the rows of
  // some tokens. For other tokens the rank uses a row of zeros.
  TokenId first_token = 0;
  // Learned positions (OPT). The row with index positions[i] + position_offset of this table is
  // added to the row of token i. If position_table.data is null, the model has no such table.
  MatrixView position_table = {};
  const int32_t* positions = nullptr;  // [num_tokens]
  int32_t position_offset = 0;
  DType out_dtype = DType::kF32;  // kF32 or the activations' type
  void* out = nullptr;            // [num_tokens, width]
};

// Computes residual += delta (if given), then out = norm(residual) * weight + bias, as a pre-norm
// transformer does between two sub-layers.
struct NormParams {
  NormKind kind = NormKind::kRmsNorm;
  int64_t num_tokens = 0;
  int64_t width = 0;
  float* residual = nullptr;      // [num_tokens, width], updated if delta is given
  const void* delta = nullptr;    // [num_tokens, width], activations, or null
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width], kLayerNorm only; null: none
  float eps = 1e-5F;
  void* out = nullptr;       // [num_tokens, width], activations
  float* out_f32 = nullptr;  // [num_tokens, width], a copy of the result in fp32; null: no copy
};

// If gated, out[i] = act(in[i]) * in[i + width], and a row of `in` has 2 * width columns (gate,
// then up). Else out[i] = act(in[i]), a row of `in` has `width` columns, and `out` may equal `in`.
struct ActivationParams {
  ActivationKind kind = ActivationKind::kSilu;
  bool gated = true;
  int64_t num_tokens = 0;
  int64_t width = 0;
  const void* in = nullptr;  // [num_tokens, gated ? 2 * width : width], activations
  void* out = nullptr;       // [num_tokens, width], activations
};

// The MLP of a layer: y = out(activation(in(x))). Gives the same bits as calls of Linear, Activate
// and Linear.
struct MlpParams {
  ActivationKind activation = ActivationKind::kSilu;
  bool gated = true;
  int64_t num_tokens = 0;
  int64_t width = 0;                 // columns of `activated`
  const void* x = nullptr;           // as LinearParams::x of the first product
  const PackedLinear* in = nullptr;  // if gated: rows of gate, then of up
  void* between = nullptr;           // scratch, [num_tokens, in->out_features()], activations
  void* activated = nullptr;         // scratch, [num_tokens, width], activations
  const PackedLinear* out = nullptr;
  void* y = nullptr;  // as LinearParams::y of the second product
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_DENSE_H_
