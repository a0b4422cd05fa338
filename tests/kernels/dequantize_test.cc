// WeightFormat, UnpackBlock and Dequantize against ggml's Python package (testdata/gguf_blocks.bin)
// and against the formats' definitions.
#include "kernels/api/dequantize.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/model/ggml_type.h"
#include "common/model/half_float.h"
#include "kernels/api/weight_block.h"
#include "kernels/api/weight_format.h"
#include "tests/kernels/float_bits.h"
#include "tests/kernels/gguf_golden.h"
#include "tests/kernels/weight_blocks.h"
#include "tests/support/random.h"

namespace quire {
namespace {

std::vector<float> Dequantized(WeightFormat format, std::span<const std::byte> blocks) {
  const WeightFormatInfo& info = InfoOf(format);
  std::vector<float> weights(blocks.size() / static_cast<size_t>(info.block_bytes) *
                             static_cast<size_t>(info.block_weights));
  Dequantize(format, blocks, weights);
  return weights;
}

TEST(WeightFormatTest, EveryFormatIsTheTypeOfGgufFilesWithItsNumber) {
  for (const WeightFormatInfo& info : kWeightFormats) {
    const auto type = GgmlTypeFromNumber(static_cast<uint32_t>(info.format));
    ASSERT_TRUE(type.has_value()) << info.name;
    EXPECT_EQ(InfoOf(*type).name, info.name);
    EXPECT_EQ(InfoOf(*type).block_size, info.block_weights) << info.name;
    EXPECT_EQ(InfoOf(*type).block_bytes, info.block_bytes) << info.name;
  }
}

TEST(WeightFormatTest, NumbersNamesAndBlocksAreThoseOfGgml) {
  std::set<std::string> names;
  for (const GgufGolden& golden : ReadGgufGoldens("gguf_blocks.bin")) {
    SCOPED_TRACE(golden.name);
    const std::optional<WeightFormat> format = WeightFormatFromNumber(golden.number);
    ASSERT_TRUE(format.has_value());
    EXPECT_EQ(static_cast<uint32_t>(*format), golden.number);
    EXPECT_EQ(NameOf(*format), golden.name);
    EXPECT_EQ(InfoOf(*format).block_weights, golden.block_weights);
    EXPECT_EQ(InfoOf(*format).block_bytes, golden.block_bytes);
    names.insert(golden.name);
  }
  EXPECT_EQ(names.size(), kWeightFormats.size());
}

TEST(WeightFormatTest, OtherTypesOfGgmlHaveNoFormat) {
  std::set<uint32_t> formats;
  for (uint32_t number = 0; number < 300; ++number) {
    if (WeightFormatFromNumber(number).has_value()) {
      formats.insert(number);
    }
  }
  EXPECT_THAT(formats,
              testing::ElementsAre(0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 39));
  EXPECT_EQ(WeightFormatFromNumber(256 + 2), std::nullopt);
  EXPECT_EQ(WeightFormatFromNumber(0xFFFF'FFFF), std::nullopt);
}

TEST(WeightFormatTest, OnlyWholeBlocksHaveBytes) {
  EXPECT_EQ(NumBytes(WeightFormat::kQ4K, 512), 288);
  EXPECT_EQ(NumBytes(WeightFormat::kQ4K, 0), 0);
  EXPECT_EQ(NumBytes(WeightFormat::kQ4K, 511), std::nullopt);
  EXPECT_EQ(NumBytes(WeightFormat::kQ8_0, 16), std::nullopt);
  EXPECT_EQ(NumBytes(WeightFormat::kF16, 3), 6);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(NumBytes(WeightFormat::kF32, kMax), std::nullopt);
  EXPECT_EQ(NumBytes(WeightFormat::kQ8_0, kMax - 31), std::nullopt);
  EXPECT_EQ(NumBytes(WeightFormat::kQ4_0, kMax - 31), (kMax - 31) / 32 * 18);
}

TEST(DequantizeTest, WeightsHaveTheBitsOfGgmlsPackage) {
  const std::vector<GgufGolden> goldens = ReadGgufGoldens("gguf_blocks.bin");
  ASSERT_EQ(goldens.size(), kWeightFormats.size());
  for (const GgufGolden& golden : goldens) {
    SCOPED_TRACE(golden.name);
    ASSERT_GE(golden.weights.size(), 16U);
    const std::vector<float> weights =
        Dequantized(WeightFormatFromNumber(golden.number).value(), golden.blocks);
    EXPECT_EQ(BitsOf(weights), BitsOf(golden.weights));
  }
}

TEST(DequantizeTest, BlocksAreIndependentAndNeedNoAlignment) {
  Random random(1);
  for (const WeightFormatInfo& info : kWeightFormats) {
    SCOPED_TRACE(std::string(info.name));
    const std::vector<std::byte> blocks = FiniteBlocks(info.format, 7, random);
    std::vector<float> singly;
    for (size_t block = 0; block < 7; ++block) {
      // One byte before the block makes its address odd in one of two rounds.
      std::vector<std::byte> moved(1);
      const auto begin = blocks.begin() + static_cast<int64_t>(block) * info.block_bytes;
      moved.insert(moved.end(), begin, begin + info.block_bytes);
      const std::vector<float> weights =
          Dequantized(info.format, std::span<const std::byte>(moved).subspan(1));
      singly.insert(singly.end(), weights.begin(), weights.end());
    }
    // F32 may be NaN, whose bits are compared as well.
    EXPECT_EQ(BitsOf(Dequantized(info.format, blocks)), BitsOf(singly));
    EXPECT_TRUE(Dequantized(info.format, {}).empty());
  }
}

TEST(DequantizeTest, EveryHalfAndBfloatIsWidenedExactly) {
  constexpr size_t kNumbers = 65536;
  std::vector<std::byte> numbers(2 * kNumbers);
  for (uint32_t bits = 0; bits < kNumbers; ++bits) {
    WriteHalf(static_cast<uint16_t>(bits), 2 * int64_t{bits}, numbers);
  }
  const std::vector<float> halves = Dequantized(WeightFormat::kF16, numbers);
  const std::vector<float> bfloats = Dequantized(WeightFormat::kBF16, numbers);
  for (uint32_t bits = 0; bits < kNumbers; ++bits) {
    const float half = F16Value(static_cast<uint16_t>(bits));
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(halves[bits])) << bits;
    } else {
      ASSERT_EQ(BitsOf(halves[bits]), BitsOf(half)) << bits;
    }
    ASSERT_EQ(BitsOf(bfloats[bits]), bits << 16);
  }
}

// Codes of 4 and 5 bits have their low bits in nibbles: weight i and weight i + 16 share a byte.
int NibbleAt(const std::byte* nibbles, size_t i) {
  const int byte = std::to_integer<int>(nibbles[i % 16]);
  return i < 16 ? byte % 16 : byte / 16;
}

// A weight of a format that never rounds, in double and by definition.
double ExactWeight(WeightFormat format, const std::byte* block, size_t i) {
  if (format == WeightFormat::kMxfp4) {
    constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int code = NibbleAt(block + 1, i);
    const double scale = std::ldexp(1.0, std::to_integer<int>(block[0]) - 127);
    return code < 8 ? kE2m1[code] * scale : -kE2m1[code - 8] * scale;
  }
  uint16_t half = 0;
  std::memcpy(&half, block, sizeof(half));
  const double scale = F16Value(half);
  if (format == WeightFormat::kQ8_0) {
    const int code = std::to_integer<int>(block[2 + i]);
    return scale * (code < 128 ? code : code - 256);
  }
  if (format == WeightFormat::kQ4_0) {
    return scale * (NibbleAt(block + 2, i) - 8);
  }
  uint32_t fifth_bits = 0;
  std::memcpy(&fifth_bits, block + 2, sizeof(fifth_bits));
  const int fifth_bit = (fifth_bits >> i & 1U) != 0 ? 16 : 0;
  return scale * (NibbleAt(block + 6, i) + fifth_bit - 16);
}

TEST(DequantizeTest, FormatsWithOneScaleNeverRound) {
  Random random(2);
  for (const WeightFormat format :
       {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ5_0, WeightFormat::kMxfp4}) {
    SCOPED_TRACE(std::string(NameOf(format)));
    constexpr int64_t kBlocks = 500;
    const std::vector<std::byte> blocks = FiniteBlocks(format, kBlocks, random);
    const std::vector<float> weights = Dequantized(format, blocks);
    ASSERT_EQ(weights.size(), kBlocks * 32U);
    for (size_t i = 0; i < weights.size(); ++i) {
      const std::byte* block = &blocks[i / 32 * static_cast<size_t>(InfoOf(format).block_bytes)];
      ASSERT_EQ(static_cast<double>(weights[i]), ExactWeight(format, block, i % 32)) << i;
    }
  }
}

TEST(UnpackBlockTest, TheFactorsGiveTheWeights) {
  Random random(3);
  for (const WeightFormatInfo& info : kWeightFormats) {
    if (!IsQuantized(info.format)) {
      continue;
    }
    SCOPED_TRACE(std::string(info.name));
    for (int round = 0; round < 50; ++round) {
      const std::vector<std::byte> blocks = FiniteBlocks(info.format, 1, random);
      WeightBlock block;
      UnpackBlock(info.format, blocks.data(), block);
      std::vector<float> weights;
      for (int32_t i = 0; i < info.block_weights; ++i) {
        const auto group = static_cast<size_t>(i / info.group_weights);
        const float scale = block.scale * static_cast<float>(block.group_scales[group]);
        const float minimum = block.minimum * static_cast<float>(block.group_minimums[group]);
        weights.push_back(scale * static_cast<float>(block.codes[static_cast<size_t>(i)]) -
                          minimum);
      }
      ASSERT_EQ(BitsOf(weights), BitsOf(Dequantized(info.format, blocks)));
    }
  }
}

TEST(UnpackBlockTest, TheScaleKeepsTheBitsOfTheFile) {
  Random random(4);
  for (const WeightFormatInfo& info : kWeightFormats) {
    const std::vector<int64_t> places = PlacesOfHalves(info.format);
    for (int round = 0; round < 50 && !places.empty(); ++round) {
      const std::vector<std::byte> blocks = FiniteBlocks(info.format, 1, random);
      WeightBlock block;
      UnpackBlock(info.format, blocks.data(), block);
      uint16_t half = 0;
      std::memcpy(&half, &blocks[static_cast<size_t>(places[0])], sizeof(half));
      ASSERT_EQ(FloatToHalf(block.scale), half) << info.name;
    }
  }
}

struct Range {
  WeightFormat format;
  int least_code;
  int greatest_code;
  int least_group_scale;
  int greatest_group_scale;
  int greatest_group_minimum;
};

TEST(UnpackBlockTest, IntegersHaveTheRangeOfTheirBits) {
  Random random(5);
  for (const Range& range : {Range{WeightFormat::kQ4_0, -8, 7, 1, 1, 0},
                             Range{WeightFormat::kQ4_1, 0, 15, 1, 1, 1},
                             Range{WeightFormat::kQ5_0, -16, 15, 1, 1, 0},
                             Range{WeightFormat::kQ5_1, 0, 31, 1, 1, 1},
                             Range{WeightFormat::kQ8_0, -128, 127, 1, 1, 0},
                             Range{WeightFormat::kQ2K, 0, 3, 0, 15, 15},
                             Range{WeightFormat::kQ3K, -4, 3, -32, 31, 0},
                             Range{WeightFormat::kQ4K, 0, 15, 0, 63, 63},
                             Range{WeightFormat::kQ5K, 0, 31, 0, 63, 63},
                             Range{WeightFormat::kQ6K, -32, 31, -128, 127, 0},
                             Range{WeightFormat::kIq4Nl, -127, 113, 1, 1, 0},
                             Range{WeightFormat::kIq4Xs, -127, 113, -32, 31, 0},
                             Range{WeightFormat::kMxfp4, -12, 12, 1, 1, 0}}) {
    const WeightFormatInfo& info = InfoOf(range.format);
    SCOPED_TRACE(std::string(info.name));
    std::set<int> codes;
    std::set<int> scales;
    std::set<int> minimums;
    for (int round = 0; round < 500; ++round) {
      WeightBlock block;
      UnpackBlock(range.format, RandomBlocks(range.format, 1, random).data(), block);
      codes.insert(block.codes.begin(), block.codes.begin() + info.block_weights);
      const int64_t num_groups = info.block_weights / info.group_weights;
      scales.insert(block.group_scales.begin(), block.group_scales.begin() + num_groups);
      minimums.insert(block.group_minimums.begin(), block.group_minimums.begin() + num_groups);
    }
    EXPECT_EQ(*codes.begin(), range.least_code);
    EXPECT_EQ(*codes.rbegin(), range.greatest_code);
    EXPECT_EQ(*scales.begin(), range.least_group_scale);
    EXPECT_EQ(*scales.rbegin(), range.greatest_group_scale);
    EXPECT_EQ(*minimums.rbegin(), range.greatest_group_minimum);
  }
}

}  // namespace
}  // namespace quire
