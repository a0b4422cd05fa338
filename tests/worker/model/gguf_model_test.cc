// Models of GGUF files that ggml's package wrote (make_gguf_models.py). With plain weights they
// give the bits of the directory that the file was made from; with quantized weights, the tokens of
// transformers. Ranks give the bits of one rank.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/common/model/gguf_dir.h"
#include "tests/worker/model/model_runner.h"
#include "tests/worker/model/split_model.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr int32_t kVocab = 96;

std::vector<std::string> QuantizedModels() {
  return {"llama_k_quants", "qwen2_small_blocks", "qwen3_some_plain"};
}

std::string GgufPath(const std::string& name) {
  return "tests/worker/model/gguf_models/" + name + ".gguf";
}

class GgufModelTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    if (MakeBackend(isa()) == nullptr) {
      GTEST_SKIP() << "this machine lacks " << isa();
    }
  }
  std::string name() const { return std::get<0>(GetParam()); }
  std::string isa() const { return std::get<1>(GetParam()); }
};

std::string CaseName(const testing::TestParamInfo<GgufModelTest::ParamType>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param);
}

const auto kIsas = testing::Values("amx", "avx512bf16", "avx512", "avx2", "portable");

class PlainGgufModelTest : public GgufModelTest {};

TEST_P(PlainGgufModelTest, GivesTheBitsOfTheDirectory) {
  SplitModel of_directory("tests/worker/model/testdata/" + name(), isa(), 1, DType::kF32);
  const std::vector<Logits> expected = Answers(of_directory, kVocab);
  for (const int32_t size : {1, 2, 4}) {
    SplitModel of_file(GgufPath(name()), isa(), size, DType::kF32);
    EXPECT_EQ(Answers(of_file, kVocab), expected) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files,
    PlainGgufModelTest,
    testing::Combine(
        testing::Values("llama", "llama_f16", "llama_bf16", "llama_tied", "qwen2_tied"), kIsas),
    CaseName);

class QuantizedGgufModelTest : public GgufModelTest {};

TEST_P(QuantizedGgufModelTest, RanksGiveTheBitsOfOneAndCountEveryWeightOnce) {
  SplitModel whole(GgufPath(name()), isa(), 1, DType::kF32);
  const std::vector<Logits> expected = Answers(whole, kVocab);
  EXPECT_NE(whole.weights_sum(), 0U);
  // More ranks would divide the others' heads, or groups of weights.
  for (int32_t size = 2; size <= (name() == "llama_k_quants" ? 4 : 2); size *= 2) {
    SplitModel split(GgufPath(name()), isa(), size, DType::kF32);
    EXPECT_EQ(Answers(split, kVocab), expected) << size;
    EXPECT_EQ(split.weights_sum(), whole.weights_sum()) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Files,
                         QuantizedGgufModelTest,
                         testing::Combine(testing::ValuesIn(QuantizedModels()), kIsas),
                         CaseName);

// Decodes the golden prompts greedily. Returns the largest error of a log-probability. Fails if a
// token differs.
double LargestError(const std::string& name, const std::string& json, KernelBackend& backend) {
  const auto model = LoadModel(GgufPath(name), backend, nullptr);
  EXPECT_TRUE(model.ok()) << model.status();
  ModelRunner runner(**model, backend, kBlocks);
  double error = 0.0;
  for (const GoldenCase& golden : ReadGolden("tests/worker/model/gguf_models/" + json)) {
    const int sequence = runner.AddSequence();
    Logits logits = runner.Run({{.sequence = sequence, .tokens = golden.prompt}});
    for (const GoldenStep& step : golden.steps) {
      EXPECT_EQ(Greedy(logits.front()), step.token) << name << " " << golden.prompt.size();
      const std::vector<double> logprobs = LogSoftmax(logits.front());
      for (size_t i = 0; i < step.top_tokens.size(); ++i) {
        const double got = logprobs[static_cast<size_t>(step.top_tokens[i])];
        error = std::max(error, std::abs(got - step.top_logprobs[i]));
      }
      logits = runner.Run({{.sequence = sequence, .tokens = {step.token}}});
    }
  }
  return error;
}

// The reference decodes quantized weights to bf16. Tolerance: as in model_golden_test.cc.
TEST(DecodedGgufModelTest, GivesTransformersTokens) {
  const auto backend = CreateReferenceBackend();
  for (const std::string& name : QuantizedModels()) {
    EXPECT_LE(LargestError(name, name + ".json", *backend), 1e-4) << name;
  }
}

// The CPU multiplies fp32 inputs by the quantized weights themselves.
TEST_P(QuantizedGgufModelTest, GivesTransformersTokensWithoutRoundedInputs) {
  if (isa() == "amx" || isa() == "avx512bf16") {
    GTEST_SKIP() << "inputs of weights that were decoded to bf16 are rounded";
  }
  const auto backend = CreateCpuBackend({.isa = isa(), .input_type = InputType::kF32});
  ASSERT_TRUE(backend.ok()) << backend.status();

  // The rounding of fp32 alone. With weights rounded to bf16 the error is above 5e-2.
  EXPECT_LE(LargestError(name(), name() + "_cpu.json", **backend), 5e-4);
}

TEST(GgufModelLoadTest, ProgressEndsAtTheTotalAndMemoryIsThatOfThePlan) {
  for (const char* name : {"llama_k_quants", "qwen2_small_blocks"}) {
    const auto backend = MakeBackend("portable", 2);
    std::vector<LoadProgress> seen;
    int64_t planned_bytes = 0;

    const auto model = LoadModel(
        GgufPath(name),
        *backend,
        [&seen](const LoadProgress& progress) { seen.push_back(progress); },
        {},
        [&](const auto&, const auto&, int64_t bytes) {
          planned_bytes = bytes;
          return absl::OkStatus();
        });

    ASSERT_TRUE(model.ok()) << model.status();
    for (size_t i = 1; i < seen.size(); ++i) {
      EXPECT_GE(seen[i].bytes_done, seen[i - 1].bytes_done);
      EXPECT_LE(seen[i].bytes_done, seen[i].bytes_total);
    }
    EXPECT_EQ(seen.back().bytes_done, seen.back().bytes_total);
    EXPECT_EQ(seen.back().tensors_done, seen.back().tensors_total);
    EXPECT_GE(planned_bytes, (*model)->weight_bytes());
    EXPECT_LE(planned_bytes, (*model)->weight_bytes() + 20'000);  // norms and biases, read ahead
  }
}

TEST(GgufModelLoadTest, RoundedWeightsTakeTheMemoryOfThePlan) {
  for (const CpuQuantization rounded : {CpuQuantization::kInt8, CpuQuantization::kInt4}) {
    const auto backend = CreateCpuBackend({.isa = "portable", .quantization = rounded});
    ASSERT_TRUE(backend.ok()) << backend.status();
    int64_t planned_bytes = 0;

    const auto model = LoadModel(
        "deploy/model", **backend, nullptr, {}, [&](const auto&, const auto&, int64_t bytes) {
          planned_bytes = bytes;
          return absl::OkStatus();
        });

    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_GE(planned_bytes, (*model)->weight_bytes());
    EXPECT_LE(planned_bytes, (*model)->weight_bytes() + 100'000);  // norms, read ahead
  }
}

TEST(GgufModelHashTest, AChangedWeightChangesTheHash) {
  GgufDir dir;
  const std::string path = dir.path("model.gguf");
  std::filesystem::copy_file(GgufPath("llama_k_quants"), path);
  const auto before = HashModelFiles(path);
  ASSERT_TRUE(before.ok()) << before.status();
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }

  EXPECT_EQ(HashModelFiles(GgufPath("llama_k_quants")), before);
  EXPECT_NE(HashModelFiles(path), before);
}

}  // namespace
}  // namespace quire
