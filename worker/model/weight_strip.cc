#include "worker/model/weight_strip.h"

#include <algorithm>

#include "common/model/half_float.h"

namespace quire {
namespace {

// Returns the value of an e4m3 code. fp16 has one more exponent bit than e4m3, and an exponent bias
// larger by 8. So e4m3's bits, shifted into place, are an fp16 number that is 2^8 too small.
// REQUIRES: the code is not NaN.
float Float8ToFloat(uint8_t code) {
  return HalfToFloat(static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7F) << 7)) * 0x1p8F;
}

}  // namespace

void DecodeRow(const WeightStrip& strip, int64_t row, int64_t first_col, std::span<float> out) {
  const uint8_t* const codes = strip.codes.data() + row * strip.cols;
  const int64_t end_col = first_col + static_cast<int64_t>(out.size());
  float* const to = out.data() - first_col;
  auto run = std::upper_bound(
      strip.runs.begin(), strip.runs.end(), first_col, [](int64_t col, const auto& r) {
        return col < r.end;
      });
  for (; run != strip.runs.end() && run->begin < end_col; ++run) {
    const int64_t begin = std::max(run->begin, first_col);
    const int64_t end = std::min(run->end, end_col);
    const auto at = static_cast<size_t>(row * strip.groups + run->group);
    const float scale = strip.scales[at];
    if (strip.has_float_codes) {
      for (int64_t col = begin; col < end; ++col) {
        to[col] = Float8ToFloat(codes[col]) * scale;
      }
      continue;
    }
    const int32_t zero = strip.zeros[at];
    for (int64_t col = begin; col < end; ++col) {
      to[col] = static_cast<float>(codes[col] - zero) * scale;
    }
  }
}

}  // namespace quire
