// PackedCodes holds a matrix of one quantized WeightFormat in the order in which the integer
// products read the codes. A panel holds `lanes` rows of the source as its columns. Along k (the
// input dimension) a panel is a sequence of blocks. A block is CodeFormat::groups_per_block groups
// of 32 weights in each column:
//
//   block   binary16 scale[lanes], binary16 -minimum[lanes] (if has_minimum), groups
//   group   codes, int8 scales[scales_per_group][lanes], uint8 minimums[lanes] (if the format has
//           minimums and group scales)
//
// Codes are in the order [k / 4][column][k % 4], in vectors of 4 * lanes bytes:
//
//   4 bits  4 vectors of nibbles; vector n has k / 4 = n in the low nibbles, n + 4 in the high ones
//   5 bits  as 4 bits, then a vector; bit i of each byte is bit 4 of a code of k / 4 = i
//   6 bits  as 4 bits, then two vectors; bits 2i and 2i + 1 of each byte of vector h are bits 4 and
//           5 of a code of k / 4 = 4h + i
//   8 bits  8 vectors of signed bytes
//
// A column of a block takes as many bytes as in the file, except in Q4_K (148 for 144), Q5_K (180
// for 176) and IQ4_XS (138 for 136), whose 6-bit integers are stored as bytes. Columns of the last
// panel that have no row are zero.
//
// Thread safety: immutable after packing.
#ifndef QUIRE_KERNELS_CPU_PACKED_CODES_H_
#define QUIRE_KERNELS_CPU_PACKED_CODES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/api/dense.h"
#include "kernels/api/weight_format.h"

namespace quire {

// Kernels read the fields directly, not through inline functions: the linker might keep a copy that
// is compiled for an instruction set that the machine lacks (README.md).
struct PackedCodes {
  // Computes the layout of a matrix with the format and shape of `view`. REQUIRES: the format has a
  // kernel (CodeFormat::bits is not 0); cols and skipped_cols are multiples of 32.
  PackedCodes(const MatrixView& view, int lanes);

  // Returns the bytes of all panels, or nullopt if the number overflows.
  std::optional<int64_t> NumBytes() const;
  // Packs rows_of_panel into panel p. REQUIRES: `data` is set; rows_of_panel has the format,
  // columns and skipped columns of the matrix, and all rows of panel p, from p * lanes on.
  void PackPanel(const MatrixView& rows_of_panel, int64_t p);
  // Writes a row of the source to `out`, as `cols` fp32 numbers with the bits that Dequantize
  // gives. Any thread.
  void WidenRow(int64_t row, float* out) const;

  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int lanes = 0;
  int64_t num_panels = 0;
  int64_t num_groups = 0;
  int64_t first_group = 0;   // index of the matrix's first group within its block
  int64_t header_bytes = 0;  // bytes of a block before its groups
  int64_t group_bytes = 0;
  int64_t block_bytes = 0;
  int64_t panel_bytes = 0;
  uint8_t* data = nullptr;  // [num_panels][panel_bytes], not owned
};

// Writes row `row` of a quantized table to `out`, plus `addend` if `addend` is not null.
void DequantizeRow(const MatrixView& table, int64_t row, const float* addend, float* out);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PACKED_CODES_H_
