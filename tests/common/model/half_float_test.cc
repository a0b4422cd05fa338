// HalfToFloat and FloatToHalf against binary16's definition, FloatToBFloat16 against bfloat16's.
#include "common/model/half_float.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"

namespace quire {
namespace {

// The number that the bits mean, by definition. REQUIRES: not NaN.
double NumberOf(uint32_t half) {
  const int exponent = static_cast<int>(half >> 10 & 31);
  const int fraction = static_cast<int>(half & 1023);
  const double magnitude = exponent == 31  ? INFINITY
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

bool IsNan(uint32_t half) { return (half & 0x7C00) == 0x7C00 && (half & 0x3FF) != 0; }

TEST(HalfFloatTest, EveryHalfIsWidenedExactlyAndRestored) {
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    if (IsNan(half)) {
      EXPECT_TRUE(std::isnan(value)) << half;
      EXPECT_TRUE(IsNan(FloatToHalf(value))) << half;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), NumberOf(half)) << half;
    ASSERT_EQ(std::signbit(value), half >= 0x8000) << half;
    ASSERT_EQ(FloatToHalf(value), half);
  }
}

// Between two neighbours every float is closer to one of them, except the tie in the middle.
TEST(HalfFloatTest, RoundsToTheNearestHalfAndTiesToEven) {
  for (uint32_t half = 0; half < 0x7C00; ++half) {
    // The neighbour of the largest number counts as 2^16.
    const double next = half == 0x7BFF ? 0x1p16 : NumberOf(half + 1);
    const auto middle = static_cast<float>((NumberOf(half) + next) / 2);
    const uint32_t even = half + (half & 1);
    for (const uint32_t sign : {0U, 0x8000U}) {
      const float tie = sign != 0 ? -middle : middle;
      ASSERT_EQ(FloatToHalf(tie), even | sign) << half;
      ASSERT_EQ(FloatToHalf(std::nextafter(tie, 0.0F)), half | sign) << half;
      ASSERT_EQ(FloatToHalf(std::nextafter(tie, tie * 2)), (half + 1) | sign) << half;
    }
  }
}

TEST(HalfFloatTest, LargeValuesBecomeInfinity) {
  for (const float value : {65520.0F, 65536.0F, 1e10F, 3.4e38F, INFINITY}) {
    EXPECT_EQ(FloatToHalf(value), 0x7C00) << value;
    EXPECT_EQ(FloatToHalf(-value), 0xFC00) << value;
  }
}

// bfloat16 is the upper half of fp32.
TEST(BFloat16Test, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    const bool is_nan = (upper & 0x7F80) == 0x7F80 && (upper & 0x7F) != 0;
    for (const uint32_t lower : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const uint16_t rounded = FloatToBFloat16(std::bit_cast<float>(upper << 16 | lower));
      if (is_nan || ((upper & 0x7FFF) == 0x7F80 && lower != 0)) {
        ASSERT_EQ(rounded, upper | 0x40) << upper << " " << lower;  // a quiet NaN
      } else {
        const bool is_up = lower > 0x8000 || (lower == 0x8000 && (upper & 1) != 0);
        ASSERT_EQ(rounded, upper + (is_up ? 1U : 0U)) << upper << " " << lower;
      }
    }
  }
}

TEST(HalfFloatTest, EveryNanStaysNan) {
  for (const uint32_t bits : {0x7F80'0001U, 0x7FC0'0000U, 0x7FFF'FFFFU, 0xFF80'0001U}) {
    EXPECT_TRUE(IsNan(FloatToHalf(std::bit_cast<float>(bits)))) << bits;
  }
}

}  // namespace
}  // namespace quire
