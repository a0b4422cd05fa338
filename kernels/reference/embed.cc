#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/math.h"
#include "kernels/api/dequantize.h"
#include "kernels/reference/reference_ops.h"

namespace quire::reference {
namespace {

std::vector<float> RowOf(const MatrixView& table, int64_t row) {
  const auto bytes = static_cast<size_t>(RowBytes(table));
  const auto* from = static_cast<const std::byte*>(table.data) + row * RowBytes(table);
  std::vector<float> weights(
      static_cast<size_t>(RoundUp(table.cols, InfoOf(table.format).block_weights)));
  Dequantize(table.format, {from, bytes}, weights);
  return weights;
}

}  // namespace

void Embed(const EmbeddingParams& p) {
  int64_t width = p.table.cols;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const int64_t row = int64_t{p.token_ids[t]} - p.first_token;
    const bool has_row = row >= 0 && row < p.table.rows;
    std::vector<float> values(static_cast<size_t>(width));
    if (has_row) {
      values = RowOf(p.table, row);
    }
    if (p.position_table.data != nullptr) {
      const std::vector<float> learned =
          RowOf(p.position_table, int64_t{p.positions[t]} + p.position_offset);
      for (size_t d = 0; d < static_cast<size_t>(width); ++d) {
        values[d] += learned[d];
      }
    }
    std::copy_n(values.begin(), width, static_cast<float*>(p.out) + t * width);
  }
}

}  // namespace quire::reference
