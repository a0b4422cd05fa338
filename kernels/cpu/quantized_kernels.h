// QuantizedKernels are the two loops of a quantized linear layer that are compiled for each
// instruction set. quantized_linear.h has the contract.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_CPU_QUANTIZED_KERNELS_H_
#define QUIRE_KERNELS_CPU_QUANTIZED_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/packed_codes.h"

namespace quire {

// The rows of inputs and outputs that are multiplied at once.
struct QuantizedTile {
  int rows = 0;                     // 1 to QuantizedKernels::max_rows
  const int8_t* x = nullptr;        // [rows][x_stride], rounded inputs; null: x_f32 is multiplied
  const float* x_scales = nullptr;  // [rows][groups_stride]
  const int32_t* x_sums = nullptr;  // [rows][2 * groups_stride], sums of the halves of each group
  const float* x_f32 = nullptr;     // [rows][x_stride]
  int64_t x_stride = 0;
  int64_t groups_stride = 0;
  int num_segments = 1;
  float* y = nullptr;  // [rows][y_stride]
  int64_t y_stride = 0;
  int columns = 0;              // of y; the panel may be wider
  const float* bias = nullptr;  // [columns], or null
};

struct QuantizedKernels {
  int lanes = 0;     // columns of a panel
  int max_rows = 0;  // of a tile
  // Rounds a row of inputs to 8 bits. sums: two per group, of its halves.
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
