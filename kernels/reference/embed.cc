#include "kernels/reference/element.h"
#include "kernels/reference/reference_ops.h"

namespace quire::reference {

void Embed(const EmbeddingParams& p) {
  int64_t width = p.table.cols;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const int64_t row = int64_t{p.token_ids[t]} - p.first_token;
    const bool has_row = row >= 0 && row < p.table.rows;
    for (int64_t d = 0; d < width; ++d) {
      float value = has_row ? LoadElement(p.table.data, p.table.dtype, row * width + d) : 0.0F;
      if (p.position_table.data != nullptr) {
        int64_t position = int64_t{p.positions[t]} + p.position_offset;
        value += LoadElement(p.position_table.data, p.position_table.dtype, position * width + d);
      }
      static_cast<float*>(p.out)[t * width + d] = value;
    }
  }
}

}  // namespace quire::reference
