// CheckLinearSource is every backend's check of the source of a linear layer.
//
// Thread safety: a free function.
#ifndef QUIRE_KERNELS_API_LINEAR_SOURCE_H_
#define QUIRE_KERNELS_API_LINEAR_SOURCE_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/api/dense.h"

namespace quire {

// Shape of the matrix that the parts form, stacked by rows.
struct LinearShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

// Errors: kInvalidArgument, reason LINEAR_SHAPE, if there is no part, a part is empty, parts
// disagree on their columns, num_segments is not 1, 2, 4 or 8 or does not divide the columns, or
// a given bias does not have one value for each row.
absl::StatusOr<LinearShape> CheckLinearSource(const LinearSource& source);

}  // namespace quire

#endif  // QUIRE_KERNELS_API_LINEAR_SOURCE_H_
