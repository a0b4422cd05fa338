// Products of quantized weights on every instruction set of this machine, against plain loops of
// the arithmetic that kernels/cpu/quantized_linear.h promises: equal bits, not only near values.
#include "kernels/cpu/quantized_linear.h"

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

#include "common/base/error.h"
#include "kernels/api/dequantize.h"
#include "kernels/api/quantize.h"
#include "kernels/api/weight_block.h"
#include "kernels/cpu/code_format.h"
#include "kernels/cpu/huge_arena.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_team.h"

namespace quire {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kQ4_0,
                                     WeightFormat::kQ4_1,
                                     WeightFormat::kQ5_0,
                                     WeightFormat::kQ5_1,
                                     WeightFormat::kQ8_0,
                                     WeightFormat::kQ4K,
                                     WeightFormat::kQ5K,
                                     WeightFormat::kQ6K,
                                     WeightFormat::kIq4Nl,
                                     WeightFormat::kIq4Xs};

std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> distribution(-1.0F, 1.0F);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = distribution(generator);
  }
  return values;
}

// A quantized matrix of random bytes whose scales are finite. Random codes meet every code and
// every integer scale, the largest ones too.
struct Matrix {
  Matrix(WeightFormat of_format, int64_t num_rows, int64_t num_cols, uint32_t seed)
      : format(of_format), rows(num_rows), cols(num_cols) {
    std::mt19937 generator(seed);
    bytes.resize(static_cast<size_t>(rows * row_bytes()));
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(generator());
    }
    const WeightFormatInfo& info = InfoOf(format);
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(info.block_bytes)) {
      SetHalves(&bytes[at], generator);
    }
  }

  // Sets all bytes except the numbers of binary16.
  void Fill(std::byte value) {
    std::mt19937 generator(1);
    std::ranges::fill(bytes, value);
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(InfoOf(format).block_bytes)) {
      SetHalves(&bytes[at], generator);
    }
  }

  // Clears the top exponent bits of the block's numbers of binary16, so that they are small.
  void SetHalves(std::byte* block, std::mt19937& generator) const {
    const bool is_at_end = format == WeightFormat::kQ6K;
    const int num_halves = CodeFormatOf(format).has_minimum ? 2 : 1;
    std::byte* const halves = is_at_end ? block + InfoOf(format).block_bytes - 2 : block;
    for (int i = 0; i < num_halves; ++i) {
      const auto half = static_cast<uint16_t>((generator() & 0x83FF) | (generator() % 3 + 8) << 10);
      std::memcpy(halves + 2 * i, &half, sizeof(half));
    }
  }

  int64_t row_bytes() const { return *NumBytes(format, cols); }
  const std::byte* row(int64_t n) const { return bytes.data() + n * row_bytes(); }
  std::vector<float> Row(int64_t n) const {
    std::vector<float> values(static_cast<size_t>(cols));
    Dequantize(format, {row(n), static_cast<size_t>(row_bytes())}, values);
    return values;
  }
  MatrixView view() const {
    MatrixView v;
    v.data = bytes.data();
    v.format = format;
    v.rows = rows;
    v.cols = cols;
    return v;
  }

  WeightFormat format;
  int64_t rows;
  int64_t cols;
  std::vector<std::byte> bytes;
};

struct RoundedRow {
  std::vector<int> codes;
  std::vector<float> scales;
};

RoundedRow RoundRow(const float* x, int64_t cols) {
  RoundedRow row;
  for (int64_t begin = 0; begin < cols; begin += 32) {
    float max = 0.0F;
    for (int64_t k = begin; k < begin + 32; ++k) {
      max = std::max(max, std::abs(x[k]));
    }
    const float inverse = max == 0.0F ? 0.0F : 127.0F / max;
    row.scales.push_back(max == 0.0F ? 0.0F : max / 127.0F);
    for (int64_t k = begin; k < begin + 32; ++k) {
      row.codes.push_back(static_cast<int>(std::nearbyint(x[k] * inverse)));
    }
  }
  return row;
}

// The sum over groups [begin, end) of one row of weights, as quantized_linear.h defines it.
float SumOfGroups(
    const Matrix& matrix, int64_t n, const RoundedRow& x, int64_t begin, int64_t end) {
  const WeightFormatInfo& info = InfoOf(matrix.format);
  float sum = 0.0F;
  for (int64_t k = 32 * begin; k < 32 * end; k += info.group_weights) {
    WeightBlock block;
    UnpackBlock(matrix.format, matrix.row(n) + k / info.block_weights * info.block_bytes, block);
    const auto in_block = static_cast<size_t>(k % info.block_weights);
    const size_t group = in_block / static_cast<size_t>(info.group_weights);
    int32_t products = 0;
    int32_t inputs = 0;
    for (size_t i = 0; i < static_cast<size_t>(info.group_weights); ++i) {
      const int input = x.codes[static_cast<size_t>(k) + i];
      products += block.codes[in_block + i] * input;
      inputs += input;
    }
    const float a = x.scales[static_cast<size_t>(k / 32)];
    const float w = block.scale * static_cast<float>(block.group_scales[group]);
    sum = sum + static_cast<float>(products) * (w * a);
    if (CodeFormatOf(matrix.format).has_minimum) {
      const float m = -block.minimum * static_cast<float>(block.group_minimums[group]);
      sum = sum + static_cast<float>(inputs) * (m * a);
    }
  }
  return sum;
}

float Output(const Matrix& matrix, int64_t n, const RoundedRow& x, int num_segments) {
  const int64_t groups = matrix.cols / 32;
  std::vector<float> sums;
  for (int s = 0; s < num_segments; ++s) {
    sums.push_back(
        SumOfGroups(matrix, n, x, s * groups / num_segments, (s + 1) * groups / num_segments));
  }
  while (sums.size() > 1) {
    std::vector<float> pairs;
    for (size_t i = 0; i < sums.size(); i += 2) {
      pairs.push_back(sums[i] + sums[i + 1]);
    }
    sums = pairs;
  }
  return sums[0];
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

class QuantizedLinearTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!IsSupported(*GetParam())) {
      GTEST_SKIP() << "this machine lacks the instructions";
    }
  }

  std::unique_ptr<CpuQuantizedLinear> Pack(std::span<const MatrixView> parts,
                                           std::span<const float> bias,
                                           int64_t num_segments) {
    auto packed =
        CpuQuantizedLinear::Pack({.parts = parts, .bias = bias, .num_segments = num_segments},
                                 kernels().lanes,
                                 arena_,
                                 team_);
    EXPECT_TRUE(packed.ok()) << packed.status();
    return std::move(*packed);
  }
  // Fails the test if the product writes past the end of the output.
  std::vector<float> Run(const CpuQuantizedLinear& weight,
                         std::span<const float> x,
                         InputType input_type = InputType::kInt8) {
    const auto tokens = static_cast<int64_t>(x.size()) / weight.in_features();
    constexpr size_t kGuard = 64;
    constexpr float kGuardValue = 12345.0F;
    std::vector<float> y(static_cast<size_t>(tokens * weight.out_features()) + kGuard, kGuardValue);
    QuantizedLinear({.num_tokens = tokens, .x = x.data(), .y = y.data(), .weight = &weight},
                    input_type,
                    kernels(),
                    team_);
    for (size_t i = y.size() - kGuard; i < y.size(); ++i) {
      EXPECT_EQ(y[i], kGuardValue) << "written past the end";
    }
    y.resize(y.size() - kGuard);
    return y;
  }
  static const QuantizedKernels& kernels() { return *GetParam()->quantized; }

  HugeArena arena_;
  ThreadTeam team_{2};
};

TEST_P(QuantizedLinearTest, HasTheBitsOfPlainLoops) {
  for (const WeightFormat format : kFormats) {
    for (const int num_segments : {1, 2, 8}) {
      for (const int64_t num_tokens : {1, 2, 3, 4, 5, 6, 7, 13}) {
        const int64_t num_blocks = num_tokens == 1 ? 9 : 2;
        const Matrix matrix(format, 37, InfoOf(format).block_weights * num_blocks, 7);
        const auto bias = RandomFloats(matrix.rows, 3);
        const auto x = RandomFloats(num_tokens * matrix.cols, 4);
        const MatrixView view = matrix.view();
        const auto weight = Pack({&view, 1}, bias, num_segments);

        const auto y = Run(*weight, x);

        for (int64_t m = 0; m < num_tokens; ++m) {
          const RoundedRow row = RoundRow(&x[static_cast<size_t>(m * matrix.cols)], matrix.cols);
          for (int64_t n = 0; n < matrix.rows; ++n) {
            const float expected =
                Output(matrix, n, row, num_segments) + bias[static_cast<size_t>(n)];
            const float got = y[static_cast<size_t>(m * matrix.rows + n)];
            ASSERT_TRUE(SameBits(got, expected))
                << NameOf(format) << " got " << got << " need " << expected << " at " << m << ", "
                << n << " of " << num_tokens << " tokens, " << num_segments << " segments";
          }
        }
      }
    }
  }
}

// Sums of 16 bits would overflow first for codes and inputs of one sign and the largest size.
TEST_P(QuantizedLinearTest, TheLargestCodesAndInputsDoNotOverflow) {
  for (const WeightFormat format : kFormats) {
    for (const int byte : {0xFF, 0x80, 0x7F, 0x00}) {
      Matrix matrix(format, 9, InfoOf(format).block_weights, 7);
      matrix.Fill(static_cast<std::byte>(byte));
      for (const float sign : {1.0F, -1.0F}) {
        const std::vector<float> x(static_cast<size_t>(matrix.cols), sign);
        const MatrixView view = matrix.view();

        const auto y = Run(*Pack({&view, 1}, {}, 1), x);

        const RoundedRow row = RoundRow(x.data(), matrix.cols);
        for (int64_t n = 0; n < matrix.rows; ++n) {
          ASSERT_TRUE(SameBits(y[static_cast<size_t>(n)], Output(matrix, n, row, 1)))
              << NameOf(format) << " " << byte;
        }
      }
    }
  }
}

// Bounds the rounding of fp32 by the magnitude of the products: the portable path does not fuse.
TEST_P(QuantizedLinearTest, MultipliesFp32InputsByTheDequantizedWeights) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t num_tokens : {1, 7}) {
      const Matrix matrix(format, 37, int64_t{3} * InfoOf(format).block_weights, 7);
      const auto x = RandomFloats(num_tokens * matrix.cols, 4);
      const MatrixView view = matrix.view();
      const auto weight = Pack({&view, 1}, {}, 8);

      const auto y = Run(*weight, x, InputType::kF32);

      for (int64_t m = 0; m < num_tokens; ++m) {
        for (int64_t n = 0; n < matrix.rows; ++n) {
          const std::vector<float> row = matrix.Row(n);
          double sum = 0.0;
          double magnitude = 0.0;
          for (size_t k = 0; k < row.size(); ++k) {
            const double product = double{row[k]} * x[static_cast<size_t>(m * matrix.cols) + k];
            sum += product;
            magnitude += std::abs(product);
          }
          ASSERT_NEAR(y[static_cast<size_t>(m * matrix.rows + n)],
                      sum,
                      magnitude * static_cast<double>(2 * matrix.cols + 2) * 0x1p-24)
              << NameOf(format);
        }
      }
    }
  }
}

TEST_P(QuantizedLinearTest, WidensRowsToTheBitsOfDequantize) {
  for (const WeightFormat format : kFormats) {
    const Matrix matrix(format, 37, int64_t{2} * InfoOf(format).block_weights, 8);
    const Matrix other(WeightFormat::kQ8_0, 5, matrix.cols, 9);
    const std::vector<MatrixView> parts = {other.view(), matrix.view()};
    const auto weight = Pack(parts, {}, 1);

    for (int64_t n = 0; n < matrix.rows; ++n) {
      std::vector<float> row(static_cast<size_t>(matrix.cols));
      weight->WidenRow(other.rows + n, row.data());
      const std::vector<float> expected = matrix.Row(n);
      for (size_t k = 0; k < row.size(); ++k) {
        ASSERT_TRUE(SameBits(row[k], expected[k])) << NameOf(format) << " " << n << ", " << k;
      }
    }
  }
}

// Ranks of a group hold runs of columns, which may begin inside a block of 256 weights. The sum of
// the ranks' outputs is the next level of the tree of segments.
TEST_P(QuantizedLinearTest, TwoHalvesOfTheColumnsAddUpToTheWhole) {
  for (const WeightFormat format : kFormats) {
    const int32_t block = InfoOf(format).block_weights;
    const Matrix matrix(format, 21, block == 256 ? 3 * 256 : 8 * 32, 5);
    const int64_t half = matrix.cols / 2;
    const auto x = RandomFloats(2 * matrix.cols, 6);
    const MatrixView whole = matrix.view();
    const auto expected = Run(*Pack({&whole, 1}, {}, 8), x);
    std::vector<std::vector<float>> parts;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const int64_t first_block = rank * half / block;
      const int64_t end_block = ((rank + 1) * half + block - 1) / block;
      std::vector<std::byte> bytes;
      std::vector<float> inputs;
      for (int64_t n = 0; n < matrix.rows; ++n) {
        const std::byte* const row = matrix.row(n);
        bytes.insert(bytes.end(),
                     row + first_block * InfoOf(format).block_bytes,
                     row + end_block * InfoOf(format).block_bytes);
      }
      for (int64_t m = 0; m < 2; ++m) {
        const auto* const begin = x.data() + m * matrix.cols + rank * half;
        inputs.insert(inputs.end(), begin, begin + half);
      }
      MatrixView view = whole;
      view.data = bytes.data();
      view.cols = half;
      view.skipped_cols = static_cast<int32_t>(rank * half - first_block * block);
      parts.push_back(Run(*Pack({&view, 1}, {}, 4), inputs));
    }

    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(SameBits(parts[0][i] + parts[1][i], expected[i])) << NameOf(format) << " " << i;
    }
  }
}

TEST_P(QuantizedLinearTest, ARowDoesNotDependOnItsBatchOrOnTheThreads) {
  const Matrix q(WeightFormat::kQ4K, 130, 512, 1);
  const Matrix k(WeightFormat::kQ6K, 33, 512, 2);
  const Matrix v(WeightFormat::kQ8_0, 7, 512, 3);
  const std::vector<MatrixView> parts = {q.view(), k.view(), v.view()};
  const auto x = RandomFloats(100 * 512, 4);
  const auto weight = Pack(parts, {}, 8);
  const auto width = static_cast<size_t>(weight->out_features());
  const auto together = Run(*weight, x);
  for (const InputType input_type : {InputType::kInt8, InputType::kF32}) {
    const auto expected = input_type == InputType::kInt8 ? together : Run(*weight, x, input_type);
    for (const int64_t num_tokens : {1, 2, 8, 50}) {
      const auto y =
          Run(*weight, std::span(x).last(static_cast<size_t>(num_tokens * 512)), input_type);
      EXPECT_TRUE(std::equal(
          y.begin(), y.end(), expected.end() - static_cast<int64_t>(y.size()), SameBits));
    }
  }
  ThreadTeam alone(1);
  std::vector<float> y(together.size());
  QuantizedLinear({.num_tokens = static_cast<int64_t>(y.size() / width),
                   .x = x.data(),
                   .y = y.data(),
                   .weight = weight.get()},
                  InputType::kInt8,
                  kernels(),
                  alone);
  EXPECT_TRUE(std::equal(y.begin(), y.end(), together.begin(), SameBits));
}

TEST_P(QuantizedLinearTest, InputsThatAreNotFiniteMakeTheirRowNaNAndNoOther) {
  const Matrix matrix(WeightFormat::kQ4_1, 20, 64, 1);
  const MatrixView view = matrix.view();
  const auto weight = Pack({&view, 1}, {}, 1);
  auto x = RandomFloats(3 * 64, 4);
  const auto expected = Run(*weight, x);
  x[64 + 7] = std::numeric_limits<float>::infinity();

  const auto y = Run(*weight, x);

  for (size_t n = 0; n < 20; ++n) {
    EXPECT_TRUE(SameBits(y[n], expected[n]));
    EXPECT_TRUE(std::isnan(y[20 + n]));
    EXPECT_TRUE(SameBits(y[40 + n], expected[40 + n]));
  }
}

TEST_P(QuantizedLinearTest, RefusesColumnsThatAreNoWholeGroups) {
  const Matrix matrix(WeightFormat::kQ6K, 4, 256, 1);
  MatrixView view = matrix.view();
  view.cols = 240;
  view.skipped_cols = 16;

  const auto packed =
      CpuQuantizedLinear::Pack({.parts = {&view, 1}, .bias = {}}, kernels().lanes, arena_, team_);

  EXPECT_EQ(ReasonOf(packed.status()), "LINEAR_SHAPE") << packed.status();
}

TEST_P(QuantizedLinearTest, PlainWeightsAreRoundedAsQuantizeRounds) {
  for (const WeightFormat rounded : {WeightFormat::kQ8_0, WeightFormat::kQ4_0}) {
    const std::vector<float> weights = RandomFloats(21 * 96, 5);
    const MatrixView plain = {
        .data = weights.data(), .format = WeightFormat::kF32, .rows = 21, .cols = 96};
    Matrix quantized(rounded, 21, 96, 1);
    Quantize(rounded, weights, quantized.bytes);
    const MatrixView view = quantized.view();
    const auto x = RandomFloats(2 * 96, 6);

    const auto packed = CpuQuantizedLinear::Pack(
        {.parts = {&plain, 1}, .bias = {}}, kernels().lanes, arena_, team_, rounded);

    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(Run(**packed, x), Run(*Pack({&view, 1}, {}, 1), x)) << NameOf(rounded);
  }
}

TEST_P(QuantizedLinearTest, RefusesToRoundWeightsThatAreNotFinite) {
  std::vector<float> weights = RandomFloats(64, 5);
  weights[40] = std::numeric_limits<float>::infinity();
  const MatrixView plain = {
      .data = weights.data(), .format = WeightFormat::kF32, .rows = 2, .cols = 32};

  const auto packed =
      CpuQuantizedLinear::Pack({.parts = {&plain, 1}, .bias = {}}, kernels().lanes, arena_, team_);

  EXPECT_EQ(ReasonOf(packed.status()), "MODEL_FILE") << packed.status();
}

TEST_P(QuantizedLinearTest, PacksIntoAsManyBytesAsBytesForTells) {
  for (const WeightFormat format : kFormats) {
    const Matrix matrix(format, 64, 512, 1);
    const MatrixView view = matrix.view();
    const LinearSource source = {.parts = {&view, 1}, .bias = {}};

    const auto weight = Pack({&view, 1}, {}, 1);

    EXPECT_EQ(weight->bytes(), CpuQuantizedLinear::BytesFor(source, kernels().lanes));
    EXPECT_LE(static_cast<double>(weight->bytes()), 1.03 * static_cast<double>(matrix.bytes.size()))
        << NameOf(format);
  }
}

std::vector<const KernelTable*> AllTables() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable& table : KernelTables()) {
    tables.push_back(&table);
  }
  return tables;
}

INSTANTIATE_TEST_SUITE_P(AllIsas,
                         QuantizedLinearTest,
                         testing::ValuesIn(AllTables()),
                         [](const auto& table) { return std::string(table.param->isa); });

}  // namespace
}  // namespace quire
