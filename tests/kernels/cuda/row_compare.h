// Rows of numbers for the tests of GPU operations: random numbers, conversion to a stored type and
// back, and comparison with a reference.
#ifndef QUIRE_TESTS_KERNELS_CUDA_ROW_COMPARE_H_
#define QUIRE_TESTS_KERNELS_CUDA_ROW_COMPARE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/element.h"

namespace quire::gpu {

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::kF32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType kValue = DType::kBF16;
};
template <>
struct DTypeOf<F16> {
  static constexpr DType kValue = DType::kF16;
};
template <>
struct DTypeOf<F8E4M3> {
  static constexpr DType kValue = DType::kF8E4M3;
};

// Normally distributed about mean.
inline std::vector<float> RandomFloats(int64_t count,
                                       uint32_t seed,
                                       float scale,
                                       float mean = 0.0F) {
  std::mt19937 generator(seed);
  // Values are scaled here, because a normal_distribution with a deviation of 0 is not allowed.
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = mean + scale * distribution(generator);
  }
  return values;
}

template <typename T>
std::vector<T> ToElements(const std::vector<float>& values) {
  std::vector<T> elements;
  elements.reserve(values.size());
  for (const float value : values) {
    elements.push_back(FromFloat<T>(value));
  }
  return elements;
}

template <typename T>
std::vector<float> ToFloats(const std::vector<T>& elements) {
  std::vector<float> values;
  values.reserve(elements.size());
  for (const T element : elements) {
    values.push_back(ToFloat(element));
  }
  return values;
}

template <typename T>
std::vector<T> RandomElements(int64_t count, uint32_t seed, float scale) {
  return ToElements<T>(RandomFloats(count, seed, scale));
}

template <typename T>
auto BitsOf(T element) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(element);
  } else {
    return element.bits;
  }
}

template <typename T>
void ExpectSameBits(const std::vector<T>& actual, const std::vector<T>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(BitsOf(actual[i]), BitsOf(expected[i])) << "element " << i;
  }
}

// Over all rows, the root of the squared errors relative to that of the squared values; in every
// row, the greatest error relative to the greatest value. NaN is never close.
template <typename T>
void ExpectRowsNear(const std::vector<T>& actual,
                    const std::vector<float>& expected,
                    int64_t width,
                    double l2_limit,
                    double max_limit) {
  ASSERT_EQ(actual.size(), expected.size());
  double error = 0.0;
  double norm = 0.0;
  for (size_t row = 0; row < actual.size(); row += static_cast<size_t>(width)) {
    double max_error = 0.0;
    double max_value = 0.0;
    for (size_t i = row; i < row + static_cast<size_t>(width); ++i) {
      const double difference = double{ToFloat(actual[i])} - double{expected[i]};
      ASSERT_FALSE(std::isnan(difference)) << "element " << i;
      error += difference * difference;
      norm += double{expected[i]} * double{expected[i]};
      max_error = std::max(max_error, std::abs(difference));
      max_value = std::max(max_value, std::abs(double{expected[i]}));
    }
    EXPECT_LE(max_error, max_limit * max_value) << "row at element " << row;
  }
  EXPECT_LE(std::sqrt(error), l2_limit * std::sqrt(norm));
}

// Bounds the error of rounding to T, with a little room for fp32 arithmetic before it.
template <typename T>
constexpr double kL2Limit = 1e-5;
template <>
inline constexpr double kL2Limit<Bf16> = 3e-3;
template <>
inline constexpr double kL2Limit<F16> = 4e-4;

// Half a unit in the last place of the greatest value.
template <typename T>
constexpr double kMaxLimit = 1e-5;
template <>
inline constexpr double kMaxLimit<Bf16> = 4e-3;
template <>
inline constexpr double kMaxLimit<F16> = 5e-4;

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_ROW_COMPARE_H_
