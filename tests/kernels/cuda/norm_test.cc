#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/row_compare.h"

namespace quire::gpu {
namespace {

constexpr NormKind kKinds[] = {NormKind::kRmsNorm, NormKind::kLayerNorm};

template <typename T>
struct NormCase {
  NormKind kind = NormKind::kRmsNorm;
  int32_t width = 0;
  std::vector<float> residual;
  std::vector<T> delta;  // empty: none
  std::vector<float> weight;
  std::vector<float> bias;  // empty: none
  float eps = 1e-5F;

  int32_t num_tokens() const { return static_cast<int32_t>(residual.size()) / width; }
};

template <typename T>
struct NormResult {
  std::vector<float> residual;
  std::vector<T> out;
  std::vector<float> out_f32;
};

template <typename T>
std::optional<DeviceArray<T>> MaybeArray(const std::vector<T>& values) {
  return values.empty() ? std::nullopt : std::make_optional<DeviceArray<T>>(values);
}

template <typename T>
NormResult<T> Normalise(const NormCase<T>& c) {
  DeviceArray<float> residual(c.residual);
  auto delta = MaybeArray(c.delta);
  DeviceArray<float> weight(c.weight);
  auto bias = MaybeArray(c.bias);
  DeviceArray<T> out(residual.size());
  DeviceArray<float> out_f32(residual.size());
  NormParams params = {.kind = c.kind,
                       .num_tokens = c.num_tokens(),
                       .width = c.width,
                       .residual = residual.data(),
                       .delta = delta.has_value() ? delta->data() : nullptr,
                       .weight = weight.data(),
                       .bias = bias.has_value() ? bias->data() : nullptr,
                       .eps = c.eps,
                       .out = out.data(),
                       .out_f32 = out_f32.data()};
  EXPECT_EQ(Norm(params, DTypeOf<T>::kValue, nullptr), 0);
  NormResult<T> result = {residual.ToHost(), out.ToHost(), out_f32.ToHost()};

  // Without the fp32 copy the result is the same.
  DeviceArray<float> again(c.residual);
  DeviceArray<T> out_alone(residual.size());
  params.residual = again.data();
  params.out = out_alone.data();
  params.out_f32 = nullptr;
  EXPECT_EQ(Norm(params, DTypeOf<T>::kValue, nullptr), 0);
  ExpectSameBits(out_alone.ToHost(), result.out);
  return result;
}

// The reference computes in fp32, so out and out_f32 are equal.
template <typename T>
NormResult<float> Reference(const NormCase<T>& c) {
  const std::vector<float> delta = ToFloats(c.delta);
  NormResult<float> result;
  result.residual = c.residual;
  result.out.resize(c.residual.size());
  reference::Norm({.kind = c.kind,
                   .num_tokens = c.num_tokens(),
                   .width = c.width,
                   .residual = result.residual.data(),
                   .delta = delta.empty() ? nullptr : delta.data(),
                   .weight = c.weight.data(),
                   .bias = c.bias.empty() ? nullptr : c.bias.data(),
                   .eps = c.eps,
                   .out = result.out.data()});
  return result;
}

template <typename T>
NormCase<T> RandomCase(NormKind kind, int32_t width, int32_t num_tokens, bool has_delta) {
  NormCase<T> c;
  c.kind = kind;
  c.width = width;
  c.residual = RandomFloats(int64_t{num_tokens} * width, 11, 1.5F, 0.3F);
  if (has_delta) {
    c.delta = RandomElements<T>(int64_t{num_tokens} * width, 12, 0.7F);
  }
  c.weight = RandomFloats(width, 13, 0.2F, 1.0F);
  if (kind == NormKind::kLayerNorm) {
    c.bias = RandomFloats(width, 14, 0.5F);
  }
  return c;
}

template <typename T>
void ExpectNearReference(const NormCase<T>& c, double f32_limit = 2e-6) {
  SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(c.kind) << " width " << c.width
                                  << " delta " << !c.delta.empty());
  const NormResult<T> result = Normalise(c);
  const NormResult<float> expected = Reference(c);
  ExpectRowsNear(result.out_f32, expected.out, c.width, f32_limit, 2.0 * f32_limit);
  ExpectRowsNear(
      result.out, expected.out, c.width, kL2Limit<T> + f32_limit, kMaxLimit<T> + 2.0 * f32_limit);
  ExpectSameBits(result.out, ToElements<T>(result.out_f32));
  ExpectSameBits(result.residual, expected.residual);
}

// Widths at the ends of the ranges of the kernels for one, two, four and any number of chunks. The
// small widths take one lane, part of a warp, and one lane more than a warp.
constexpr int32_t kWidths[] = {8, 64, 264, 768, 4096, 4104, 8192, 8200, 16384, 16392, 24584};

TEST(NormTest, AgreesWithTheReferenceAndUpdatesTheResidual) {
  for (const NormKind kind : kKinds) {
    for (const int32_t width : kWidths) {
      const int32_t num_tokens = width < 64 ? 32 : 2;
      ExpectNearReference(RandomCase<Bf16>(kind, width, num_tokens, true));
      ExpectNearReference(RandomCase<Bf16>(kind, width, num_tokens, false));
      ExpectNearReference(RandomCase<F16>(kind, width, num_tokens, true));
    }
  }
}

TEST(NormTest, LayerNormNeedsNoBias) {
  for (const int32_t width : {264, 16392}) {
    NormCase<Bf16> c = RandomCase<Bf16>(NormKind::kLayerNorm, width, 2, true);
    c.bias.clear();
    ExpectNearReference(c);
  }
}

// The square of the mean is 10^8 times the variance. A kernel that subtracts it from the mean of
// squares would give noise; the tolerance leaves room for the rounding of the mean alone.
TEST(NormTest, LayerNormKeepsItsDigitsWhenTheMeanIsLarge) {
  for (const int32_t width : {768, 4096, 16392}) {
    NormCase<F16> c = RandomCase<F16>(NormKind::kLayerNorm, width, 2, false);
    c.residual = RandomFloats(int64_t{2} * width, 15, 0.1F, 1000.0F);
    ExpectNearReference(c, 2e-3);
  }
}

TEST(NormTest, EpsIsInsideTheRoot) {
  for (const NormKind kind : kKinds) {
    NormCase<Bf16> c = RandomCase<Bf16>(kind, 64, 2, false);
    c.eps = 2.0F;
    ExpectNearReference(c);
  }
}

TEST(NormTest, ARowOfOneValueBecomesTheBias) {
  NormCase<Bf16> c = RandomCase<Bf16>(NormKind::kLayerNorm, 64, 1, false);
  c.residual.assign(64, 3.0F);

  ExpectSameBits(Normalise(c).out_f32, c.bias);
}

TEST(NormTest, ARowOfZerosStaysZero) {
  NormCase<Bf16> c = RandomCase<Bf16>(NormKind::kRmsNorm, 64, 1, false);
  c.residual.assign(64, 0.0F);

  ExpectSameBits(Normalise(c).out_f32, std::vector<float>(64, 0.0F));
}

template <typename V>
std::vector<V> RowOf(const std::vector<V>& values, int32_t row, int32_t width) {
  return {values.begin() + int64_t{row} * width, values.begin() + int64_t{row + 1} * width};
}

TEST(NormTest, ARowDependsOnItselfAlone) {
  constexpr int32_t kTokens = 5;
  for (const NormKind kind : kKinds) {
    for (const int32_t width : {264, 4104, 16392}) {
      const auto batch = RandomCase<Bf16>(kind, width, kTokens, true);
      const NormResult<Bf16> together = Normalise(batch);
      for (int32_t row = 0; row < kTokens; ++row) {
        NormCase<Bf16> alone = batch;
        alone.residual = RowOf(batch.residual, row, width);
        alone.delta = RowOf(batch.delta, row, width);

        const NormResult<Bf16> result = Normalise(alone);

        ExpectSameBits(result.out_f32, RowOf(together.out_f32, row, width));
        ExpectSameBits(result.residual, RowOf(together.residual, row, width));
      }
    }
  }
}

TEST(NormTest, RowsThatAreNotNumbersHarmNoOther) {
  constexpr int32_t kWidth = 264;
  auto c = RandomCase<F16>(NormKind::kLayerNorm, kWidth, 3, true);
  const NormResult<F16> healthy = Normalise(c);
  std::fill_n(c.residual.begin() + kWidth, kWidth, NAN);

  const NormResult<F16> result = Normalise(c);

  EXPECT_TRUE(std::isnan(result.out_f32[kWidth]));
  for (const int32_t row : {0, 2}) {
    ExpectSameBits(RowOf(result.out_f32, row, kWidth), RowOf(healthy.out_f32, row, kWidth));
  }
}

TEST(NormTest, NoTokensAreNoWork) {
  EXPECT_EQ(Norm({.num_tokens = 0, .width = 64}, DType::kBF16, nullptr), 0);
}

TEST(NormTest, RefusesTypesThatHaveNoKernel) {
  for (const DType dtype : {DType::kF32, DType::kF8E4M3}) {
    EXPECT_EQ(Norm({.num_tokens = 1, .width = 8}, dtype, nullptr), kUnsupported);
  }
}

}  // namespace
}  // namespace quire::gpu
