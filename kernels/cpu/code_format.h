// CodeFormat says how the weights of a quantized WeightFormat are packed for the CPU's integer
// products (packed_codes.h).
//
// Thread safety: value types.
#ifndef QUIRE_KERNELS_CPU_CODE_FORMAT_H_
#define QUIRE_KERNELS_CPU_CODE_FORMAT_H_

#include <cstdint>

#include "kernels/api/weight_format.h"

namespace quire {

// Weights of a group along a row. The inputs of a group are rounded with one scale.
inline constexpr int kGroupWeights = kInputGroup;

// A weight is scale * (code - zero_point) - minimum, or scale * kIq4Codes[code] if is_table, with
// the scale and minimum of the weight's group.
struct CodeFormat {
  int bits = 0;              // 4, 5 or 6: unsigned codes. 8: signed codes. 0: no kernel on the CPU
  bool is_table = false;     // the codes are indices into kIq4Codes
  int zero_point = 0;        // subtracted from unsigned codes
  int groups_per_block = 1;  // groups that share one binary16 scale (and minimum)
  // Number of integer factors of the binary16 scale in each group: 1, 2 (one for each half of the
  // group), or 0.
  int scales_per_group = 0;
  bool has_minimum = false;

  // Returns how many integer sums a group has per row: 2 if its halves have different scales.
  constexpr int num_sums() const { return scales_per_group == 2 ? 2 : 1; }
};

constexpr CodeFormat CodeFormatOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return {.bits = 4, .zero_point = 8};
    case WeightFormat::kQ4_1:
      return {.bits = 4, .has_minimum = true};
    case WeightFormat::kQ5_0:
      return {.bits = 5, .zero_point = 16};
    case WeightFormat::kQ5_1:
      return {.bits = 5, .has_minimum = true};
    case WeightFormat::kQ8_0:
      return {.bits = 8};
    case WeightFormat::kQ4K:
      return {.bits = 4, .groups_per_block = 8, .scales_per_group = 1, .has_minimum = true};
    case WeightFormat::kQ5K:
      return {.bits = 5, .groups_per_block = 8, .scales_per_group = 1, .has_minimum = true};
    case WeightFormat::kQ6K:
      return {.bits = 6, .zero_point = 32, .groups_per_block = 8, .scales_per_group = 2};
    case WeightFormat::kIq4Nl:
      return {.bits = 4, .is_table = true};
    case WeightFormat::kIq4Xs:
      return {.bits = 4, .is_table = true, .groups_per_block = 8, .scales_per_group = 1};
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kQ2K:
    case WeightFormat::kQ3K:
    case WeightFormat::kMxfp4:
      break;
  }
  return {};
}

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_CODE_FORMAT_H_
