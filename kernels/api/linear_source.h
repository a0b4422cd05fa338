// CheckLinearSource: the rule for what a linear layer may be made of, the same on every backend.
//
// Thread safety: a free function.
#ifndef QUIRE_KERNELS_API_LINEAR_SOURCE_H_
#define QUIRE_KERNELS_API_LINEAR_SOURCE_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/api/dense.h"

namespace quire {

// Of the matrix that the parts make, one below the other.
struct LinearShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

// Errors: kInvalidArgument, reason LINEAR_SHAPE, when there is no part, a part is empty, the parts
// disagree on their columns, the segments do not divide these or are not 1, 2, 4 or 8, or the bias
// has another length.
absl::StatusOr<LinearShape> CheckLinearSource(const LinearSource& source);

}  // namespace quire

#endif  // QUIRE_KERNELS_API_LINEAR_SOURCE_H_
