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

// The 16 values that a code of IQ4_NL or IQ4_XS can have, ascending.
inline constexpr CodeTable kIq4Codes = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Weight i, in group g = i / group_weights, is
//
//     (scale * group_scales[g]) * codes[i] - minimum * group_minimums[g]
//
// where each operation rounds to fp32. Formats without group scales have group_scales 1. Formats
// without minimums have minimum and group_minimums 0. Q4_1 and Q5_1 have group_minimums 1.
struct WeightBlock {
  static constexpr int32_t kMaxWeights = 256;
  static constexpr int32_t kMaxGroups = 16;

  // [block_weights], in the order of the row. Later elements are undefined. IQ4_NL and IQ4_XS have
  // values of kIq4Codes, MXFP4 has twice the value of e2m1.
  std::array<int8_t, kMaxWeights> codes;
  std::array<int8_t, kMaxGroups> group_scales;  // [block_weights / group_weights]
  std::array<uint8_t, kMaxGroups> group_minimums;
  // The binary16 number in the file, widened, so FloatToHalf restores its bits. MXFP4: a power of
  // two, half of the scale in the file, since codes are doubled.
  float scale;
  // Q4_1, Q5_1: the file's number, negated, because these formats add their minimum.
  float minimum;
};

// Decodes one block. `from` needs no alignment. Does not check that scales are finite:
// FirstNotFiniteBlock (weight_check.h) does. REQUIRES: format is quantized.
void UnpackBlock(WeightFormat format, const std::byte* from, WeightBlock& block);

}  // namespace quire

#endif  // QUIRE_KERNELS_API_WEIGHT_BLOCK_H_
