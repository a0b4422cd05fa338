#include "kernels/api/linear_source.h"

#include <string>

#include "common/base/error.h"

namespace quire {
namespace {

absl::Status ShapeError(const std::string& rule, int64_t got, int64_t need) {
  return InvalidArgument(
      "LINEAR_SHAPE",
      "linear." + rule + " (got " + std::to_string(got) + ", need " + std::to_string(need) + ")");
}

}  // namespace

absl::StatusOr<LinearShape> CheckLinearSource(const LinearSource& source) {
  if (source.parts.empty()) {
    return InvalidArgument("LINEAR_SHAPE", "linear.parts: must not be empty");
  }
  LinearShape shape{.cols = source.parts.front().cols};
  for (const MatrixView& part : source.parts) {
    if (part.rows <= 0 || part.cols <= 0) {
      return InvalidArgument("LINEAR_SHAPE", "linear.parts: must have rows and columns");
    }
    if (part.cols != shape.cols) {
      return ShapeError("parts: must have the same number of columns", part.cols, shape.cols);
    }
    shape.rows += part.rows;
  }
  if (source.num_segments < 1 || kTreeSegments % source.num_segments != 0) {
    return ShapeError("num_segments: must be 1, 2, 4 or 8", source.num_segments, kTreeSegments);
  }
  if (shape.cols % source.num_segments != 0) {
    return ShapeError(
        "parts: columns must be a multiple of the segments", shape.cols, source.num_segments);
  }
  const auto bias = static_cast<int64_t>(source.bias.size());
  if (bias != 0 && bias != shape.rows) {
    return ShapeError("bias: must have one value for each row", bias, shape.rows);
  }
  return shape;
}

}  // namespace quire
