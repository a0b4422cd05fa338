// Embedding, norms and activations of the CPU backend against their formulas in double.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/api/dequantize.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/cpu_backends.h"
#include "tests/kernels/float_bits.h"
#include "tests/kernels/weight_blocks.h"
#include "tests/support/random.h"

namespace quire {
namespace {

constexpr size_t kGuard = 32;
constexpr float kGuardValue = 12345.0F;

std::vector<float> RandomFloats(int64_t count, uint32_t seed, float scale) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0.0F, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = distribution(generator);
  }
  return values;
}

std::vector<float> Guarded(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count) + kGuard, kGuardValue);
}

void ExpectGuardIntact(const std::vector<float>& values) {
  for (size_t i = values.size() - kGuard; i < values.size(); ++i) {
    ASSERT_EQ(values[i], kGuardValue) << "written past the end";
  }
}

class DenseTest : public CpuBackendTest {};

TEST_P(DenseTest, EmbedWidensEverySixteenBitValueExactly) {
  auto backend = MakeBackend(1);
  std::vector<uint16_t> every_value(65536);
  for (size_t i = 0; i < every_value.size(); ++i) {
    every_value[i] = static_cast<uint16_t>(i);
  }
  const TokenId token = 0;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> out = Guarded(65536);

    backend->Embed({.num_tokens = 1,
                    .token_ids = &token,
                    .table = {every_value.data(), FormatOf(dtype), 1, 65536},
                    .out = out.data()});

    for (size_t i = 0; i < 65536; ++i) {
      const float expected =
          dtype == DType::kF16 ? F16Value(every_value[i]) : BF16Value(every_value[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out[i])) << NameOf(dtype) << " " << i;
      } else {
        ASSERT_EQ(BitsOf(out[i]), BitsOf(expected)) << NameOf(dtype) << " " << i;
      }
    }
    ExpectGuardIntact(out);
  }
}

TEST_P(DenseTest, EmbedPicksRowsAndAddsLearnedPositions) {
  constexpr int64_t kWidth = 37;
  auto backend = MakeBackend(2);
  const std::vector<float> table = RandomFloats(11 * kWidth, 1, 1.0F);
  const std::vector<float> positions_table = RandomFloats(8 * kWidth, 2, 1.0F);
  const TokenId tokens[] = {10, 0, 3, 3};
  const int32_t positions[] = {0, 5, 1, 2};
  std::vector<float> out = Guarded(4 * kWidth);

  backend->Embed({.num_tokens = 4,
                  .token_ids = tokens,
                  .table = {table.data(), WeightFormat::kF32, 11, kWidth},
                  .position_table = {positions_table.data(), WeightFormat::kF32, 8, kWidth},
                  .positions = positions,
                  .position_offset = 2,
                  .out = out.data()});

  for (size_t i = 0; i < 4; ++i) {
    for (size_t d = 0; d < kWidth; ++d) {
      const auto token = static_cast<size_t>(tokens[i]);
      const auto position = static_cast<size_t>(positions[i]) + 2;
      EXPECT_EQ(out[i * kWidth + d],
                table[token * kWidth + d] + positions_table[position * kWidth + d]);
    }
  }
  ExpectGuardIntact(out);
}

TEST_P(DenseTest, EmbedDecodesTablesOfEveryQuantizedFormat) {
  constexpr int64_t kRows = 5;
  const TokenId tokens[] = {4, 0, 3, 3, 7};
  const int32_t positions[] = {0, 1, 2, 3, 4};
  auto backend = MakeBackend(2);
  auto reference = CreateReferenceBackend();
  Random random(1);
  for (const WeightFormatInfo& info : kWeightFormats) {
    if (!IsQuantized(info.format)) {
      continue;
    }
    const int64_t width = 2 * info.block_weights;
    const int64_t num_blocks = kRows * width / info.block_weights;
    const std::vector<std::byte> blocks = FiniteBlocks(info.format, num_blocks, random);
    std::vector<float> weights(static_cast<size_t>(kRows * width));
    Dequantize(info.format, blocks, weights);
    const std::vector<float> learned = RandomFloats(5 * width, 2, 1.0F);
    for (KernelBackend* const tested : {backend.get(), reference.get()}) {
      for (const float* position_table : {static_cast<const float*>(nullptr), learned.data()}) {
        std::vector<float> out = Guarded(std::ssize(tokens) * width);

        tested->Embed({.num_tokens = std::ssize(tokens),
                       .token_ids = tokens,
                       .table = {blocks.data(), info.format, kRows, width},
                       .position_table = {position_table, WeightFormat::kF32, 5, width},
                       .positions = positions,
                       .out = out.data()});

        for (int64_t i = 0; i < std::ssize(tokens) * width; ++i) {
          const int64_t token = tokens[i / width];
          const float of_table =
              token < kRows ? weights[static_cast<size_t>(token * width + i % width)] : 0.0F;
          const float expected =
              position_table == nullptr ? of_table : of_table + learned[static_cast<size_t>(i)];
          ASSERT_EQ(BitsOf(out[static_cast<size_t>(i)]), BitsOf(expected)) << info.name << " " << i;
        }
        ExpectGuardIntact(out);
      }
    }
  }
}

// Embed may read rows from the packed weights of PackLinear instead of from the table.
class EmbedPackedTest : public CpuBackendTest {};

TEST_P(EmbedPackedTest, RowsOfPackedWeightsHaveTheBitsOfTheTables) {
  constexpr int64_t kRows = 150;  // the last panel is narrower
  const TokenId tokens[] = {1000, 1149, 999, 1015, 1016, 1150, 1064, 1015, 0};
  const int32_t positions[] = {0, 1, 2, 3, 4, 5, 6, 7, 0};
  auto backend = MakeBackend(2);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t width : {1, 37, 64, 290}) {
      std::vector<std::byte> values(static_cast<size_t>(kRows * width * SizeOf(dtype)));
      std::mt19937 random(1);
      for (std::byte& byte : values) {
        byte = static_cast<std::byte>(random()) & std::byte{0xBF};  // no NaN
      }
      const std::vector<float> position_table = RandomFloats(8 * width, 2, 1.0F);
      const MatrixView table = {values.data(), FormatOf(dtype), kRows, width};
      const auto packed = backend->PackLinear({.parts = std::span(&table, 1), .bias = {}});
      ASSERT_TRUE(packed.ok()) << packed.status();
      for (const float* learned : {static_cast<const float*>(nullptr), position_table.data()}) {
        std::vector<float> expected = Guarded(std::ssize(tokens) * width);
        std::vector<float> out = Guarded(std::ssize(tokens) * width);
        EmbeddingParams params = {.num_tokens = std::ssize(tokens),
                                  .token_ids = tokens,
                                  .table = table,
                                  .first_token = 1000,
                                  .position_table = {learned, WeightFormat::kF32, 8, width},
                                  .positions = positions,
                                  .out = expected.data()};
        backend->Embed(params);
        params.table.data = nullptr;
        params.packed_table = packed->get();
        params.out = out.data();

        backend->Embed(params);

        EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0)
            << NameOf(dtype) << " of width " << width << (learned != nullptr ? ", positions" : "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas,
                         EmbedPackedTest,
                         testing::Values("amx", "avx512bf16", "avx512", "avx2", "portable"),
                         IsaName);

struct NormCase {
  NormKind kind;
  bool has_delta;
  bool has_bias;
};

constexpr NormCase kNormCases[] = {{NormKind::kRmsNorm, false, false},
                                   {NormKind::kRmsNorm, true, false},
                                   {NormKind::kLayerNorm, false, true},
                                   {NormKind::kLayerNorm, true, false}};

struct NormRun {
  std::vector<float> residual;
  std::vector<float> out;
};

NormRun RunNorm(KernelBackend& backend, const NormCase& c, int64_t num_tokens, int64_t width) {
  const std::vector<float> values = RandomFloats(num_tokens * width, 3, 2.0F);
  const std::vector<float> delta = RandomFloats(num_tokens * width, 4, 1.0F);
  const std::vector<float> weight = RandomFloats(width, 5, 1.0F);
  const std::vector<float> bias = RandomFloats(width, 6, 1.0F);
  NormRun run = {Guarded(num_tokens * width), Guarded(num_tokens * width)};
  std::copy(values.begin(), values.end(), run.residual.begin());
  backend.Norm({.kind = c.kind,
                .num_tokens = num_tokens,
                .width = width,
                .residual = run.residual.data(),
                .delta = c.has_delta ? delta.data() : nullptr,
                .weight = weight.data(),
                .bias = c.has_bias ? bias.data() : nullptr,
                .eps = 1e-5F,
                .out = run.out.data()});
  ExpectGuardIntact(run.residual);
  ExpectGuardIntact(run.out);
  return run;
}

void ExpectNormAgrees(KernelBackend& backend,
                      const NormCase& c,
                      int64_t num_tokens,
                      int64_t width) {
  const std::vector<float> values = RandomFloats(num_tokens * width, 3, 2.0F);
  const std::vector<float> delta = RandomFloats(num_tokens * width, 4, 1.0F);
  const std::vector<float> weight = RandomFloats(width, 5, 1.0F);
  const std::vector<float> bias = RandomFloats(width, 6, 1.0F);

  const NormRun run = RunNorm(backend, c, num_tokens, width);

  const auto w = static_cast<size_t>(width);
  for (size_t i = 0; i < static_cast<size_t>(num_tokens); ++i) {
    double mean = 0.0;
    double square = 0.0;
    for (size_t d = i * w; d < (i + 1) * w; ++d) {
      ASSERT_EQ(run.residual[d], c.has_delta ? values[d] + delta[d] : values[d]);
      mean += double{run.residual[d]} / static_cast<double>(width);
    }
    mean = c.kind == NormKind::kLayerNorm ? mean : 0.0;
    for (size_t d = i * w; d < (i + 1) * w; ++d) {
      square += (run.residual[d] - mean) * (run.residual[d] - mean) / static_cast<double>(width);
    }
    for (size_t d = 0; d < w; ++d) {
      const double normed = (run.residual[i * w + d] - mean) / std::sqrt(square + 1e-5);
      const double expected = normed * weight[d] + (c.has_bias ? bias[d] : 0.0F);
      ASSERT_NEAR(run.out[i * w + d], expected, 4e-6 * (1.0 + std::abs(expected)))
          << "row " << i << " dim " << d << " width " << width;
    }
  }
}

TEST_P(DenseTest, NormAgreesWithItsFormulaForEveryWidth) {
  auto backend = MakeBackend(2);
  for (const NormCase& c : kNormCases) {
    for (int64_t width = 2; width <= 70; ++width) {
      ExpectNormAgrees(*backend, c, 3, width);
    }
    ExpectNormAgrees(*backend, c, 2, 4096);
    ExpectNormAgrees(*backend, c, 1, 4099);
  }
}

TEST_P(DenseTest, ANormedRowHasTheSameBitsAloneAndInAnyBatch) {
  constexpr int64_t kWidth = 1027;
  for (const NormCase& c : kNormCases) {
    const NormRun all = RunNorm(*MakeBackend(3), c, 70, kWidth);
    for (const int64_t num_tokens : {1, 2, 17, 33}) {
      const NormRun some = RunNorm(*MakeBackend(1), c, num_tokens, kWidth);
      const auto bytes = static_cast<size_t>(num_tokens * kWidth) * sizeof(float);
      EXPECT_EQ(std::memcmp(all.out.data(), some.out.data(), bytes), 0);
    }
  }
}

double ActivationOf(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kSilu:
      return x / (1.0 + std::exp(-x));
    case ActivationKind::kRelu:
      return std::max(x, 0.0);
    case ActivationKind::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case ActivationKind::kGeluTanh:
      return 0.5 * x *
             (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  }
  return 0.0;
}

constexpr ActivationKind kActivations[] = {
    ActivationKind::kSilu, ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kGeluTanh};

TEST_P(DenseTest, ActivationsAgreeWithTheirFormulas) {
  auto backend = MakeBackend(2);
  std::vector<float> in;
  for (int step = -17341; step <= 17341; ++step) {  // -30 to 30
    in.push_back(static_cast<float>(step) * 0.00173F);
  }
  const auto width = static_cast<int64_t>(in.size());
  for (const ActivationKind kind : kActivations) {
    std::vector<float> out = Guarded(width);

    backend->Activate({.kind = kind,
                       .gated = false,
                       .num_tokens = 1,
                       .width = width,
                       .in = in.data(),
                       .out = out.data()});

    for (size_t i = 0; i < in.size(); ++i) {
      const double expected = ActivationOf(kind, in[i]);
      // The error is bounded relatively where the result is about as large as x, and absolutely in
      // the tail below it.
      ASSERT_NEAR(out[i], expected, 1e-6 * std::abs(expected) + 2e-7)
          << static_cast<int>(kind) << " of " << in[i];
    }
    ExpectGuardIntact(out);
  }
}

// Where the result is far smaller than the input, its relative accuracy is that of the exponential.
TEST_P(DenseTest, TailsOfActivationsAreRelativelyAccurate) {
  auto backend = MakeBackend(1);
  const std::pair<ActivationKind, float> tails[] = {{ActivationKind::kSilu, -80.0F},
                                                    {ActivationKind::kGelu, -8.0F}};
  for (const auto& [kind, end] : tails) {
    std::vector<float> in;
    for (int i = 1; i <= 10'000; ++i) {
      in.push_back(end * static_cast<float>(i) / 10'000.0F);
    }
    std::vector<float> out(in.size());

    backend->Activate({.kind = kind,
                       .gated = false,
                       .num_tokens = 1,
                       .width = static_cast<int64_t>(in.size()),
                       .in = in.data(),
                       .out = out.data()});

    for (size_t i = 0; i < in.size(); ++i) {
      const double expected = ActivationOf(kind, in[i]);
      // gelu rounds x * x / 2, up to 32, before it takes the exponential.
      const double bound = kind == ActivationKind::kGelu ? 6e-6 : 5e-7;
      ASSERT_NEAR(out[i], expected, bound * std::abs(expected)) << "of " << in[i];
    }
  }
}

TEST_P(DenseTest, ActivationsOfHugeAndSpecialInputs) {
  auto backend = MakeBackend(1);
  const float huge = 1e30F;
  const std::vector<float> in = {
      huge, -huge, 200.0F, -200.0F, 0.0F, std::numeric_limits<float>::quiet_NaN()};
  for (const ActivationKind kind : kActivations) {
    std::vector<float> out(in.size());

    backend->Activate({.kind = kind,
                       .gated = false,
                       .num_tokens = 1,
                       .width = static_cast<int64_t>(in.size()),
                       .in = in.data(),
                       .out = out.data()});

    EXPECT_EQ(out[0], huge);
    EXPECT_NEAR(out[1], 0.0F, 1e-6F);
    EXPECT_EQ(out[2], 200.0F);
    EXPECT_NEAR(out[3], 0.0F, 1e-6F);
    EXPECT_EQ(out[4], 0.0F);
    EXPECT_TRUE(std::isnan(out[5]));
  }
}

TEST_P(DenseTest, AGateMultipliesTheSecondHalfOfTheRow) {
  auto backend = MakeBackend(3);
  for (const int64_t width : {1, 15, 16, 33, 1000}) {
    for (const ActivationKind kind : kActivations) {
      const int64_t num_tokens = 41;
      const std::vector<float> in = RandomFloats(num_tokens * 2 * width, 7, 2.0F);
      std::vector<float> out = Guarded(num_tokens * width);

      backend->Activate({.kind = kind,
                         .gated = true,
                         .num_tokens = num_tokens,
                         .width = width,
                         .in = in.data(),
                         .out = out.data()});

      for (int64_t i = 0; i < num_tokens * width; ++i) {
        const auto gate = static_cast<size_t>(i / width * 2 * width + i % width);
        const double expected =
            ActivationOf(kind, in[gate]) * in[gate + static_cast<size_t>(width)];
        ASSERT_NEAR(out[static_cast<size_t>(i)], expected, 2e-6 * std::abs(expected) + 1e-6);
      }
      ExpectGuardIntact(out);
    }
  }
}

TEST_P(DenseTest, AnUngatedActivationMayRunInPlace) {
  auto backend = MakeBackend(2);
  for (const ActivationKind kind : kActivations) {
    std::vector<float> values = RandomFloats(int64_t{5} * 77, 8, 2.0F);
    std::vector<float> out(values.size());
    const ActivationParams apart = {.kind = kind,
                                    .gated = false,
                                    .num_tokens = 5,
                                    .width = 77,
                                    .in = values.data(),
                                    .out = out.data()};
    ActivationParams in_place = apart;
    in_place.out = values.data();
    backend->Activate(apart);

    backend->Activate(in_place);

    EXPECT_EQ(values, out);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, DenseTest, testing::ValuesIn(CpuIsas()), IsaName);

}  // namespace
}  // namespace quire
