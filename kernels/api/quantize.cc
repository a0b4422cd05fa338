#include "kernels/api/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/model/half_float.h"
#include "kernels/api/weight_block_layout.h"

namespace quire {
namespace {

constexpr size_t kBlockWeights = 32;
using Weights = std::span<const float, kBlockWeights>;

// Returns the first of the weights with the greatest absolute value, or NaN if one is NaN.
float Greatest(Weights weights) {
  float greatest = 0.0F;
  for (const float weight : weights) {
    if (std::isnan(weight)) {
      return weight;
    }
    greatest = std::fabs(weight) > std::fabs(greatest) ? weight : greatest;
  }
  return greatest;
}

// Returns 1 / scale, or 0 if that is not finite: the scale is NaN or 0, or the quotient overflows.
float InverseOf(float scale) {
  const float inverse = 1.0F / scale;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

// Returns the nearest integer; halves are rounded away from 0. REQUIRES: |value| < 2^31.
int RoundAwayFromZero(float value) {
  const float magnitude = std::fabs(value);
  const auto whole = static_cast<int>(magnitude);
  const int rounded = whole + (magnitude - static_cast<float>(whole) >= 0.5F ? 1 : 0);
  return value < 0.0F ? -rounded : rounded;
}

// Returns 0 for every weight of a block without an inverse, also for weights that are not finite.
float Scaled(float weight, float inverse) { return inverse == 0.0F ? 0.0F : weight * inverse; }

Q80Block QuantizeQ80(Weights weights) {
  const float scale = std::fabs(Greatest(weights)) / 127.0F;
  const float inverse = InverseOf(scale);
  Q80Block block;
  block.scale = FloatToHalf(scale);
  for (size_t i = 0; i < kBlockWeights; ++i) {
    block.codes[i] = static_cast<int8_t>(RoundAwayFromZero(Scaled(weights[i], inverse)));
  }
  return block;
}

uint8_t NibbleOf(float weight, float inverse) {
  return static_cast<uint8_t>(std::min(15, static_cast<int>(Scaled(weight, inverse) + 8.5F)));
}

Nibbles32Block QuantizeQ40(Weights weights) {
  const float scale = Greatest(weights) / -8.0F;
  const float inverse = InverseOf(scale);
  Nibbles32Block block;
  block.scale = FloatToHalf(scale);
  for (size_t i = 0; i < kBlockWeights / 2; ++i) {
    const int low = NibbleOf(weights[i], inverse);
    const int high = NibbleOf(weights[i + kBlockWeights / 2], inverse);
    block.nibbles[i] = static_cast<uint8_t>(low | high << 4);
  }
  return block;
}

template <typename Block>
void QuantizeBlocks(Block (*quantize)(Weights), std::span<const float> weights, std::byte* out) {
  for (size_t i = 0; i < weights.size(); i += kBlockWeights, out += sizeof(Block)) {
    const Block block = quantize(weights.subspan(i).first<kBlockWeights>());
    std::memcpy(out, &block, sizeof(block));
  }
}

}  // namespace

void Quantize(WeightFormat format, std::span<const float> weights, std::span<std::byte> out) {
  QUIRE_CHECK(format == WeightFormat::kQ8_0 || format == WeightFormat::kQ4_0);
  QUIRE_CHECK(NumBytes(format, std::ssize(weights)) == std::ssize(out));
  if (format == WeightFormat::kQ8_0) {
    QuantizeBlocks(QuantizeQ80, weights, out.data());
  } else {
    QuantizeBlocks(QuantizeQ40, weights, out.data());
  }
}

}  // namespace quire
