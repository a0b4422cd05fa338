// QuantizeRows converts rows to e4m3 with one fp32 scale each: activations before an FP8 product (a
// row is a token), and weights at loading (a row is an output channel). The contract of gpu_ops.h
// applies.
//
// Thread safety: one caller at a time for one stream.
// Errors:        0; the cudaError_t of the launch; kUnsupported if QuantizeRowsArgs does not allow
//                the dtype or the width.
#ifndef QUIRE_KERNELS_CUDA_QUANTIZE_ROWS_H_
#define QUIRE_KERNELS_CUDA_QUANTIZE_ROWS_H_

#include <cstdint>

#include "kernels/cuda/gpu_ops.h"

namespace quire::gpu {

// Elements that a thread converts at a time. A row's width is a multiple of this.
inline constexpr int32_t kQuantizedVector = 16;
// The largest e4m3 number, to which a row's largest magnitude is mapped.
inline constexpr float kLargestQuantized = 448.0F;
// Lower bound of scales, else 1 / scale would be infinite for rows of zeros or tiny numbers.
inline constexpr float kSmallestScale = 0x1p-120F;

// scales[r] = max(largest |in[r]| / 448, kSmallestScale); out[r][i] = in[r][i] * (1 / scales[r]),
// rounded to nearest. If a row has a NaN or an infinity, its scale and all its elements become NaN:
// e4m3 has no infinity, and a fault in the input must show in the row of the product.
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
