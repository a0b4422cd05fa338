// PackedCodes holds a matrix of one quantized WeightFormat in the order in which the integer
// products read it. The matrix is cut into panels of `lanes` rows of the source, which are columns
// of a panel. Along k (the input dimension) a panel is a sequence of blocks of
// CodeFormat::groups_per_block groups of 32 weights:
//
//   block   binary16 scale[lanes], binary16 -minimum[lanes] (if has_minimum), groups
//   group   codes, int8 scales[scales_per_group][lanes], uint8 minimums[lanes] (with scales only)
//
// Codes are bytes in the order [k / 4][column][k % 4], 4 * lanes bytes for four values of k:
//
//   4 bits  4 vectors of nibbles; vector n has k / 4 = n in the low nibbles, n + 4 in the high ones
//   5 bits  as 4 bits, then a vector whose bit i of each byte is bit 4 of the codes of k / 4 = i
//   6 bits  as 4 bits, then two vectors; bits 2i and 2i + 1 of vector h belong to k / 4 = 4h + i
//   8 bits  8 vectors of signed bytes
//
// The packed bytes are as many as in the file, except that Q4_K and Q5_K have 148 and 180 bytes for
// 144 and 176, because integers of 6 bits are stored as bytes. Columns beyond the rows are zero.
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

// Kernels read the fields directly: a function that is compiled for several instruction sets must
// not be shared (README.md).
struct PackedCodes {
  // Computes the layout of a matrix with this format and shape. REQUIRES: CodeFormatOf
  // knows the format; the columns, and skipped ones, are whole groups.
  PackedCodes(const MatrixView& view, int lanes);

  // Returns the bytes of all panels, or nullopt if the number overflows.
  std::optional<int64_t> NumBytes() const;
  // Packs rows of the source, the first of which is row p * lanes, into panel p. REQUIRES: `data`
  // is set; `rows` has the format, columns and skipped columns of the matrix, and all rows of the
  // panel.
  void PackPanel(const MatrixView& rows_of_panel, int64_t p);
  // Writes a row of the source to `out`, as `cols` fp32 numbers with the bits of Dequantize. Safe
  // from any thread.
  void WidenRow(int64_t row, float* out) const;

  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int lanes = 0;
  int64_t num_panels = 0;
  int64_t num_groups = 0;
  int64_t first_group = 0;   // skipped groups of the first block
  int64_t header_bytes = 0;  // of a block, before its groups
  int64_t group_bytes = 0;
  int64_t block_bytes = 0;
  int64_t panel_bytes = 0;
  uint8_t* data = nullptr;  // [num_panels][panel_bytes], not owned
};

// Writes a row of a quantized table to `out`, plus `addend` if it is not null.
void DequantizeRow(const MatrixView& table, int64_t row, const float* addend, float* out);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PACKED_CODES_H_
