#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/row_compare.h"

namespace quire::gpu {
namespace {

constexpr ActivationFunction kFunctions[] = {ActivationFunction::kSilu,
                                             ActivationFunction::kGelu,
                                             ActivationFunction::kGeluTanh,
                                             ActivationFunction::kRelu};

double Reference(ActivationFunction function, double x) {
  switch (function) {
    case ActivationFunction::kSilu:
      return x / (1.0 + std::exp(-x));
    case ActivationFunction::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case ActivationFunction::kGeluTanh: {
      const double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return x / (1.0 + std::exp(-2.0 * inner));  // 0.5 x (1 + tanh) without its cancellation
    }
    case ActivationFunction::kRelu:
      return x > 0.0 ? x : 0.0;
  }
  return 0.0;
}

template <typename T>
void ExpectNearReference(ActivationFunction function, bool gated, int32_t width) {
  const int32_t num_tokens = width < 64 ? 64 : 3;
  const int32_t in_width = gated ? 2 * width : width;
  const auto in = RandomElements<T>(int64_t{num_tokens} * in_width, 5, 2.0F);
  DeviceArray<T> device_in(in);
  DeviceArray<T> out(int64_t{num_tokens} * width);

  ASSERT_EQ(Activate({.function = function,
                      .gated = gated,
                      .num_tokens = num_tokens,
                      .width = width,
                      .dtype = DTypeOf<T>::kValue,
                      .in = device_in.data(),
                      .out = out.data()},
                     nullptr),
            0);

  std::vector<double> expected;
  for (int32_t t = 0; t < num_tokens; ++t) {
    const T* row = in.data() + t * in_width;
    for (int32_t i = 0; i < width; ++i) {
      const double up = gated ? double{ToFloat(row[width + i])} : 1.0;
      expected.push_back(Reference(function, ToFloat(row[i])) * up);
    }
  }
  ExpectRowsNear(out.ToHost(), expected, width, kL2Limit<T>, kMaxLimit<T>);
}

// One thread, a part of a CTA, one more thread than a CTA has, several CTAs.
constexpr int32_t kWidths[] = {8, 264, 1024, 1032, 2824};

TEST(ActivateTest, AgreesWithTheReferenceGatedOrNot) {
  for (const ActivationFunction function : kFunctions) {
    for (const bool gated : {false, true}) {
      for (const int32_t width : kWidths) {
        SCOPED_TRACE(testing::Message() << "function " << static_cast<int>(function) << " gated "
                                        << gated << " width " << width);
        ExpectNearReference<Bf16>(function, gated, width);
        ExpectNearReference<F16>(function, gated, width);
      }
    }
  }
}

// All finite numbers of T, the largest first.
template <typename T>
std::vector<T> AllFinite() {
  std::vector<T> values;
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const T value = {static_cast<uint16_t>(bits)};
    values.push_back(std::isfinite(ToFloat(value)) ? value : FromFloat<T>(0.0F));
  }
  return values;
}

template <typename T>
void ExpectAccurateEverywhere(ActivationFunction function) {
  constexpr int32_t kWidth = 4096;
  const std::vector<T> in = AllFinite<T>();
  DeviceArray<T> device_in(in);
  DeviceArray<T> out(device_in.size());

  ASSERT_EQ(Activate({.function = function,
                      .gated = false,
                      .num_tokens = static_cast<int32_t>(in.size()) / kWidth,
                      .width = kWidth,
                      .dtype = DTypeOf<T>::kValue,
                      .in = device_in.data(),
                      .out = out.data()},
                     nullptr),
            0);

  // Half a unit in the last place and some room for the arithmetic; what is so small that e^-x
  // overflows or T has no number near it; and for the GELU by erf the digits that 1 + erf loses.
  constexpr double kUnit = DTypeOf<T>::kValue == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  constexpr double kSmallest = DTypeOf<T>::kValue == DType::kBF16 ? 1e-36 : 0x1p-25;
  const std::vector<T> actual = out.ToHost();
  for (size_t i = 0; i < in.size(); ++i) {
    const double x = ToFloat(in[i]);
    const double expected = Reference(function, x);
    const double lost =
        function == ActivationFunction::kGelu && x < 0.0 ? 1.2e-7 * std::min(-x, 6.0) : 0.0;
    const double limit = 1.01 * kUnit * std::abs(expected) + kSmallest + lost;
    ASSERT_LE(std::abs(double{ToFloat(actual[i])} - expected), limit)
        << "function " << static_cast<int>(function) << " of " << x;
  }
}

TEST(ActivateTest, IsAccurateForEveryNumberOfTheType) {
  for (const ActivationFunction function : kFunctions) {
    ExpectAccurateEverywhere<Bf16>(function);
    ExpectAccurateEverywhere<F16>(function);
  }
}

TEST(ActivateTest, MayWriteOverItsInput) {
  constexpr int32_t kWidth = 40;
  const auto in = RandomElements<Bf16>(2 * kWidth, 6, 1.0F);
  DeviceArray<Bf16> apart(in);
  DeviceArray<Bf16> out(2 * kWidth);
  DeviceArray<Bf16> in_place(in);
  ActivateArgs args = {.function = ActivationFunction::kSilu,
                       .gated = false,
                       .num_tokens = 2,
                       .width = kWidth,
                       .in = apart.data(),
                       .out = out.data()};
  ASSERT_EQ(Activate(args, nullptr), 0);
  args.in = in_place.data();
  args.out = in_place.data();

  ASSERT_EQ(Activate(args, nullptr), 0);

  ExpectSameBits(in_place.ToHost(), out.ToHost());
}

TEST(ActivateTest, RowsThatAreNotNumbersHarmNoOther) {
  constexpr int32_t kWidth = 64;
  auto in = RandomElements<F16>(3 * 2 * kWidth, 7, 1.0F);
  DeviceArray<F16> healthy_in(in);
  DeviceArray<F16> healthy(3 * kWidth);
  ActivateArgs args = {
      .num_tokens = 3, .width = kWidth, .dtype = DType::kF16, .in = healthy_in.data()};
  args.out = healthy.data();
  ASSERT_EQ(Activate(args, nullptr), 0);
  for (size_t i = 2 * kWidth; i < 4 * kWidth; ++i) {
    in[i] = {0xFFFF};
  }
  DeviceArray<F16> poisoned_in(in);
  DeviceArray<F16> out(3 * kWidth);
  args.in = poisoned_in.data();
  args.out = out.data();

  ASSERT_EQ(Activate(args, nullptr), 0);

  auto rows = out.ToHost();
  auto expected = healthy.ToHost();
  EXPECT_TRUE(std::isnan(ToFloat(rows[kWidth])));
  rows.erase(rows.begin() + kWidth, rows.begin() + 2 * kWidth);
  expected.erase(expected.begin() + kWidth, expected.begin() + 2 * kWidth);
  ExpectSameBits(rows, expected);
}

TEST(ActivateTest, NoTokensAreNoWork) {
  EXPECT_EQ(Activate({.num_tokens = 0, .width = 64}, nullptr), 0);
}

TEST(ActivateTest, RefusesTypesThatHaveNoKernel) {
  EXPECT_EQ(Activate({.num_tokens = 1, .width = 8, .dtype = DType::kF32}, nullptr), kUnsupported);
  EXPECT_EQ(Activate({.num_tokens = 1, .width = 8, .dtype = DType::kF8E4M3}, nullptr),
            kUnsupported);
}

}  // namespace
}  // namespace quire::gpu
