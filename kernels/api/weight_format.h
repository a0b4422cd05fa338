// WeightFormat is a storage format of weights that this server can decode. A row of weights is a
// sequence of weight blocks of one format. A block is 1, 32 or 256 weights with their scales.
//
// A quantized format has groups of consecutive weights inside a block. Each weight is
//
//     (scale * group_scale) * code - minimum * group_minimum
//
// where code, group_scale and group_minimum are integers. weight_block.h extracts the factors.
//
// Thread safety: value types.
// Source:        ggml's enum ggml_type and block structures; MXFP4: Open Compute Project,
//                Microscaling Formats 1.0.
#ifndef QUIRE_KERNELS_API_WEIGHT_FORMAT_H_
#define QUIRE_KERNELS_API_WEIGHT_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/math.h"
#include "common/model/dtype.h"

namespace quire {

// The values are ggml's numbers for the formats in GGUF files.
// NOLINTBEGIN(readability-identifier-naming): the underscore is part of ggml's names
enum class WeightFormat : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBF16 = 30,
  kMxfp4 = 39,
};
// NOLINTEND(readability-identifier-naming)

// Products of quantized weights round their inputs in groups of this size. So the columns of a
// quantized matrix on each rank must be whole groups.
inline constexpr int32_t kInputGroup = 32;

struct WeightFormatInfo {
  WeightFormat format = WeightFormat::kF32;
  std::string_view name;      // ggml's name
  int32_t block_weights = 1;  // weights of a block
  int32_t block_bytes = 0;    // bytes of a block
  int32_t group_weights = 0;  // weights of a group; 0: the format is not quantized
};

// All formats, ascending by the value of WeightFormat.
inline constexpr std::array<WeightFormatInfo, 16> kWeightFormats = {{
    {WeightFormat::kF32, "F32", 1, 4, 0},
    {WeightFormat::kF16, "F16", 1, 2, 0},
    {WeightFormat::kQ4_0, "Q4_0", 32, 18, 32},
    {WeightFormat::kQ4_1, "Q4_1", 32, 20, 32},
    {WeightFormat::kQ5_0, "Q5_0", 32, 22, 32},
    {WeightFormat::kQ5_1, "Q5_1", 32, 24, 32},
    {WeightFormat::kQ8_0, "Q8_0", 32, 34, 32},
    {WeightFormat::kQ2K, "Q2_K", 256, 84, 16},
    {WeightFormat::kQ3K, "Q3_K", 256, 110, 16},
    {WeightFormat::kQ4K, "Q4_K", 256, 144, 32},
    {WeightFormat::kQ5K, "Q5_K", 256, 176, 32},
    {WeightFormat::kQ6K, "Q6_K", 256, 210, 16},
    {WeightFormat::kIq4Nl, "IQ4_NL", 32, 18, 32},
    {WeightFormat::kIq4Xs, "IQ4_XS", 256, 136, 32},
    {WeightFormat::kBF16, "BF16", 1, 2, 0},
    {WeightFormat::kMxfp4, "MXFP4", 32, 17, 32},
}};

constexpr const WeightFormatInfo& InfoOf(WeightFormat format) {
  size_t index = 0;
  while (kWeightFormats[index].format != format) {
    ++index;
  }
  return kWeightFormats[index];
}

constexpr std::string_view NameOf(WeightFormat format) { return InfoOf(format).name; }

constexpr bool IsQuantized(WeightFormat format) { return InfoOf(format).group_weights != 0; }

// Returns the format of unquantized weights of this type. REQUIRES: dtype is kF32, kF16 or kBF16.
constexpr WeightFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return WeightFormat::kF16;
    case DType::kBF16:
      return WeightFormat::kBF16;
    default:
      return WeightFormat::kF32;
  }
}

// Returns the type of an unquantized format's weights. REQUIRES: !IsQuantized(format).
constexpr DType PlainTypeOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF16:
      return DType::kF16;
    case WeightFormat::kBF16:
      return DType::kBF16;
    default:
      return DType::kF32;
  }
}

// Returns the format with ggml's number, or nullopt if this server cannot decode that type.
constexpr std::optional<WeightFormat> WeightFormatFromNumber(uint32_t number) {
  for (const WeightFormatInfo& info : kWeightFormats) {
    if (static_cast<uint32_t>(info.format) == number) {
      return info.format;
    }
  }
  return std::nullopt;
}

// Returns the bytes of num_weights weights, or nullopt if the weights are not whole blocks or if
// the number of bytes overflows. REQUIRES: num_weights >= 0.
inline std::optional<int64_t> NumBytes(WeightFormat format, int64_t num_weights) {
  const WeightFormatInfo& info = InfoOf(format);
  if (num_weights % info.block_weights != 0) {
    return std::nullopt;
  }
  return CheckedMultiply(num_weights / info.block_weights, info.block_bytes);
}

}  // namespace quire

#endif  // QUIRE_KERNELS_API_WEIGHT_FORMAT_H_
