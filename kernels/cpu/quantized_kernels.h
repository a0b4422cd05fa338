// QuantizedKernels holds the two loops of a quantized linear layer, compiled for one instruction
// set. quantized_linear.h has the contract.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_CPU_QUANTIZED_KERNELS_H_
#define QUIRE_KERNELS_CPU_QUANTIZED_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/packed_codes.h"

namespace quire {

// Some rows of inputs, and the outputs of these rows in the columns of one panel.
struct QuantizedTile {
  int rows = 0;                     // 1 to QuantizedKernels::max_rows
  const int8_t* x = nullptr;        // [rows][x_stride], rounded inputs; null: x_f32 is used
  const float* x_scales = nullptr;  // [rows][groups_stride]
  const int32_t* x_sums = nullptr;  // [rows][2 * groups_stride], sum of x in each half of a group
  const float* x_f32 = nullptr;     // [rows][x_stride], inputs that are not rounded
  int64_t x_stride = 0;
  int64_t groups_stride = 0;
  int num_segments = 1;
  float* y = nullptr;  // [rows][y_stride]
  int64_t y_stride = 0;
  int columns = 0;              // columns of y to write; the panel may be wider
  const float* bias = nullptr;  // [columns], or null
};

struct QuantizedKernels {
  int lanes = 0;     // columns of a panel
  int max_rows = 0;  // rows of a tile
  // Rounds a row of inputs to 8 bits, with one scale per group. `sums` has two sums per group, one
  // for each half.
  void (*round_inputs)(
      const float* x, int64_t num_groups, int8_t* codes, float* scales, int32_t* sums) = nullptr;
  void (*multiply)(const PackedCodes& matrix,
                   const QuantizedTile& tile,
                   const uint8_t* panel) = nullptr;
};

// NOLINTBEGIN(readability-identifier-naming): constants
extern const QuantizedKernels kQuantizedVnni;
extern const QuantizedKernels kQuantizedAvx512;
extern const QuantizedKernels kQuantizedAvx2;
extern const QuantizedKernels kQuantizedPortable;
// NOLINTEND(readability-identifier-naming)

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_QUANTIZED_KERNELS_H_
