#include "worker/model/matrix_rows.h"

#include <utility>

#include "common/base/status_macros.h"

namespace quire {

MatrixRows::MatrixRows(const TensorSource& source,
                       TensorGroup matrices,
                       std::function<void(int64_t bytes)> tick)
    : source_(source), matrices_(std::move(matrices)), tick_(std::move(tick)) {}

absl::Status MatrixRows::Read(size_t part, int64_t first_row, std::span<std::byte> buffer) const {
  const TensorShape& matrix = matrices_[part];
  const int64_t begin = first_row * RowBytes(PartOf(matrix, source_.format(matrix.name)));
  const int64_t before =
      bytes_begun_.fetch_add(static_cast<int64_t>(buffer.size()), std::memory_order_relaxed);
  QUIRE_RETURN_IF_ERROR(source_.Read(matrix, begin, buffer));
  if (std::this_thread::get_id() == caller_) {
    tick_(before);
  }
  return absl::OkStatus();
}

}  // namespace quire
