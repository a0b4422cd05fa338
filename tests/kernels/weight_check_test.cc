// FirstNotFiniteBlock against the weights that Dequantize gives, and with scales planted by hand.
#include "kernels/api/weight_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/api/dequantize.h"
#include "kernels/api/weight_format.h"
#include "tests/kernels/weight_blocks.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr uint16_t kNotFiniteHalves[] = {0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF};

// Whether the definition calls the block not finite.
bool HasNotFinite(WeightFormat format, std::span<const std::byte> block) {
  std::vector<float> weights(static_cast<size_t>(InfoOf(format).block_weights));
  Dequantize(format, block, weights);
  return std::any_of(weights.begin(), weights.end(), [](float x) { return !std::isfinite(x); }) ||
         (format == WeightFormat::kMxfp4 && block[0] == std::byte{255});
}

TEST(WeightCheckTest, FiniteBlocksPass) {
  Random random(1);
  for (const WeightFormatInfo& info : kWeightFormats) {
    if (IsQuantized(info.format)) {
      EXPECT_EQ(FirstNotFiniteBlock(info.format, FiniteBlocks(info.format, 300, random)),
                std::nullopt)
          << info.name;
    }
    EXPECT_EQ(FirstNotFiniteBlock(info.format, {}), std::nullopt);
  }
}

TEST(WeightCheckTest, EachNotFiniteBlockOfRandomBytesIsFound) {
  Random random(2);
  for (const WeightFormatInfo& info : kWeightFormats) {
    SCOPED_TRACE(std::string(info.name));
    constexpr int64_t kBlocks = 3000;
    const std::vector<std::byte> blocks = RandomBlocks(info.format, kBlocks, random);
    const auto block_bytes = static_cast<size_t>(info.block_bytes);
    std::span<const std::byte> rest = blocks;
    int num_found = 0;
    while (!rest.empty()) {
      size_t expected = 0;
      while (expected * block_bytes < rest.size() &&
             !HasNotFinite(info.format, rest.subspan(expected * block_bytes, block_bytes))) {
        ++expected;
      }
      const std::optional<int64_t> found = FirstNotFiniteBlock(info.format, rest);
      if (expected * block_bytes == rest.size()) {
        ASSERT_EQ(found, std::nullopt);
        break;
      }
      ASSERT_EQ(found, static_cast<int64_t>(expected));
      ++num_found;
      rest = rest.subspan((expected + 1) * block_bytes);
    }
    EXPECT_GT(num_found, 0);
  }
}

TEST(WeightCheckTest, EveryPlaceOfAScaleOrMinimumIsChecked) {
  Random random(3);
  for (const WeightFormatInfo& info : kWeightFormats) {
    for (const int64_t place : PlacesOfHalves(info.format)) {
      int64_t bad = 0;
      for (const uint16_t half : kNotFiniteHalves) {
        std::vector<std::byte> blocks = FiniteBlocks(info.format, 9, random);
        WriteHalf(half, bad * info.block_bytes + place, blocks);
        EXPECT_EQ(FirstNotFiniteBlock(info.format, blocks), bad) << info.name << " at " << place;
        bad += 2;
      }
    }
  }
}

TEST(WeightCheckTest, NumbersAreFoundWhereverTheyStand) {
  constexpr int64_t kNumbers = 2500;
  for (const int64_t bad : {0, 1, 1023, 1024, 2047, 2499}) {
    std::vector<float> floats(kNumbers, -3.4e38F);
    floats[static_cast<size_t>(bad)] = bad % 2 == 0 ? -INFINITY : NAN;
    EXPECT_EQ(FirstNotFiniteBlock(WeightFormat::kF32, std::as_bytes(std::span(floats))), bad);
    std::vector<uint16_t> halves(kNumbers, 0xFBFF);
    halves[static_cast<size_t>(bad)] = 0x7C00;
    EXPECT_EQ(FirstNotFiniteBlock(WeightFormat::kF16, std::as_bytes(std::span(halves))), bad);
    std::vector<uint16_t> bfloats(kNumbers, 0xFF7F);
    bfloats[static_cast<size_t>(bad)] = 0xFF81;
    EXPECT_EQ(FirstNotFiniteBlock(WeightFormat::kBF16, std::as_bytes(std::span(bfloats))), bad);
  }
}

// A block with the exponent, whose codes are 0 except one.
std::vector<std::byte> Mxfp4With(int exponent, int code, size_t place) {
  std::vector<std::byte> block(17);
  block[0] = static_cast<std::byte>(exponent);
  block[1 + place % 16] = static_cast<std::byte>(place < 16 ? code : code << 4);
  return block;
}

TEST(WeightCheckTest, Mxfp4IsNotFiniteByItsNanOrByOverflow) {
  constexpr int kSix = 7;
  constexpr int kFour = 6;
  constexpr int kThree = 5;
  constexpr int kTwo = 4;
  constexpr int kMinusSix = 15;
  for (const size_t place : {0, 15, 16, 31}) {
    const auto is_found = [&](int exponent, int code) {
      return FirstNotFiniteBlock(WeightFormat::kMxfp4, Mxfp4With(exponent, code, place)) == 0;
    };
    EXPECT_TRUE(is_found(255, 0));
    EXPECT_TRUE(is_found(254, kTwo));
    EXPECT_FALSE(is_found(254, kTwo - 1));
    EXPECT_TRUE(is_found(253, kFour));
    EXPECT_FALSE(is_found(253, kThree));
    EXPECT_TRUE(is_found(253, kMinusSix));
    EXPECT_FALSE(is_found(252, kSix));
    EXPECT_FALSE(is_found(252, kMinusSix));
  }
}

}  // namespace
}  // namespace quire
