#include "worker/model/quantized_tensors.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/status_macros.h"
#include "common/model/half_float.h"
#include "worker/model/stored_codes.h"
#include "worker/model/weights_sum.h"

namespace quire {
namespace {

constexpr int64_t kBytesOfWeight = SizeOf(DType::kBF16);

void WriteBf16(std::span<const float> from, std::span<std::byte> out) {
  for (size_t i = 0; i < from.size(); ++i) {
    const uint16_t bits = FloatToBFloat16(from[i]);
    std::memcpy(out.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
}

// Decodes adjacent weights of one row of the strip, from column `col` on.
void DecodeToBf16(const WeightStrip& strip, int64_t row, int64_t col, std::span<std::byte> out) {
  std::array<float, 1024> weights = {};
  while (!out.empty()) {
    const size_t count = std::min(weights.size(), out.size() / kBytesOfWeight);
    const auto some = std::span(weights).first(count);
    DecodeRow(strip, row, col, some);
    WriteBf16(some, out);
    out = out.subspan(count * kBytesOfWeight);
    col += static_cast<int64_t>(count);
  }
}

}  // namespace

int64_t QuantizedTensors::num_tensors() const {
  return others_.num_tensors() - static_cast<int64_t>(matrices_.names().size()) +
         matrices_.num_matrices();
}

int64_t QuantizedTensors::num_bytes() const {
  return others_.num_bytes() - matrices_.file_bytes() + matrices_.decoded_bytes();
}

WeightFormat QuantizedTensors::format(const std::string& name) const {
  return matrices_.Find(name) != nullptr ? WeightFormat::kBF16 : others_.format(name);
}

uint64_t QuantizedTensors::weights_sum() const {
  return others_.weights_sum() + sum_.load(std::memory_order_relaxed);
}

absl::StatusOr<StripCache::StripPtr> QuantizedTensors::StripAt(const QuantizedMatrix& matrix,
                                                               const TensorShape& tensor,
                                                               Slice rows) const {
  return strips_.Get({.matrix = &matrix, .first_row = rows.begin},
                     rows.count * tensor.held_cols.count,
                     [&] { return matrix.Load(rows, tensor.held_cols); });
}

absl::Status QuantizedTensors::Read(const TensorShape& tensor,
                                    int64_t begin,
                                    std::span<std::byte> out) const {
  const QuantizedMatrix* const matrix = matrices_.Find(tensor.name);
  if (matrix == nullptr) {
    return others_.Read(tensor, begin, out);
  }
  const int64_t cols = tensor.held_cols.count;
  const int64_t end_row = tensor.held_rows.begin + tensor.held_rows.count;
  const int64_t strip_rows = matrix->StripRows(cols);
  // The first strip begins at or before the rank's first row, at a multiple of kStripAlignment.
  const int64_t origin = tensor.held_rows.begin / kStripAlignment * kStripAlignment;
  const WeightsSum sum(tensor.name);
  const bool is_counted = !not_counted_.contains(tensor.name);
  StripCache::StripPtr strip;
  Slice rows;
  uint64_t added = 0;
  int64_t index = begin / kBytesOfWeight;  // of a weight in the rank's part
  while (!out.empty()) {
    const int64_t row = tensor.held_rows.begin + index / cols;
    const int64_t col = index % cols;
    if (strip == nullptr || row >= rows.begin + rows.count) {
      rows.begin = origin + (row - origin) / strip_rows * strip_rows;
      rows.count = std::min(strip_rows, end_row - rows.begin);
      QUIRE_ASSIGN_OR_RETURN(strip, StripAt(*matrix, tensor, rows));
    }
    const int64_t count = std::min(cols - col, static_cast<int64_t>(out.size()) / kBytesOfWeight);
    const auto part = out.first(static_cast<size_t>(count * kBytesOfWeight));
    DecodeToBf16(*strip, row - rows.begin, col, part);
    const int64_t at = row * tensor.cols + tensor.held_cols.begin + col;
    added += is_counted ? sum.Of(at * kBytesOfWeight, part) : 0;
    out = out.subspan(part.size());
    index += count;
  }
  sum_.fetch_add(added, std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace quire
