#include "kernels/cuda/quantize_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/row_compare.h"

namespace quire::gpu {
namespace {

struct Quantized {
  std::vector<F8E4M3> values;
  std::vector<float> scales;
};

template <typename T>
Quantized Quantize(const std::vector<T>& rows, int32_t width) {
  DeviceArray<T> in(rows);
  DeviceArray<F8E4M3> out(in.size());
  DeviceArray<float> scales(in.size() / width);
  EXPECT_EQ(QuantizeRows({.num_rows = scales.size(),
                          .width = width,
                          .in = in.data(),
                          .dtype = DTypeOf<T>::kValue,
                          .out = out.data(),
                          .scales = scales.data()},
                         nullptr),
            0);
  return {out.ToHost(), scales.ToHost()};
}

// The e4m3 number nearest to x, by looking at all of them; of two the one whose last bit is 0.
F8E4M3 Nearest(double x) {
  F8E4M3 best = {0};
  for (int bits = 0; bits < 0x7F; ++bits) {
    const F8E4M3 candidate = {static_cast<uint8_t>(bits | (std::signbit(x) ? 0x80 : 0))};
    const double distance = std::abs(double{ToFloat(candidate)} - x);
    const double best_distance = std::abs(double{ToFloat(best)} - x);
    if (distance < best_distance || (distance == best_distance && bits % 2 == 0)) {
      best = candidate;
    }
  }
  return best;
}

// x / scale may lie so near the middle of two numbers that fp32 arithmetic takes the other one.
void ExpectNearest(F8E4M3 actual, double x) {
  constexpr double kFloatRounding = 3e-7;
  if (BitsOf(actual) != BitsOf(Nearest(x)) &&
      BitsOf(actual) != BitsOf(Nearest(x * (1.0 + kFloatRounding)))) {
    EXPECT_EQ(BitsOf(actual), BitsOf(Nearest(x * (1.0 - kFloatRounding)))) << x;
  }
}

template <typename T>
void ExpectQuantized(const std::vector<T>& rows, int32_t width) {
  SCOPED_TRACE(testing::Message() << "width " << width);
  const Quantized result = Quantize(rows, width);
  for (size_t row = 0; row < result.scales.size(); ++row) {
    double largest = 0.0;
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      largest = std::max(largest, std::abs(double{ToFloat(rows[row * width + i])}));
    }
    ASSERT_EQ(result.scales[row], std::max(static_cast<float>(largest / 448.0), kSmallestScale));
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      const size_t at = row * static_cast<size_t>(width) + i;
      ExpectNearest(result.values[at], double{ToFloat(rows[at])} / double{result.scales[row]});
    }
  }
}

// The widths take one lane, part of a warp, and one lane more than a warp. The others are at the
// ends of the ranges of the kernels for one, two and any number of chunks.
constexpr int32_t kWidths[] = {16, 64, 528, 4096, 8192, 8208, 16384, 16400, 28672};

TEST(QuantizeRowsTest, EveryElementIsTheNearestMultipleOfTheScaleOfItsRow) {
  for (const int32_t width : kWidths) {
    const int32_t num_rows = width < 64 ? 33 : 2;
    ExpectQuantized(RandomElements<Bf16>(int64_t{num_rows} * width, 1, 0.7F), width);
    ExpectQuantized(RandomElements<F16>(int64_t{num_rows} * width, 2, 3.0F), width);
    ExpectQuantized(RandomFloats(int64_t{num_rows} * width, 3, 1e-3F), width);
  }
}

// Wherever it lies: in the last element of the last lane, too.
TEST(QuantizeRowsTest, TheLargestMagnitudeOfARowBecomesTheLargestNumber) {
  for (const int32_t width : {16, 528, 16384, 16400}) {
    for (const int32_t at : {0, width / 2, width - 1}) {
      std::vector<Bf16> row = RandomElements<Bf16>(width, 4, 1.0F);
      row[static_cast<size_t>(at)] = FromFloat<Bf16>(-100.0F);

      const Quantized result = Quantize(row, width);

      EXPECT_EQ(result.scales[0], 100.0F / 448.0F);
      EXPECT_EQ(result.values[static_cast<size_t>(at)].bits, 0xFE) << width << " " << at;
    }
  }
}

TEST(QuantizeRowsTest, ARowOfZerosIsZero) {
  const Quantized result = Quantize(std::vector<Bf16>(64, FromFloat<Bf16>(0.0F)), 64);

  EXPECT_EQ(result.scales[0], kSmallestScale);
  for (const F8E4M3 value : result.values) {
    EXPECT_EQ(value.bits, 0);
  }
}

// 1 / (largest / 448) would be infinite, and infinity times zero is NaN.
TEST(QuantizeRowsTest, TheSmallestNumbersDoNotSpoilTheZerosBesideThem) {
  std::vector<float> row(64, 0.0F);
  row[5] = std::numeric_limits<float>::denorm_min();

  const Quantized result = Quantize(row, 64);

  EXPECT_EQ(result.scales[0], kSmallestScale);
  for (const F8E4M3 value : result.values) {
    EXPECT_EQ(value.bits, 0);
  }
}

TEST(QuantizeRowsTest, TheLargestNumbersAreFinite) {
  ExpectQuantized(std::vector<float>(64, std::numeric_limits<float>::max()), 64);
  ExpectQuantized(std::vector<Bf16>(64, Bf16{0xFF7F}), 64);
}

TEST(QuantizeRowsTest, ARowThatIsNotFiniteShowsItAndHarmsNoOther) {
  for (const int32_t width : {528, 16400}) {
    const std::vector<Bf16> healthy = RandomElements<Bf16>(int64_t{3} * width, 5, 1.0F);
    const Quantized expected = Quantize(healthy, width);
    for (const Bf16 bad : {Bf16{0x7FC0}, Bf16{0xFFC1}, Bf16{0x7F80}, Bf16{0xFF80}}) {
      for (const int32_t at : {0, width - 1}) {
        std::vector<Bf16> rows = healthy;
        rows[static_cast<size_t>(width) + static_cast<size_t>(at)] = bad;

        const Quantized result = Quantize(rows, width);

        EXPECT_TRUE(std::isnan(result.scales[1])) << bad.bits;
        for (size_t i = 0; i < result.values.size(); ++i) {
          if (i / static_cast<size_t>(width) == 1) {
            ASSERT_EQ(result.values[i].bits & 0x7F, 0x7F) << i;
          } else {
            ASSERT_EQ(result.values[i].bits, expected.values[i].bits) << i;
          }
        }
        EXPECT_EQ(result.scales[0], expected.scales[0]);
        EXPECT_EQ(result.scales[2], expected.scales[2]);
      }
    }
  }
}

TEST(QuantizeRowsTest, ARowDependsOnItselfAlone) {
  constexpr int32_t kRows = 5;
  for (const int32_t width : {528, 8208, 16400}) {
    const std::vector<F16> rows = RandomElements<F16>(int64_t{kRows} * width, 6, 1.0F);
    const Quantized together = Quantize(rows, width);
    for (int32_t row = 0; row < kRows; ++row) {
      const auto from = int64_t{row} * width;

      const Quantized alone =
          Quantize(std::vector<F16>(rows.begin() + from, rows.begin() + from + width), width);

      ExpectSameBits(alone.values,
                     std::vector<F8E4M3>(together.values.begin() + from,
                                         together.values.begin() + from + width));
      EXPECT_EQ(alone.scales[0], together.scales[static_cast<size_t>(row)]);
    }
  }
}

TEST(QuantizeRowsTest, NoRowsAreNoWork) {
  EXPECT_EQ(QuantizeRows({.num_rows = 0, .width = 64}, nullptr), 0);
}

TEST(QuantizeRowsTest, RefusesTypesAndWidthsThatHaveNoKernel) {
  EXPECT_EQ(QuantizeRows({.num_rows = 1, .width = 16, .dtype = DType::kF8E4M3}, nullptr),
            kUnsupported);
  EXPECT_EQ(QuantizeRows({.num_rows = 1, .width = 24}, nullptr), kUnsupported);
}

}  // namespace
}  // namespace quire::gpu
