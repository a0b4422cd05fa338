// WeightBlock is a decoded weight block of a quantized format: integers and their common factors.
//
// Thread safety: a value type and free functions, safe from any thread.
// Source:        as weight_format.h.
#ifndef QUIRE_KERNELS_API_WEIGHT_BLOCK_H_
#define QUIRE_KERNELS_API_WEIGHT_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/api/weight_format.h"

namespace quire {

using CodeTable = std::array<int8_t, 16>;

// The codes of IQ4_NL and IQ4_XS, ascending.
inline constexpr CodeTable kIq4Codes = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Weight i, in group g = i / group_weights, is
//
//     (scale * group_scales[g]) * codes[i] - minimum * group_minimums[g]
//
// where each operation is one of fp32. Formats without minimums have minimum 0. Factors that a
// format lacks are 1.
struct WeightBlock {
  static constexpr int32_t kMaxWeights = 256;
  static constexpr int32_t kMaxGroups = 16;

  // [block_weights], in the order of the row. The later elements have no meaning.
  // IQ4_NL, IQ4_XS: values of their table, -127 to 113. MXFP4: twice the value of e2m1.
  std::array<int8_t, kMaxWeights> codes;
  std::array<int8_t, kMaxGroups> group_scales;  // [block_weights / group_weights]
  std::array<uint8_t, kMaxGroups> group_minimums;
  // Exactly as in the file: of binary16, so FloatToHalf restores the bits. MXFP4: a power of two,
  // half of the scale in the file, since codes are doubled.
  float scale;
  // Q4_1, Q5_1: as in the file, negated, because these formats add their minimum.
  float minimum;
};

// Reads one block. `from` needs no alignment. A scale that is not finite is passed on;
// FirstNotFiniteBlock (weight_check.h) finds it. REQUIRES: format is quantized.
void UnpackBlock(WeightFormat format, const std::byte* from, WeightBlock& block);

}  // namespace quire

#endif  // QUIRE_KERNELS_API_WEIGHT_BLOCK_H_
