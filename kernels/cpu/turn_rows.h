// TransposeRows writes rows as columns: rows of a weight matrix become the columns of a panel
// (packed_linear.h).
//
// Thread safety: free functions, safe from any thread.
// Units:         a unit is an element of the transpose: 32 bits (a float, two bf16) or 16 bits.
// Cost:          at least half the speed of memcpy, on one core. Copying unit by unit would take
//                three times as long as this function, which reads and writes whole cache lines.
#ifndef QUIRE_KERNELS_CPU_TURN_ROWS_H_
#define QUIRE_KERNELS_CPU_TURN_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace quire {

struct RowsToTurn {
  const std::byte* first = nullptr;  // first row, of any alignment, as in a mapped file
  int64_t stride_bytes = 0;          // bytes from row to row
  int64_t count = 0;
};

// Sets to[k * stride + r] to unit k of row r, for all rows r and all k in [0, depth).
void TransposeRows(const RowsToTurn& rows, int64_t depth, uint32_t* to, int64_t stride);
void TransposeRows(const RowsToTurn& rows, int64_t depth, uint16_t* to, int64_t stride);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_TURN_ROWS_H_
