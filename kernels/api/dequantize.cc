#include "kernels/api/dequantize.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/model/half_float.h"
#include "kernels/api/weight_block.h"

namespace quire {
namespace {

template <typename Widen>
void Widen16(const std::byte* from, std::span<float> out, Widen widen) {
  // A plain pointer, since the span's bounds checks would keep compilers from vectorizing.
  float* numbers = out.data();
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    numbers[i] = widen(bits);
  }
}

template <size_t group_weights>
void DequantizeBlock(const WeightBlock& block, std::span<float> out) {
  for (size_t g = 0; g < out.size() / group_weights; ++g) {
    const float scale = block.scale * static_cast<float>(block.group_scales[g]);
    const float minimum = block.minimum * static_cast<float>(block.group_minimums[g]);
    const int8_t* codes = &block.codes[g * group_weights];
    float* weights = &out[g * group_weights];
    for (size_t i = 0; i < group_weights; ++i) {
      weights[i] = scale * static_cast<float>(codes[i]) - minimum;
    }
  }
}

void DequantizeBlocks(WeightFormat format, const std::byte* from, std::span<float> out) {
  const WeightFormatInfo& info = InfoOf(format);
  const auto block_weights = static_cast<size_t>(info.block_weights);
  WeightBlock block;
  for (; !out.empty(); out = out.subspan(block_weights), from += info.block_bytes) {
    UnpackBlock(format, from, block);
    if (info.group_weights == 16) {
      DequantizeBlock<16>(block, out.first(block_weights));
    } else {
      DequantizeBlock<32>(block, out.first(block_weights));
    }
  }
}

}  // namespace

void Dequantize(WeightFormat format, std::span<const std::byte> from, std::span<float> out) {
  QUIRE_CHECK(NumBytes(format, std::ssize(out)) == std::ssize(from));
  switch (format) {
    case WeightFormat::kF32:
      if (!from.empty()) {
        std::memcpy(out.data(), from.data(), from.size());
      }
      return;
    case WeightFormat::kF16:
      return Widen16(from.data(), out, HalfToFloat);
    case WeightFormat::kBF16:
      return Widen16(from.data(), out, [](uint16_t bits) {
        return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      });
    default:
      return DequantizeBlocks(format, from.data(), out);
  }
}

}  // namespace quire
