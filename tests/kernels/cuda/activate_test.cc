#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/row_compare.h"

namespace quire::gpu {
namespace {

constexpr ActivationKind kKinds[] = {
    ActivationKind::kSilu, ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kGeluTanh};

template <typename T>
std::vector<T> Activated(ActivationParams params, const std::vector<T>& in) {
  DeviceArray<T> device_in(in);
  DeviceArray<T> out(params.num_tokens * params.width);
  params.in = device_in.data();
  params.out = out.data();
  EXPECT_EQ(Activate(params, DTypeOf<T>::kValue, nullptr), 0);
  return out.ToHost();
}

template <typename T>
std::vector<float> Reference(ActivationParams params, const std::vector<T>& in) {
  const std::vector<float> wide = ToFloats(in);
  std::vector<float> out(static_cast<size_t>(params.num_tokens * params.width));
  params.in = wide.data();
  params.out = out.data();
  reference::Activate(params);
  return out;
}

template <typename T>
void ExpectNearReference(ActivationKind kind, bool gated, int32_t width) {
  const ActivationParams params = {
      .kind = kind, .gated = gated, .num_tokens = width < 64 ? 64 : 3, .width = width};
  const auto in = RandomElements<T>(params.num_tokens * width * (gated ? 2 : 1), 5, 2.0F);
  ExpectRowsNear(Activated(params, in), Reference(params, in), width, kL2Limit<T>, kMaxLimit<T>);
}

// One thread, a part of a CTA, one more thread than a CTA has, several CTAs.
constexpr int32_t kWidths[] = {8, 264, 1024, 1032, 2824};

TEST(ActivateTest, AgreesWithTheReferenceGatedOrNot) {
  for (const ActivationKind kind : kKinds) {
    for (const bool gated : {false, true}) {
      for (const int32_t width : kWidths) {
        SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " gated " << gated
                                        << " width " << width);
        ExpectNearReference<Bf16>(kind, gated, width);
        ExpectNearReference<F16>(kind, gated, width);
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
void ExpectAccurateEverywhere(ActivationKind kind) {
  constexpr int32_t kWidth = 4096;
  const std::vector<T> in = AllFinite<T>();
  const ActivationParams params = {.kind = kind,
                                   .gated = false,
                                   .num_tokens = static_cast<int64_t>(in.size()) / kWidth,
                                   .width = kWidth};
  const std::vector<T> actual = Activated(params, in);
  const std::vector<float> expected = Reference(params, in);

  // The bound is half a unit in the last place, and some room for the arithmetic. Very small
  // results get an absolute bound, because e^-x overflows or T has no number near them. The GELU by
  // erf may lose the digits that 1 + erf loses.
  constexpr double kUnit = DTypeOf<T>::kValue == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  constexpr double kSmallest = DTypeOf<T>::kValue == DType::kBF16 ? 1e-36 : 0x1p-25;
  for (size_t i = 0; i < in.size(); ++i) {
    const double x = ToFloat(in[i]);
    const double lost = kind == ActivationKind::kGelu && x < 0.0 ? 1.2e-7 * std::min(-x, 6.0) : 0.0;
    const double limit = 1.01 * kUnit * std::abs(double{expected[i]}) + kSmallest + lost;
    ASSERT_LE(std::abs(double{ToFloat(actual[i])} - double{expected[i]}), limit)
        << "kind " << static_cast<int>(kind) << " of " << x;
  }
}

TEST(ActivateTest, IsAccurateForEveryNumberOfTheType) {
  for (const ActivationKind kind : kKinds) {
    ExpectAccurateEverywhere<Bf16>(kind);
    ExpectAccurateEverywhere<F16>(kind);
  }
}

TEST(ActivateTest, MayWriteOverItsInput) {
  constexpr int32_t kWidth = 40;
  const auto in = RandomElements<Bf16>(2 * kWidth, 6, 1.0F);
  DeviceArray<Bf16> apart(in);
  DeviceArray<Bf16> out(2 * kWidth);
  DeviceArray<Bf16> in_place(in);
  ActivationParams params = {.kind = ActivationKind::kSilu,
                             .gated = false,
                             .num_tokens = 2,
                             .width = kWidth,
                             .in = apart.data(),
                             .out = out.data()};
  ASSERT_EQ(Activate(params, DType::kBF16, nullptr), 0);
  params.in = in_place.data();
  params.out = in_place.data();

  ASSERT_EQ(Activate(params, DType::kBF16, nullptr), 0);

  ExpectSameBits(in_place.ToHost(), out.ToHost());
}

TEST(ActivateTest, RowsThatAreNotNumbersHarmNoOther) {
  constexpr int32_t kWidth = 64;
  auto in = RandomElements<F16>(3 * 2 * kWidth, 7, 1.0F);
  const ActivationParams params = {.num_tokens = 3, .width = kWidth};
  auto expected = Activated(params, in);
  for (size_t i = 2 * kWidth; i < 4 * kWidth; ++i) {
    in[i] = {0xFFFF};
  }

  auto rows = Activated(params, in);

  EXPECT_TRUE(std::isnan(ToFloat(rows[kWidth])));
  rows.erase(rows.begin() + kWidth, rows.begin() + 2 * kWidth);
  expected.erase(expected.begin() + kWidth, expected.begin() + 2 * kWidth);
  ExpectSameBits(rows, expected);
}

TEST(ActivateTest, NoTokensAreNoWork) {
  EXPECT_EQ(Activate({.num_tokens = 0, .width = 64}, DType::kBF16, nullptr), 0);
}

TEST(ActivateTest, RefusesTypesThatHaveNoKernel) {
  for (const DType dtype : {DType::kF32, DType::kF8E4M3}) {
    EXPECT_EQ(Activate({.num_tokens = 1, .width = 8}, dtype, nullptr), kUnsupported);
  }
}

}  // namespace
}  // namespace quire::gpu
