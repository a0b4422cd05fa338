// TurnRows writes rows as columns: what a row has one behind the other stands one below the other.
// Rows of a weight matrix become the columns of a panel that way (packed_linear.h).
//
// Thread safety: free functions, safe from any thread.
// Units:         a unit is what stays together: 32 bits (a float, two bf16) or 16 bits.
// Cost:          on one core at least half the speed of memcpy; a unit after another takes three
//                times as long. Lines of both sides are finished one after another.
#ifndef QUIRE_KERNELS_CPU_TURN_ROWS_H_
#define QUIRE_KERNELS_CPU_TURN_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace quire {

struct RowsToTurn {
  const std::byte* first = nullptr;  // anywhere: a file in memory is not aligned
  int64_t stride_bytes = 0;          // from row to row
  int64_t count = 0;
};

// to[k * stride + row] = unit k of the row, for all rows and k below `depth`.
void TurnRows(const RowsToTurn& rows, int64_t depth, uint32_t* to, int64_t stride);
void TurnRows(const RowsToTurn& rows, int64_t depth, uint16_t* to, int64_t stride);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_TURN_ROWS_H_
