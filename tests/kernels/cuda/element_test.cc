// Numbers of kernels, one by one and in vectors, against the definitions of their formats.
#include "kernels/cuda/device/element.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/device/dispatch.h"
#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/vector.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {
namespace {

TEST(MathTest, FunctionsHaveTheirValues) {
  for (float x = -20.0F; x < 20.0F; x += 0.37F) {
    EXPECT_NEAR(Exp2(x) / std::exp2(static_cast<double>(x)), 1.0, 1e-6);
    EXPECT_NEAR(Exp(x) / std::exp(static_cast<double>(x)), 1.0, 1e-6);
    EXPECT_NEAR(Erf(x), std::erf(static_cast<double>(x)), 1e-6);
    const float positive = x + 20.5F;
    EXPECT_NEAR(Log(positive), std::log(static_cast<double>(positive)), 1e-6);
    EXPECT_NEAR(Rsqrt(positive) * std::sqrt(static_cast<double>(positive)), 1.0, 1e-6);
  }
  EXPECT_EQ(Exp2(-INFINITY), 0.0F);
}

// ---- Conversions ----

// A format of sign, exponent and mantissa, its values calculated from the definition. Magnitudes
// ascend with their bits.
struct Format {
  int mantissa_bits;
  int bias;
  uint32_t largest;     // the bits of the largest finite magnitude
  bool has_infinity;    // the bits after it; every magnitude above those is NaN
  uint32_t num_values;  // magnitudes, all kinds
};
constexpr Format kBf16Format{7, 127, 0x7F7F, true, 0x8000};
constexpr Format kF16Format{10, 15, 0x7BFF, true, 0x8000};
constexpr Format kF8Format{3, 7, 0x7E, false, 0x80};

double ValueOf(const Format& format, uint32_t magnitude) {
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const auto mantissa = static_cast<int>(magnitude & ((1u << format.mantissa_bits) - 1));
  const int implied = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  return std::ldexp(mantissa + implied, std::max(exponent, 1) - format.bias - format.mantissa_bits);
}

template <typename T>
void ExpectEveryPatternToFloat(const Format& format) {
  for (uint32_t bits = 0; bits < 2 * format.num_values; ++bits) {
    const uint32_t magnitude = bits % format.num_values;
    const bool negative = bits >= format.num_values;
    const float value = ToFloat(T{static_cast<decltype(T::bits)>(bits)});
    if (magnitude <= format.largest) {
      ASSERT_EQ(value, (negative ? -1 : 1) * ValueOf(format, magnitude)) << bits;
      ASSERT_EQ(std::signbit(value), negative) << bits;
    } else if (format.has_infinity && magnitude == format.largest + 1) {
      ASSERT_EQ(value, negative ? -INFINITY : INFINITY) << bits;
    } else {
      ASSERT_TRUE(std::isnan(value)) << bits;
    }
  }
}

TEST(ElementTest, EveryPatternHasItsValueInFp32) {
  ExpectEveryPatternToFloat<Bf16>(kBf16Format);
  ExpectEveryPatternToFloat<F16>(kF16Format);
  ExpectEveryPatternToFloat<F8E4M3>(kF8Format);
}

template <typename T>
uint32_t BitsFromFloat(float value) {
  return FromFloat<T>(value).bits;
}

// Each value, the middle between it and the next, and the fp32 numbers next to the middle, with
// both signs.
template <typename T>
void ExpectRoundingToNearest(const Format& format) {
  const uint32_t above_largest = format.has_infinity ? format.largest + 1 : format.largest;
  for (uint32_t magnitude = 0; magnitude <= format.largest; ++magnitude) {
    const double value = ValueOf(format, magnitude);
    const double next = ValueOf(format, magnitude + 1);
    const auto middle = static_cast<float>((value + next) / 2);
    ASSERT_EQ(middle, (value + next) / 2) << "the middle is not exact in fp32";
    const uint32_t up = magnitude == format.largest ? above_largest : magnitude + 1;
    const uint32_t even = magnitude % 2 == 0 ? magnitude : up;
    for (const uint32_t sign : {0u, format.num_values}) {
      const float factor = sign == 0 ? 1.0F : -1.0F;
      ASSERT_EQ(BitsFromFloat<T>(factor * static_cast<float>(value)), sign | magnitude);
      ASSERT_EQ(BitsFromFloat<T>(factor * middle), sign | even) << magnitude;
      ASSERT_EQ(BitsFromFloat<T>(factor * std::nextafter(middle, 0.0F)), sign | magnitude);
      ASSERT_EQ(BitsFromFloat<T>(factor * std::nextafter(middle, INFINITY)), sign | up);
    }
  }
  for (const uint32_t sign : {0u, format.num_values}) {
    const float factor = sign == 0 ? 1.0F : -1.0F;
    EXPECT_EQ(BitsFromFloat<T>(factor * INFINITY), sign | above_largest);
    EXPECT_EQ(BitsFromFloat<T>(factor * std::numeric_limits<float>::max()), sign | above_largest);
    EXPECT_EQ(BitsFromFloat<T>(factor * std::numeric_limits<float>::denorm_min()), sign);
  }
}

TEST(ElementTest, RoundingIsToNearestTiesToEven) {
  ExpectRoundingToNearest<Bf16>(kBf16Format);
  ExpectRoundingToNearest<F16>(kF16Format);
  ExpectRoundingToNearest<F8E4M3>(kF8Format);
}

TEST(ElementTest, Float8SaturatesInsteadOfBecomingNan) {
  EXPECT_EQ(BitsFromFloat<F8E4M3>(449.0F), 0x7Eu);
  EXPECT_EQ(BitsFromFloat<F8E4M3>(464.0F), 0x7Eu);
  EXPECT_EQ(BitsFromFloat<F8E4M3>(465.0F), 0x7Eu);
  EXPECT_EQ(BitsFromFloat<F8E4M3>(-1e30F), 0xFEu);
  EXPECT_EQ(ToFloat(F8E4M3{0x7E}), 448.0F);
}

TEST(ElementTest, NanStaysNan) {
  for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0xFFFFFFFFu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(ToFloat(FromFloat<Bf16>(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(ToFloat(FromFloat<F16>(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(ToFloat(FromFloat<F8E4M3>(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(FromFloat<float>(nan)));
  }
}

TEST(ElementTest, PairsHoldTheFirstNumberInTheLowerHalf) {
  EXPECT_EQ(Pack2<Bf16>(1.0F, -2.0F), 0xC0003F80u);
  EXPECT_EQ(Pack2<F16>(1.0F, -2.0F), 0xC0003C00u);
  EXPECT_EQ(PackF8(1.0F, -2.0F), 0xC038u);
  EXPECT_EQ(Unpack2<Bf16>(0xC0003F80u).x, 1.0F);
  EXPECT_EQ(Unpack2<Bf16>(0xC0003F80u).y, -2.0F);
  EXPECT_EQ(Unpack2<F16>(0xC0003C00u).x, 1.0F);
  EXPECT_EQ(Unpack2<F16>(0xC0003C00u).y, -2.0F);
}

TEST(ElementTest, PairsOfFloat8BecomePairsOfFloat16OfEqualValue) {
  for (uint32_t pair = 0; pair < 0x10000; ++pair) {
    const float2 halves = Unpack2<F16>(F8x2ToF16x2(static_cast<uint16_t>(pair)));
    const float low = ToFloat(F8E4M3{static_cast<uint8_t>(pair)});
    const float high = ToFloat(F8E4M3{static_cast<uint8_t>(pair >> 8)});
    ASSERT_TRUE(halves.x == low || (std::isnan(halves.x) && std::isnan(low))) << pair;
    ASSERT_TRUE(halves.y == high || (std::isnan(halves.y) && std::isnan(high))) << pair;
  }
}

template <typename T, int N>
QUIRE_KERNEL void CopyByVectors(const T* in, T* out) {
  float values[N];
  LoadVector<T, N>(in + threadIdx.x * N, values);
  for (float& value : values) {
    value *= 2;
  }
  StoreVector<T, N>(out + threadIdx.x * N, values);
}

template <typename T, int N>
void ExpectDoubled() {
  std::vector<T> in;
  std::vector<T> expected;
  for (int i = 0; i < 5 * N; ++i) {
    in.push_back(FromFloat<T>(static_cast<float>(i - 9) / 8));
    expected.push_back(FromFloat<T>(ToFloat(in.back()) * 2));
  }
  DeviceArray<T> device_in(in);
  DeviceArray<T> device_out(5 * N);

  ASSERT_EQ(
      QUIRE_LAUNCH(
          (CopyByVectors<T, N>), dim3(1), dim3(5), 0, nullptr, device_in.data(), device_out.data()),
      0);

  const std::vector<T> out = device_out.ToHost();
  EXPECT_EQ(memcmp(out.data(), expected.data(), expected.size() * sizeof(T)), 0);
}

TEST(VectorTest, LoadsAndStoresKeepTheOrderOfElements) {
  ExpectDoubled<Bf16, 4>();
  ExpectDoubled<Bf16, 8>();
  ExpectDoubled<F16, 8>();
  ExpectDoubled<F16, 16>();
  ExpectDoubled<F8E4M3, 8>();
  ExpectDoubled<F8E4M3, 16>();
  ExpectDoubled<float, 2>();
  ExpectDoubled<float, 4>();
  ExpectDoubled<float, 8>();
}

TEST(DispatchTest, TypesAndHeadDimsReachTheTemplateAndOthersAreUnsupported) {
  const auto size = [](DType dtype) {
    return DispatchElementOrFloat(dtype, []<typename T>() { return static_cast<int>(sizeof(T)); });
  };
  EXPECT_EQ(size(DType::kF32), 4);
  EXPECT_EQ(size(DType::kBF16), 2);
  EXPECT_EQ(size(DType::kF8E4M3), kUnsupported);
  const auto sizes = [](DType dtype, DType cache_dtype) {
    return DispatchCacheElement(dtype, cache_dtype, []<typename T, typename Cache>() {
      return static_cast<int>(10 * sizeof(T) + sizeof(Cache)) + (std::is_same_v<T, F16> ? 100 : 0);
    });
  };
  EXPECT_EQ(sizes(DType::kBF16, DType::kBF16), 22);
  EXPECT_EQ(sizes(DType::kF16, DType::kF16), 122);
  EXPECT_EQ(sizes(DType::kF16, DType::kF8E4M3), 121);
  EXPECT_EQ(sizes(DType::kF16, DType::kBF16), kUnsupported);
  EXPECT_EQ(sizes(DType::kF32, DType::kF32), kUnsupported);
  for (const int32_t head_dim : {64, 80, 96, 112, 128, 256}) {
    EXPECT_EQ(DispatchHeadDim(head_dim, []<int kHeadDim>() { return kHeadDim; }), head_dim);
  }
  EXPECT_EQ(DispatchHeadDim(72, []<int kHeadDim>() { return kHeadDim; }), kUnsupported);
}

}  // namespace
}  // namespace quire::gpu
