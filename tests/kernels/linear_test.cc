// Linear layers of the CPU backend against plain loops, and the promise of kernels/api/dense.h that
// a row's bits depend on that row alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/packed_linear.h"
#include "tests/kernels/cpu_backends.h"
#include "tests/kernels/float_bits.h"

namespace quire {
namespace {

std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> distribution(-1.0F, 1.0F);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = distribution(generator);
  }
  return values;
}

// A weight matrix in its stored type, and its values in fp32.
struct Matrix {
  Matrix(DType type, int64_t num_rows, int64_t num_cols, uint32_t seed)
      : dtype(type), rows(num_rows), cols(num_cols) {
    for (const float value : RandomFloats(rows * cols, seed)) {
      values.push_back(AppendAs(dtype, value, &bytes));
    }
  }

  MatrixView view() const { return {bytes.data(), FormatOf(dtype), rows, cols}; }

  DType dtype;
  int64_t rows;
  int64_t cols;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

class LinearTest : public CpuBackendTest {
 protected:
  // Whether inputs are rounded. The bf16 instructions round their inputs, add in an order of their
  // own and flush denormals.
  bool rounds_input(DType dtype) const { return RoundsToBF16(GetParam()) && dtype == DType::kBF16; }

  static std::unique_ptr<PackedLinear> Pack(KernelBackend& backend,
                                            const MatrixView& part,
                                            std::span<const float> bias,
                                            int64_t num_segments) {
    auto packed = backend.PackLinear(
        {.parts = std::span(&part, 1), .bias = bias, .num_segments = num_segments});
    EXPECT_TRUE(packed.ok()) << packed.status();
    return std::move(*packed);
  }

  // Fails the test if the backend writes past the end of the output.
  static std::vector<float> Run(KernelBackend& backend,
                                const PackedLinear& weight,
                                std::span<const float> x) {
    constexpr size_t kGuard = 64;
    constexpr float kGuardValue = 12345.0F;
    const auto num_tokens = static_cast<int64_t>(x.size()) / weight.in_features();
    const auto size = static_cast<size_t>(num_tokens * weight.out_features());
    std::vector<float> y(size + kGuard, kGuardValue);
    backend.Linear({.num_tokens = num_tokens, .x = x.data(), .y = y.data(), .weight = &weight});
    for (size_t i = size; i < y.size(); ++i) {
      EXPECT_EQ(y[i], kGuardValue) << "written " << i - size << " past the end";
    }
    y.resize(size);
    return y;
  }

  void ExpectAgreesWithLoops(const Matrix& matrix,
                             int64_t num_tokens,
                             bool with_bias,
                             int64_t num_segments) {
    auto backend = MakeBackend(2);
    const std::vector<float> bias = with_bias ? RandomFloats(matrix.rows, 3) : std::vector<float>();
    const std::vector<float> x = RandomFloats(num_tokens * matrix.cols, 4);
    const auto weight = Pack(*backend, matrix.view(), bias, num_segments);

    const std::vector<float> y = Run(*backend, *weight, x);

    for (int64_t m = 0; m < num_tokens; ++m) {
      for (int64_t n = 0; n < matrix.rows; ++n) {
        double sum = with_bias ? bias[static_cast<size_t>(n)] : 0.0;
        double magnitude = std::abs(sum);
        for (int64_t k = 0; k < matrix.cols; ++k) {
          float a = x[static_cast<size_t>(m * matrix.cols + k)];
          a = rounds_input(matrix.dtype) ? RoundedToBF16(a) : a;
          const double product =
              double{a} * matrix.values[static_cast<size_t>(n * matrix.cols + k)];
          sum += product;
          magnitude += std::abs(product);
        }
        // Each of cols + 1 additions, and each product where it is not fused, rounds once.
        const double bound = magnitude * static_cast<double>(2 * matrix.cols + 2) * 0x1p-24;
        ASSERT_NEAR(y[static_cast<size_t>(m * matrix.rows + n)], sum, bound)
            << NameOf(matrix.dtype) << " row " << m << " column " << n << " of " << matrix.rows
            << " x " << matrix.cols;
      }
    }
  }

  // Rows of batches of many sizes, with several numbers of threads, against each row alone.
  void ExpectRowsDoNotDependOnTheBatch(DType dtype,
                                       int64_t n,
                                       int64_t k,
                                       int64_t num_segments,
                                       const std::vector<int64_t>& batches) {
    const Matrix matrix(dtype, n, k, 5);
    const std::vector<float> bias = RandomFloats(n, 6);
    const std::vector<float> x = RandomFloats(batches.back() * k, 7);
    auto single = MakeBackend(1);
    const auto alone_weight = Pack(*single, matrix.view(), bias, num_segments);
    std::vector<float> alone;
    for (int64_t m = 0; m < batches.back(); ++m) {
      const std::vector<float> row =
          Run(*single,
              *alone_weight,
              std::span(x).subspan(static_cast<size_t>(m * k), static_cast<size_t>(k)));
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (const int threads : {1, 2, 3}) {
      auto backend = MakeBackend(threads);
      const auto weight = Pack(*backend, matrix.view(), bias, num_segments);
      for (const int64_t batch : batches) {
        const std::vector<float> y =
            Run(*backend, *weight, std::span(x).first(static_cast<size_t>(batch * k)));
        ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
            << NameOf(dtype) << " batch " << batch << " of " << n << " x " << k << ", " << threads
            << " threads";
      }
    }
  }
};

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST_P(LinearTest, AgreesWithLoops) {
  for (const DType dtype : kDTypes) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 5}, {16, 8}, {17, 7}, {65, 33}, {130, 201}, {64, 1025}, {31, 2600}}) {
      const Matrix matrix(dtype, n, k, 1);
      for (const int64_t num_tokens : {1, 2, 7, 13}) {
        ExpectAgreesWithLoops(matrix, num_tokens, num_tokens % 2 == 0, 1);
      }
    }
  }
}

TEST_P(LinearTest, TreeReductionAgreesWithLoops) {
  for (const DType dtype : kDTypes) {
    for (const auto& [n, k] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 8}, {19, 24}, {70, 328}, {33, 9000}}) {
      const Matrix matrix(dtype, n, k, 2);
      for (const int64_t num_tokens : {1, 5, 9}) {
        ExpectAgreesWithLoops(matrix, num_tokens, num_tokens == 5, kTreeSegments);
      }
    }
  }
}

TEST_P(LinearTest, ARowAloneHasTheSameBitsAsInAnyBatch) {
  std::vector<int64_t> batches;
  for (int64_t batch = 1; batch <= 70; ++batch) {
    batches.push_back(batch);
  }
  batches.push_back(131);
  for (const DType dtype : kDTypes) {
    ExpectRowsDoNotDependOnTheBatch(dtype, 147, 333, 1, batches);
    ExpectRowsDoNotDependOnTheBatch(dtype, 83, 328, kTreeSegments, batches);
  }
}

// Sizes at which k is cut into pieces and rows into blocks.
TEST_P(LinearTest, ARowAloneHasTheSameBitsAsInALargePrefill) {
  for (const DType dtype : kDTypes) {
    ExpectRowsDoNotDependOnTheBatch(dtype, 97, 2601, 1, {7, 96, 97, 512});
    ExpectRowsDoNotDependOnTheBatch(dtype, 69, int64_t{8} * 1101, kTreeSegments, {7, 98, 200});
  }
}

// The definition of kSequential: one accumulator, k ascending, the bias last.
TEST_P(LinearTest, SequentialOrderIsOneAccumulatorOverAscendingK) {
  for (const DType dtype : kDTypes) {
    if (rounds_input(dtype)) {
      continue;
    }
    const Matrix matrix(dtype, 37, 1500, 8);
    const std::vector<float> x = RandomFloats(int64_t{9} * 1500, 9);
    const std::vector<float> bias = RandomFloats(37, 10);
    auto backend = MakeBackend(2);
    const auto weight = Pack(*backend, matrix.view(), bias, 1);

    const std::vector<float> y = Run(*backend, *weight, x);

    const bool fused = GetParam() != "portable";
    for (size_t m = 0; m < 9; ++m) {
      for (size_t n = 0; n < 37; ++n) {
        float sum = 0.0F;
        for (size_t k = 0; k < 1500; ++k) {
          const float a = x[m * 1500 + k];
          const float b = matrix.values[n * 1500 + k];
          sum = fused ? std::fma(a, b, sum) : a * b + sum;
        }
        ASSERT_EQ(y[m * 37 + n], sum + bias[n]) << NameOf(dtype) << " " << m << " " << n;
      }
    }
  }
}

// Expects the order that linear.h gives for TDPBF16PS. The sums are the same on every machine.
TEST_P(LinearTest, TilesAddEvenAndOddPlacesOfThirtyTwo) {
  if (GetParam() != "amx") {
    GTEST_SKIP() << "another order";
  }
  constexpr size_t kRows = 70;
  constexpr size_t kCols = 999;
  constexpr size_t kTokens = 37;
  const Matrix matrix(DType::kBF16, kRows, kCols, 25);
  const std::vector<float> x = RandomFloats(kTokens * kCols, 26);
  const std::vector<float> bias = RandomFloats(kRows, 27);
  auto backend = MakeBackend(2);
  const auto weight = Pack(*backend, matrix.view(), bias, 1);

  const std::vector<float> y = Run(*backend, *weight, x);

  for (size_t m = 0; m < kTokens; ++m) {
    for (size_t n = 0; n < kRows; ++n) {
      float sum = 0.0F;
      for (size_t begin = 0; begin < kCols; begin += 32) {
        float parts[2] = {0.0F, 0.0F};
        for (size_t k = begin; k < std::min(begin + 32, kCols); ++k) {
          parts[k % 2] =
              std::fma(RoundedToBF16(x[m * kCols + k]), matrix.values[n * kCols + k], parts[k % 2]);
        }
        sum += parts[0] + parts[1];
      }
      ASSERT_EQ(y[m * kRows + n], sum + bias[n]) << m << " " << n;
    }
  }
}

// Tensor-parallel ranks each compute the segments of their columns, and exchange sums of pairs.
TEST_P(LinearTest, TreeReductionIsThePairwiseSumOfTheParts) {
  constexpr size_t kRows = 29;
  constexpr size_t kCols = 8 * size_t{45};
  constexpr size_t kTokens = 7;
  for (const DType dtype : kDTypes) {
    const Matrix matrix(dtype, kRows, kCols, 11);
    const std::vector<float> x = RandomFloats(kTokens * kCols, 12);
    auto backend = MakeBackend(2);
    const auto weight = Pack(*backend, matrix.view(), {}, kTreeSegments);
    const std::vector<float> y = Run(*backend, *weight, x);
    for (const size_t num_parts : {size_t{2}, size_t{4}, size_t{8}}) {
      const size_t width = kCols / num_parts;
      std::vector<std::vector<float>> sums;
      for (size_t part = 0; part < num_parts; ++part) {
        std::vector<std::byte> columns;
        for (size_t n = 0; n < kRows; ++n) {
          for (size_t k = 0; k < width; ++k) {
            AppendAs(dtype, matrix.values[n * kCols + part * width + k], &columns);
          }
        }
        std::vector<float> x_part;
        for (size_t m = 0; m < kTokens; ++m) {
          const auto begin = x.begin() + static_cast<int64_t>(m * kCols + part * width);
          x_part.insert(x_part.end(), begin, begin + static_cast<int64_t>(width));
        }
        const int64_t num_segments = kTreeSegments / static_cast<int64_t>(num_parts);
        const auto packed =
            Pack(*backend,
                 {columns.data(), FormatOf(dtype), kRows, static_cast<int64_t>(width)},
                 {},
                 num_segments);
        sums.push_back(Run(*backend, *packed, x_part));
      }
      for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
        for (size_t pair = 0; pair < sums.size() / 2; ++pair) {
          for (size_t i = 0; i < y.size(); ++i) {
            sums[pair][i] = sums[2 * pair][i] + sums[2 * pair + 1][i];
          }
        }
      }
      ASSERT_EQ(sums.front(), y) << NameOf(dtype) << " " << num_parts;
    }
  }
}

TEST_P(LinearTest, PartsStandOneAboveTheOther) {
  auto backend = MakeBackend(1);
  for (const DType dtype : kDTypes) {
    const Matrix whole(dtype, 75, 21, 13);
    const auto row_bytes = static_cast<size_t>(21 * SizeOf(dtype));
    const MatrixView parts[] = {{whole.bytes.data(), FormatOf(dtype), 33, 21},
                                {whole.bytes.data() + 33 * row_bytes, FormatOf(dtype), 1, 21},
                                {whole.bytes.data() + 34 * row_bytes, FormatOf(dtype), 41, 21}};
    const std::vector<float> x = RandomFloats(int64_t{3} * 21, 14);
    const auto one = Pack(*backend, whole.view(), {}, 1);

    const auto joined = backend->PackLinear({.parts = parts});

    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ((*joined)->out_features(), 75);
    EXPECT_EQ((*joined)->in_features(), 21);
    EXPECT_EQ(Run(*backend, **joined, x), Run(*backend, *one, x));
  }
}

TEST_P(LinearTest, PartsOfDifferentTypesAreWidened) {
  auto backend = MakeBackend(1);
  const Matrix half(DType::kF16, 20, 18, 15);
  const Matrix brain(DType::kBF16, 5, 18, 16);
  const MatrixView parts[] = {half.view(), brain.view()};
  std::vector<float> values = half.values;
  values.insert(values.end(), brain.values.begin(), brain.values.end());
  const MatrixView wide = {values.data(), WeightFormat::kF32, 25, 18};
  const std::vector<float> x = RandomFloats(int64_t{4} * 18, 17);

  const auto mixed = backend->PackLinear({.parts = parts});

  ASSERT_TRUE(mixed.ok()) << mixed.status();
  const auto expected = Pack(*backend, wide, {}, 1);
  EXPECT_EQ(Run(*backend, **mixed, x), Run(*backend, *expected, x));
}

TEST_P(LinearTest, SourcesNeedNoAlignment) {
  auto backend = MakeBackend(1);
  for (const DType dtype : kDTypes) {
    const Matrix matrix(dtype, 19, 23, 18);
    std::vector<std::byte> shifted(matrix.bytes.size() + 1);
    std::memcpy(shifted.data() + 1, matrix.bytes.data(), matrix.bytes.size());
    const std::vector<float> x = RandomFloats(int64_t{2} * 23, 19);
    const auto aligned = Pack(*backend, matrix.view(), {}, 1);

    const auto unaligned = Pack(*backend, {shifted.data() + 1, FormatOf(dtype), 19, 23}, {}, 1);

    EXPECT_EQ(Run(*backend, *unaligned, x), Run(*backend, *aligned, x));
  }
}

TEST_P(LinearTest, AnInfiniteInputStaysInItsRow) {
  auto backend = MakeBackend(2);
  for (const DType dtype : kDTypes) {
    const Matrix matrix(dtype, 21, 40, 20);
    const std::vector<float> x = RandomFloats(int64_t{9} * 40, 21);
    const auto weight = Pack(*backend, matrix.view(), {}, kTreeSegments);
    const std::vector<float> clean = Run(*backend, *weight, x);
    for (const size_t place : {4U * 40U, 4U * 40U + 39U}) {
      std::vector<float> spoilt = x;
      spoilt[place] = std::numeric_limits<float>::infinity();

      const std::vector<float> y = Run(*backend, *weight, spoilt);

      for (size_t i = 0; i < y.size(); ++i) {
        if (i / 21 == 4) {
          EXPECT_FALSE(std::isfinite(y[i]));
        } else {
          EXPECT_EQ(y[i], clean[i]) << "row " << i / 21;
        }
      }
    }
  }
}

struct MlpShape {
  int64_t hidden;
  int64_t width;
  int64_t out_segments;
  bool has_bias;
};

// Panels that are whole or not, k in one piece or several, segments padded or not.
constexpr MlpShape kMlpShapes[] = {{96, 128, 4, false},
                                   {96, 192, 1, true},
                                   {2112, 64, 2, false},
                                   {64, 100, 1, false},
                                   {64, 64, 8, false}};

TEST_P(LinearTest, AnMlpHasTheBitsOfItsOperations) {
  const auto expect_same = [&](KernelBackend& backend, const MlpShape& shape, int64_t num_tokens) {
    const Matrix in(DType::kBF16, 2 * shape.width, shape.hidden, 31);
    const Matrix out(DType::kBF16, 40, shape.width, 32);
    const std::vector<float> bias =
        shape.has_bias ? RandomFloats(in.rows, 33) : std::vector<float>();
    const auto packed_in = Pack(backend, in.view(), bias, 1);
    const auto packed_out = Pack(backend, out.view(), {}, shape.out_segments);
    const std::vector<float> x = RandomFloats(num_tokens * shape.hidden, 34);
    const auto tokens = static_cast<size_t>(num_tokens);
    std::vector<float> between(tokens * static_cast<size_t>(in.rows));
    std::vector<float> activated(tokens * static_cast<size_t>(shape.width));
    std::vector<float> y(tokens * static_cast<size_t>(out.rows));
    for (const ActivationKind kind : {ActivationKind::kSilu,
                                      ActivationKind::kRelu,
                                      ActivationKind::kGelu,
                                      ActivationKind::kGeluTanh}) {
      backend.Mlp({.activation = kind,
                   .num_tokens = num_tokens,
                   .width = shape.width,
                   .x = x.data(),
                   .in = packed_in.get(),
                   .between = between.data(),
                   .activated = activated.data(),
                   .out = packed_out.get(),
                   .y = y.data()});

      between = Run(backend, *packed_in, x);
      backend.Activate({.kind = kind,
                        .num_tokens = num_tokens,
                        .width = shape.width,
                        .in = between.data(),
                        .out = activated.data()});
      ASSERT_EQ(Run(backend, *packed_out, activated), y)
          << num_tokens << " tokens, " << shape.hidden << " to " << shape.width;
    }
  };
  for (const int threads : {1, 2}) {
    auto backend = MakeBackend(threads);
    for (const MlpShape& shape : kMlpShapes) {
      for (const int64_t num_tokens : {1, 16, 17, 33, 64, 530}) {
        expect_same(*backend, shape, num_tokens);
      }
    }
  }
}

TEST_P(LinearTest, NoTokensAreNoWork) {
  auto backend = MakeBackend(2);
  for (const DType dtype : kDTypes) {
    const Matrix matrix(dtype, 21, 40, 24);
    const auto weight = Pack(*backend, matrix.view(), {}, kTreeSegments);

    EXPECT_TRUE(Run(*backend, *weight, {}).empty());
  }
}

TEST_P(LinearTest, RefusesWhatCannotBePacked) {
  auto backend = MakeBackend(1);
  const Matrix matrix(DType::kF32, 4, 12, 22);
  const MatrixView unequal[] = {matrix.view(), {matrix.bytes.data(), WeightFormat::kF32, 4, 11}};
  const MatrixView one[] = {matrix.view()};
  const MatrixView empty[] = {{matrix.bytes.data(), WeightFormat::kF32, 0, 12}};
  const std::vector<float> short_bias(3, 0.0F);

  const absl::Status refusals[] = {
      backend->PackLinear({}).status(),
      backend->PackLinear({.parts = unequal}).status(),
      backend->PackLinear({.parts = empty}).status(),
      backend->PackLinear({.parts = one, .bias = short_bias}).status(),
      backend->PackLinear({.parts = one, .num_segments = kTreeSegments}).status()};

  for (const absl::Status& status : refusals) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST_P(LinearTest, AMatrixBeyondMemoryIsRefusedNotFatal) {
  auto backend = MakeBackend(1);
  const float value = 0.0F;
  const MatrixView beyond_64_bits[] = {
      {&value, WeightFormat::kF32, int64_t{1} << 40, int64_t{1} << 40}};

  EXPECT_EQ(backend->PackLinear({.parts = beyond_64_bits}).status().code(),
            absl::StatusCode::kResourceExhausted);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which abort on it
  const MatrixView beyond_memory[] = {
      {&value, WeightFormat::kF32, int64_t{1} << 28, int64_t{1} << 28}};
  EXPECT_EQ(backend->PackLinear({.parts = beyond_memory}).status().code(),
            absl::StatusCode::kResourceExhausted);
#endif
}

TEST_P(LinearTest, WeightsKeepTheirTypeInMemory) {
  auto backend = MakeBackend(1);
  for (const DType dtype : kDTypes) {
    const Matrix matrix(dtype, 128, 64, 23);

    const auto weight = Pack(*backend, matrix.view(), {}, 1);

    EXPECT_EQ(weight->bytes(), int64_t{128} * 64 * SizeOf(dtype));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas,
                         LinearTest,
                         testing::Values("amx", "avx512bf16", "avx512", "avx2", "portable"),
                         IsaName);

}  // namespace
}  // namespace quire
