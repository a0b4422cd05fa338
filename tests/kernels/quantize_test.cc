// Quantize against ggml's Python package (testdata/gguf_quantized.bin), and at its limits.
#include "kernels/api/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/api/dequantize.h"
#include "kernels/api/weight_check.h"
#include "kernels/api/weight_format.h"
#include "tests/kernels/gguf_golden.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_0};

std::vector<std::byte> Quantized(WeightFormat format, const std::vector<float>& weights) {
  std::vector<std::byte> blocks(static_cast<size_t>(NumBytes(format, std::ssize(weights)).value()));
  Quantize(format, weights, blocks);
  return blocks;
}

// The codes of a block, which follow a scale of 2 bytes.
std::vector<std::byte> CodesOf(WeightFormat format, const std::vector<float>& block_weights) {
  const std::vector<std::byte> block = Quantized(format, block_weights);
  return {block.begin() + 2, block.end()};
}

std::vector<float> Restored(WeightFormat format, const std::vector<float>& weights) {
  std::vector<float> restored(weights.size());
  Dequantize(format, Quantized(format, weights), restored);
  return restored;
}

TEST(QuantizeTest, BlocksHaveTheBytesOfGgmlsPackage) {
  const std::vector<GgufGolden> goldens = ReadGgufGoldens("gguf_quantized.bin");
  ASSERT_EQ(goldens.size(), 2U);
  for (const GgufGolden& golden : goldens) {
    SCOPED_TRACE(golden.name);
    ASSERT_GE(golden.weights.size(), 11U * 32);
    EXPECT_EQ(Quantized(WeightFormatFromNumber(golden.number).value(), golden.weights),
              golden.blocks);
  }
}

// A step is the scale of a block: its greatest weight divided by 127, or by 8. Q4_0 has no code 8,
// so weights between 7.5 and 8 steps are off by up to one step.
TEST(QuantizeTest, RestoredWeightsAreOffByHalfAStepInQ80AndAStepInQ40) {
  Random random(1);
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(std::string(NameOf(format)));
    const bool is_q80 = format == WeightFormat::kQ8_0;
    double worst = 0;
    for (int round = 0; round < 200; ++round) {
      std::vector<float> weights(32);
      double greatest = 0;
      for (float& weight : weights) {
        weight = static_cast<float>(random.Between(-1'000'000, 1'000'000)) * 1e-6F;
        greatest = std::max(greatest, std::fabs(static_cast<double>(weight)));
      }
      const std::vector<float> restored = Restored(format, weights);
      const double step = greatest / (is_q80 ? 127 : 8);
      for (size_t i = 0; i < weights.size(); ++i) {
        worst = std::max(worst, std::fabs(static_cast<double>(restored[i]) - weights[i]) / step);
      }
    }
    // The rounding of the scale to binary16 adds up to 2^-11 of a weight.
    const double rounding = (is_q80 ? 127 : 8) * 0x1p-11;
    EXPECT_LE(worst, (is_q80 ? 0.5 : 1.0) + rounding);
    EXPECT_GE(worst, (is_q80 ? 0.45 : 0.9));
  }
}

TEST(QuantizeTest, WeightsThatAreExactStepsAreRestoredExactly) {
  std::vector<float> steps(32);
  for (int i = 0; i < 32; ++i) {
    steps[static_cast<size_t>(i)] = static_cast<float>(i % 16 - 8) * 0.25F;
  }
  EXPECT_EQ(Restored(WeightFormat::kQ4_0, steps), steps);
  steps[0] = -127 * 0.25F;
  EXPECT_EQ(Restored(WeightFormat::kQ8_0, steps), steps);
}

TEST(QuantizeTest, ZeroAndTinyBlocksAreRestoredAsZero) {
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(std::string(NameOf(format)));
    // 2^-24 is the smallest scale; 1e-42 has a scale without a finite inverse.
    for (const float size : {0.0F, 1e-10F, 1e-38F, 1e-42F, 1e-45F}) {
      std::vector<float> weights(32, size);
      weights[7] = -size;
      EXPECT_EQ(FirstNotFiniteBlock(format, Quantized(format, weights)), std::nullopt) << size;
      EXPECT_THAT(Restored(format, weights), testing::Each(0.0F)) << size;
    }
  }
}

TEST(QuantizeTest, CodesAreThoseOfZeroWhereTheyCannotBeComputed) {
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(std::string(NameOf(format)));
    const std::vector<std::byte> zeros = CodesOf(format, std::vector<float>(32));
    for (const float bad : {NAN, INFINITY, -INFINITY, 1e-42F, -1e-45F}) {
      std::vector<float> weights(32, 1e-45F);
      weights[9] = bad;
      EXPECT_EQ(CodesOf(format, weights), zeros) << bad;
    }
  }
}

TEST(QuantizeTest, ABlockThatCannotBeWrittenIsNotFinite) {
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(std::string(NameOf(format)));
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 3e38F, -8.4e6F}) {
      for (const size_t place : {0, 31}) {
        std::vector<float> weights(96, 1.0F);
        weights[32 + place] = bad;
        const std::optional<int64_t> found =
            FirstNotFiniteBlock(format, Quantized(format, weights));
        EXPECT_EQ(found, 1) << bad << " at " << place;
      }
    }
  }
}

TEST(QuantizeTest, TheLargestScaleIsWritten) {
  for (const WeightFormat format : kFormats) {
    std::vector<float> weights(32, 0.0F);
    weights[3] = -65504.0F * (format == WeightFormat::kQ8_0 ? 127.0F : 8.0F);
    EXPECT_EQ(FirstNotFiniteBlock(format, Quantized(format, weights)), std::nullopt);
    EXPECT_EQ(Restored(format, weights), weights) << NameOf(format);
  }
}

}  // namespace
}  // namespace quire
