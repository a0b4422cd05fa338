#include "kernels/cpu/packed_codes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "common/base/math.h"
#include "common/model/half_float.h"
#include "kernels/api/dequantize.h"
#include "kernels/api/weight_block.h"
#include "kernels/cpu/code_format.h"

namespace quire {
namespace {

constexpr int kQuads = kGroupWeights / 4;  // 32-bit words of a group, of four codes each

using GroupCodes = std::array<uint32_t, kQuads>;

constexpr uint32_t InAllBytes(uint32_t byte) { return byte * 0x01010101U; }

// Element code + 128 is the index of the code in kIq4Codes. All other elements are 0.
constexpr std::array<uint8_t, 256> kIq4Indices = [] {
  std::array<uint8_t, 256> indices = {};
  for (size_t i = 0; i < kIq4Codes.size(); ++i) {
    indices[static_cast<size_t>(kIq4Codes[i] + 128)] = static_cast<uint8_t>(i);
  }
  return indices;
}();

// Converts a group's WeightBlock::codes to packed codes (code + zero_point, or the index in
// kIq4Codes), four in a word.
GroupCodes PackedCodesOf(const CodeFormat& format, const int8_t* codes) {
  std::array<uint8_t, kGroupWeights> bytes;
  for (size_t k = 0; k < kGroupWeights; ++k) {
    bytes[k] = format.is_table ? kIq4Indices[static_cast<size_t>(codes[k] + 128)]
                               : static_cast<uint8_t>(codes[k] + format.zero_point);
  }
  GroupCodes words;
  std::memcpy(words.data(), bytes.data(), sizeof(words));
  return words;
}

// Writes the codes of one column of a group. `to` is the column's word in the group's first vector.
// The column's words in the next vectors follow every `stride` bytes.
void StoreCodes(const CodeFormat& format, const GroupCodes& codes, int64_t stride, uint8_t* to) {
  const auto store = [&](int64_t vector, uint32_t word) {
    std::memcpy(to + vector * stride, &word, sizeof(word));
  };
  if (format.bits == 8) {
    for (size_t i = 0; i < kQuads; ++i) {
      store(static_cast<int64_t>(i), codes[i]);
    }
    return;
  }
  for (size_t n = 0; n < kQuads / 2; ++n) {
    store(static_cast<int64_t>(n),
          (codes[n] & InAllBytes(0xF)) | (codes[n + kQuads / 2] & InAllBytes(0xF)) << 4);
  }
  if (format.bits == 5) {
    uint32_t plane = 0;
    for (size_t i = 0; i < kQuads; ++i) {
      plane |= (codes[i] >> 4 & InAllBytes(1)) << i;
    }
    store(4, plane);
  } else if (format.bits == 6) {
    for (size_t half = 0; half < 2; ++half) {
      uint32_t plane = 0;
      for (size_t i = 0; i < kQuads / 2; ++i) {
        plane |= (codes[4 * half + i] >> 4 & InAllBytes(3)) << (2 * i);
      }
      store(static_cast<int64_t>(4 + half), plane);
    }
  }
}

// The inverse of StoreCodes and PackedCodesOf. Returns codes as WeightBlock::codes has them.
std::array<int8_t, kGroupWeights> LoadCodes(const CodeFormat& format,
                                            int64_t stride,
                                            const uint8_t* from) {
  std::array<int8_t, kGroupWeights> codes;
  for (int k = 0; k < kGroupWeights; ++k) {
    const int quad = k / 4;
    const auto byte = [&](int vector) { return from[vector * stride + k % 4]; };
    if (format.bits == 8) {
      codes[static_cast<size_t>(k)] = static_cast<int8_t>(byte(quad));
      continue;
    }
    int code = byte(quad % 4) >> (quad < 4 ? 0 : 4) & 0xF;
    if (format.bits == 5) {
      code |= (byte(4) >> quad & 1) << 4;
    } else if (format.bits == 6) {
      code |= (byte(4 + quad / 4) >> (2 * (quad % 4)) & 3) << 4;
    }
    codes[static_cast<size_t>(k)] = format.is_table ? kIq4Codes[static_cast<size_t>(code)]
                                                    : static_cast<int8_t>(code - format.zero_point);
  }
  return codes;
}

int64_t CodeBytesPerColumn(const CodeFormat& format) { return kGroupWeights * format.bits / 8; }

void StoreHalf(uint8_t* to, float value) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(to, &half, sizeof(half));
}

float LoadHalf(const uint8_t* from) {
  uint16_t half = 0;
  std::memcpy(&half, from, sizeof(half));
  return HalfToFloat(half);
}

}  // namespace

PackedCodes::PackedCodes(const MatrixView& view, int lanes_of_panel)
    : format(view.format), rows(view.rows), cols(view.cols), lanes(lanes_of_panel) {
  const CodeFormat code = CodeFormatOf(format);
  num_panels = DivCeil(rows, lanes);
  num_groups = cols / kGroupWeights;
  first_group = view.skipped_cols / kGroupWeights;
  header_bytes = int64_t{lanes} * (code.has_minimum ? 4 : 2);
  group_bytes = lanes * (CodeBytesPerColumn(code) + code.scales_per_group +
                         (code.has_minimum && code.scales_per_group > 0 ? 1 : 0));
  block_bytes = header_bytes + code.groups_per_block * group_bytes;
  const int64_t end = first_group + num_groups;
  const int64_t left = end % code.groups_per_block;
  panel_bytes = end / code.groups_per_block * block_bytes +
                (left > 0 ? header_bytes + left * group_bytes : 0);
}

std::optional<int64_t> PackedCodes::NumBytes() const {
  return CheckedMultiply(num_panels, panel_bytes);
}

void PackedCodes::PackPanel(const MatrixView& rows_of_panel, int64_t p) {
  const CodeFormat code = CodeFormatOf(format);
  uint8_t* const panel = data + p * panel_bytes;
  if (rows_of_panel.rows < lanes) {
    std::memset(panel, 0, static_cast<size_t>(panel_bytes));
  }
  const WeightFormatInfo& info = InfoOf(format);
  const int64_t first_block = first_group / code.groups_per_block;
  const int64_t end_group = first_group + num_groups;
  const int64_t end_block = DivCeil(end_group, code.groups_per_block);
  const int64_t vector_bytes = int64_t{4} * lanes;
  const auto* from = static_cast<const std::byte*>(rows_of_panel.data);
  WeightBlock block;
  for (int64_t column = 0; column < rows_of_panel.rows; ++column) {
    for (int64_t b = first_block; b < end_block; ++b, from += info.block_bytes) {
      UnpackBlock(format, from, block);
      uint8_t* const header = panel + b * block_bytes;
      StoreHalf(header + 2 * column, block.scale);
      if (code.has_minimum) {
        StoreHalf(header + 2 * (lanes + column), -block.minimum);
      }
      const int64_t begin = std::max(first_group - b * code.groups_per_block, int64_t{0});
      const int64_t end =
          std::min<int64_t>(end_group - b * code.groups_per_block, code.groups_per_block);
      for (int64_t g = begin; g < end; ++g) {
        uint8_t* const group = header + header_bytes + g * group_bytes;
        StoreCodes(code,
                   PackedCodesOf(code, block.codes.data() + g * kGroupWeights),
                   vector_bytes,
                   group + 4 * column);
        uint8_t* after = group + lanes * CodeBytesPerColumn(code) + column;
        for (int s = 0; s < code.scales_per_group; ++s, after += lanes) {
          *after = static_cast<uint8_t>(
              block.group_scales[static_cast<size_t>(g * code.scales_per_group + s)]);
        }
        if (code.has_minimum && code.scales_per_group > 0) {
          *after = block.group_minimums[static_cast<size_t>(g)];
        }
      }
    }
  }
}

void PackedCodes::WidenRow(int64_t row, float* out) const {
  const CodeFormat code = CodeFormatOf(format);
  const uint8_t* const panel = data + row / lanes * panel_bytes;
  const int64_t column = row % lanes;
  for (int64_t g = 0; g < num_groups; ++g, out += kGroupWeights) {
    const int64_t at = first_group + g;
    const uint8_t* const header = panel + at / code.groups_per_block * block_bytes;
    const uint8_t* const group = header + header_bytes + at % code.groups_per_block * group_bytes;
    const auto codes = LoadCodes(code, int64_t{4} * lanes, group + 4 * column);
    const float scale = LoadHalf(header + 2 * column);
    const float added = code.has_minimum ? LoadHalf(header + 2 * (lanes + column)) : 0.0F;
    const uint8_t* const after = group + lanes * CodeBytesPerColumn(code) + column;
    const float minimum = !code.has_minimum            ? 0.0F
                          : code.scales_per_group == 0 ? added
                                                       : added * static_cast<float>(after[lanes]);
    for (int k = 0; k < kGroupWeights; ++k) {
      const int half = code.scales_per_group == 2 ? k / (kGroupWeights / 2) : 0;
      const float factor =
          code.scales_per_group == 0
              ? scale
              : scale * static_cast<float>(static_cast<int8_t>(after[int64_t{half} * lanes]));
      const float value = factor * static_cast<float>(codes[static_cast<size_t>(k)]);
      out[k] = code.has_minimum ? value + minimum : value;
    }
  }
}

void DequantizeRow(const MatrixView& table, int64_t row, const float* addend, float* out) {
  const WeightFormatInfo& info = InfoOf(table.format);
  const auto* from = static_cast<const std::byte*>(table.data) + row * RowBytes(table);
  std::array<float, WeightBlock::kMaxWeights> weights;
  const auto block = std::span(weights).first(static_cast<size_t>(info.block_weights));
  for (int64_t d = 0; d < table.cols; d += info.block_weights, from += info.block_bytes) {
    Dequantize(table.format, {from, static_cast<size_t>(info.block_bytes)}, block);
    const int64_t count = std::min<int64_t>(info.block_weights, table.cols - d);
    for (int64_t i = 0; i < count; ++i) {
      const float weight = weights[static_cast<size_t>(i)];
      out[d + i] = addend == nullptr ? weight : addend[d + i] + weight;
    }
  }
}

}  // namespace quire
