// CpuLinear is a linear layer packed for the CPU, with unquantized weights (packed_linear.h) or
// quantized weights (quantized_linear.h).
//
// Thread safety: immutable after packing.
#ifndef QUIRE_KERNELS_CPU_CPU_LINEAR_H_
#define QUIRE_KERNELS_CPU_CPU_LINEAR_H_

#include <cstdint>

#include "kernels/api/dense.h"

namespace quire {

class CpuLinear : public PackedLinear {
 public:
  virtual bool is_quantized() const = 0;
  // Writes a row of the source to `out`, as in_features() fp32 numbers. The row is stored as a
  // column of a panel, so each number may cost a read of another cache line. Any thread.
  // REQUIRES: 0 <= row < out_features().
  virtual void WidenRow(int64_t row, float* out) const = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_CPU_LINEAR_H_
