// CheckLinearSource is every backend's check of the source of a linear layer.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_API_LINEAR_SOURCE_H_
#define QUIRE_KERNELS_API_LINEAR_SOURCE_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/api/dense.h"

namespace quire {

// Shape of the whole matrix of a LinearSource: its parts, stacked by rows.
struct LinearShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

// Errors: kInvalidArgument, reason LINEAR_SHAPE, in each of these cases: there is no part; a part
// is empty; the parts differ in their columns; num_segments is not 1, 2, 4 or 8; num_segments does
// not divide the columns; a bias is given whose size is not the number of rows.
absl::StatusOr<LinearShape> CheckLinearSource(const LinearSource& source);

}  // namespace quire

#endif  // QUIRE_KERNELS_API_LINEAR_SOURCE_H_
