// QuantizeRows turns rows into e4m3 with one fp32 scale each: activations before an FP8 product,
// one row a token, and weights while they are loaded, one row an output channel. What holds for the
// operations of gpu_ops.h holds here.
//
// Thread safety: one caller at a time for one stream.
// Errors:        0, the cudaError_t of the launch, or kUnsupported for another type or width.
#ifndef QUIRE_KERNELS_CUDA_QUANTIZE_ROWS_H_
#define QUIRE_KERNELS_CUDA_QUANTIZE_ROWS_H_

#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// Rows are vectors of so many elements: a width is a multiple of it.
inline constexpr int32_t kQuantizedVector = 16;
// The largest number of e4m3; the largest magnitude of a row becomes it.
inline constexpr float kLargestQuantized = 448.0F;
// Of rows of zeros, and of rows so small that 1 / scale would not be finite.
inline constexpr float kSmallestScale = 0x1p-120F;

// scales[r] = max(largest |in[r]| / 448, kSmallestScale); out[r][i] = in[r][i] / scales[r], rounded
// to nearest. A row with a NaN or an infinity has the scale NaN and is NaN in all its elements:
// e4m3 has no infinity, and what a product makes of the row has to show it.
struct QuantizeRowsArgs {
  int64_t num_rows = 0;
  int32_t width = 0;           // a multiple of 16
  const void* in = nullptr;    // [num_rows, width] of dtype
  DType dtype = DType::kBF16;  // f32, bf16 or f16
  void* out = nullptr;         // [num_rows, width] of e4m3
  float* scales = nullptr;     // [num_rows]
};
int QuantizeRows(const QuantizeRowsArgs& args, Stream stream);

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_QUANTIZE_ROWS_H_
