// Every CPU path against the reference, operation by operation, over the shapes where vectors,
// tiles and panels end. Attention has its own tests (paged_attention_test, prepare_attention_test).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/reference/element.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/cpu_backends.h"

namespace quire {
namespace {

// fp32 sums in any order, against sums in double: sqrt(width) * 2^-24 at most, 3e-6 at width 3,000.
constexpr double kMaxError = 5e-6;
// The bf16 dot product rounds activations to 8 bits: half a unit in the last place is 2^-9, and a
// normalised error of 2^-9 / sqrt(3) when all are equally likely.
constexpr double kMaxErrorBf16Product = 2e-3;

std::vector<float> Numbers(int64_t count, uint64_t seed, float scale = 1.0F) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = scale * NumberFor(seed, i, 0, 0);
  }
  return numbers;
}

// A matrix of numbers in (-1, 1) stored as dtype.
struct Matrix {
  std::vector<unsigned char> bytes;
  MatrixView view;
};

Matrix MakeMatrix(int64_t rows, int64_t cols, DType dtype, uint64_t seed) {
  Matrix matrix;
  matrix.bytes.resize(static_cast<size_t>(rows * cols * SizeOf(dtype)));
  for (int64_t i = 0; i < rows * cols; ++i) {
    reference::StoreElement(
        matrix.bytes.data(), dtype, i, NumberFor(seed, static_cast<uint64_t>(i), 1, 0));
  }
  matrix.view = {matrix.bytes.data(), FormatOf(dtype), rows, cols};
  return matrix;
}

class ParityTest : public CpuBackendTest {
 protected:
  void SetUp() override {
    CpuBackendTest::SetUp();
    if (!IsSkipped()) {
      cpu_ = MakeBackend(2);
      reference_ = CreateReferenceBackend();
    }
  }

  std::unique_ptr<KernelBackend> cpu_;
  std::unique_ptr<KernelBackend> reference_;
};

TEST_P(ParityTest, EmbedIsExact) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t width : {1, 17, 64, 100}) {
      for (bool with_positions : {false, true}) {
        Matrix table = MakeMatrix(50, width, dtype, 1);
        Matrix position_table = MakeMatrix(40, width, dtype, 2);
        std::vector<TokenId> tokens = {49, 0, 7, 7, 31};
        std::vector<int32_t> positions = {0, 1, 37, 2, 5};
        std::vector<float> expected(tokens.size() * static_cast<size_t>(width));
        std::vector<float> actual(expected.size());
        EmbeddingParams params;
        params.num_tokens = static_cast<int64_t>(tokens.size());
        params.token_ids = tokens.data();
        params.table = table.view;
        params.positions = positions.data();
        params.position_offset = 2;
        if (with_positions) {
          params.position_table = position_table.view;
        }

        params.out = expected.data();
        reference_->Embed(params);
        params.out = actual.data();
        cpu_->Embed(params);

        EXPECT_EQ(actual, expected) << NameOf(dtype) << " width " << width;
      }
    }
  }
}

TEST_P(ParityTest, Norm) {
  for (NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    for (int64_t width : {1, 15, 16, 65, 1024, 3000}) {
      for (bool with_delta : {false, true}) {
        constexpr int64_t kTokens = 5;
        std::vector<float> delta = Numbers(kTokens * width, 2);
        std::vector<float> weight = Numbers(width, 3);
        std::vector<float> bias = Numbers(width, 4);
        NormParams params;
        params.kind = kind;
        params.num_tokens = kTokens;
        params.width = width;
        params.delta = with_delta ? delta.data() : nullptr;
        params.weight = weight.data();
        params.bias = kind == NormKind::kLayerNorm ? bias.data() : nullptr;
        std::vector<float> expected_residual = Numbers(kTokens * width, 1);
        std::vector<float> actual_residual = expected_residual;
        std::vector<float> expected(expected_residual.size());
        std::vector<float> actual(expected.size());

        params.residual = expected_residual.data();
        params.out = expected.data();
        reference_->Norm(params);
        params.residual = actual_residual.data();
        params.out = actual.data();
        cpu_->Norm(params);

        EXPECT_EQ(actual_residual, expected_residual);
        EXPECT_LT(NormalisedError(actual, expected), kMaxError) << "width " << width;
      }
    }
  }
}

TEST_P(ParityTest, Linear) {
  bool rounds_activations = RoundsToBF16(GetParam());
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t num_segments : {int64_t{1}, kTreeSegments}) {
      for (int64_t cols : {8, 24, 200, 1024}) {
        Matrix first = MakeMatrix(37, cols, dtype, 1);
        Matrix second = MakeMatrix(100, cols, dtype, 2);
        std::vector<MatrixView> parts = {first.view, second.view};
        std::vector<float> bias = Numbers(137, 3);
        auto expected_weight = reference_->PackLinear({parts, bias, num_segments});
        auto actual_weight = cpu_->PackLinear({parts, bias, num_segments});
        ASSERT_TRUE(expected_weight.ok() && actual_weight.ok());
        for (int64_t num_tokens : {1, 2, 7, 33}) {
          std::vector<float> x = Numbers(num_tokens * cols, 4);
          std::vector<float> expected(static_cast<size_t>(num_tokens * 137));
          std::vector<float> actual(expected.size());

          reference_->Linear({num_tokens, x.data(), expected.data(), expected_weight->get()});
          cpu_->Linear({num_tokens, x.data(), actual.data(), actual_weight->get()});

          bool rounded = rounds_activations && dtype == DType::kBF16;
          EXPECT_LT(NormalisedError(actual, expected), rounded ? kMaxErrorBf16Product : kMaxError)
              << NameOf(dtype) << " cols " << cols << " tokens " << num_tokens;
        }
      }
    }
  }
}

TEST_P(ParityTest, Activate) {
  for (ActivationKind kind : {ActivationKind::kSilu,
                              ActivationKind::kRelu,
                              ActivationKind::kGelu,
                              ActivationKind::kGeluTanh}) {
    for (bool gated : {false, true}) {
      for (int64_t width : {1, 31, 64, 1000}) {
        constexpr int64_t kTokens = 3;
        std::vector<float> in = Numbers(kTokens * width * (gated ? 2 : 1), 1, 12.0F);
        std::vector<float> expected(static_cast<size_t>(kTokens * width));
        std::vector<float> actual(expected.size());

        reference_->Activate({kind, gated, kTokens, width, in.data(), expected.data()});
        cpu_->Activate({kind, gated, kTokens, width, in.data(), actual.data()});

        EXPECT_LT(NormalisedError(actual, expected), kMaxError)
            << "kind " << static_cast<int>(kind) << " width " << width;
      }
    }
  }
}

// One sampled row and what surrounds it.
struct SampledRow {
  TokenId token = -1;
  float logprob = 0.0F;
  bool finite = false;
  std::vector<SampledLogprob> top = std::vector<SampledLogprob>(kMaxLogprobs);
};

SampledRow SampleOn(KernelBackend& backend, std::vector<float> logits, const SamplingRow& row) {
  SampledRow sampled;
  SampleParams params;
  params.num_rows = 1;
  params.vocab_size = static_cast<int32_t>(logits.size());
  params.row_stride = params.vocab_size;
  params.logits = logits.data();
  params.rows = &row;
  params.token_ids = &sampled.token;
  params.logprobs = &sampled.logprob;
  params.finite = &sampled.finite;
  params.top_logprobs = sampled.top.data();
  params.top_logprobs_stride = kMaxLogprobs;
  backend.Sample(params);
  return sampled;
}

std::vector<SamplingParams> SamplingVariants(int32_t vocab_size) {
  std::vector<SamplingParams> variants(9);
  variants[0].temperature = 0.0F;
  variants[1].temperature = 0.7F;
  variants[2].top_k = std::min(5, vocab_size);
  variants[3].top_p = 0.8F;
  variants[4].min_p = 0.2F;
  variants[5].top_k = std::min(50, vocab_size);
  variants[5].top_p = 0.6F;
  variants[5].min_p = 0.01F;
  variants[6].repetition_penalty = 1.4F;
  variants[6].frequency_penalty = 0.7F;
  variants[6].presence_penalty = -0.5F;
  variants[7].logit_bias = {{0, 3.0F}, {vocab_size - 1, 2.0F}};
  variants[8].min_tokens = 100;
  variants[8].banned_before_min_tokens = {vocab_size - 1};
  return variants;
}

TEST_P(ParityTest, SampleTakesTheSameTokens) {
  for (int32_t vocab_size : {2, 7, 128, 1000, 4099}) {
    for (SamplingParams params : SamplingVariants(vocab_size)) {
      params.num_logprobs = std::min(4, vocab_size);
      for (uint64_t seed = 0; seed < 12; ++seed) {
        params.seed = seed * 0x9E3779B97F4A7C15;
        std::vector<float> logits = Numbers(vocab_size, seed, 6.0F);
        std::vector<TokenId> prompt = {0, 1, 1, vocab_size / 2};
        std::vector<TokenId> output = {1, vocab_size - 1, vocab_size - 1};
        SamplingRow row{&params, prompt, output};

        SampledRow expected = SampleOn(*reference_, logits, row);
        SampledRow actual = SampleOn(*cpu_, logits, row);

        ASSERT_EQ(actual.finite, expected.finite);
        ASSERT_EQ(actual.token, expected.token) << "vocab " << vocab_size << " seed " << seed;
        EXPECT_NEAR(actual.logprob, expected.logprob, 1e-5);
        for (size_t k = 0; k < static_cast<size_t>(params.num_logprobs); ++k) {
          EXPECT_EQ(actual.top[k].token_id, expected.top[k].token_id);
          EXPECT_NEAR(actual.top[k].logprob, expected.top[k].logprob, 1e-5);
        }
      }
    }
  }
}

TEST_P(ParityTest, SampleReportsRowsThatAreNotFinite) {
  SamplingParams params;
  SamplingRow row{&params, {}, {}};
  for (float bad : {std::numeric_limits<float>::quiet_NaN(),
                    std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = Numbers(1000, 1);
    logits[777] = bad;

    EXPECT_EQ(SampleOn(*cpu_, logits, row).finite, SampleOn(*reference_, logits, row).finite)
        << bad;
  }
}

std::vector<std::string> AllIsas() {
  std::vector<std::string> isas = CpuIsas();
  isas.emplace_back("avx512bf16");
  isas.emplace_back("amx");
  return isas;
}

INSTANTIATE_TEST_SUITE_P(Cpu, ParityTest, testing::ValuesIn(AllIsas()), IsaName);

}  // namespace
}  // namespace quire
