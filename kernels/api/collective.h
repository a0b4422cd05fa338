// Parameters of the collective operations of a tensor-parallel group. Every rank calls the
// operations in the same order with the same shapes; a rank without a group never calls them.
//
// AllReduce adds in one order: rank 0 + rank 1, 2 + 3, ..., then pairs of these sums. Each rank has
// already added the segments of its own part of the sum, also in pairs (kTreeSegments). So groups
// of 1, 2, 4 and 8 ranks compute the same binary tree of additions.
//
// If the group breaks, results are undefined. Communicator::status tells whether the group broke.
//
// Thread safety: value types; they own nothing.
// Source:        Thakur, Rabenseifner and Gropp 2005 (recursive doubling).
#ifndef QUIRE_KERNELS_API_COLLECTIVE_H_
#define QUIRE_KERNELS_API_COLLECTIVE_H_

#include <cstdint>
#include <span>

#include "common/model/dtype.h"

namespace quire {

enum class Merge : uint8_t {
  kSum,
  // Merges the ranks' copies of a row by bitwise OR. REQUIRES: all copies of a row except one
  // consist of zero bits. Unlike a sum with the other ranks' zeros, OR does not turn a -0 into 0.
  kDisjoint,
};

struct AllReduceParams {
  int64_t num_rows = 0;
  int64_t width = 0;
  Merge merge = Merge::kSum;
  DType dtype = DType::kF32;  // kF32 or the activations' type
  void* data = nullptr;       // [num_rows, width]; in: this rank's rows, out: merged rows
  // [width], added to the sum, or null. REQUIRES: null if KernelBackend::adds_bias_to_sums is
  // false.
  const float* bias = nullptr;
};

// Gather assembles rows on rank 0 from the columns of all ranks.
struct GatherParams {
  int64_t num_rows = 0;
  std::span<const int64_t> widths;  // columns of each rank
  // [num_rows] on the host. If empty, every row needs all values. Otherwise row i needs only its
  // num_candidates[i] greatest values (0: all values); ties go to the lowest columns. Gather can
  // replace the other values by the lowest finite float. A row with a NaN or an infinity still has
  // a NaN or an infinity in `whole`.
  std::span<const int32_t> num_candidates = {};
  const float* part = nullptr;  // [num_rows, widths[rank]]
  float* whole = nullptr;       // [num_rows, sum of widths], on rank 0
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_COLLECTIVE_H_
