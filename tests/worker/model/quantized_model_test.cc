// Models of published quantized formats give the logits of the same models with the decoded
// matrices, both made by make_quantized_goldens.py.
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/worker/model/split_model.h"

namespace quire {
namespace {

class QuantizedModelTest : public testing::TestWithParam<std::string> {};

TEST_P(QuantizedModelTest, HasTheLogitsOfTheDecodedModelForEveryNumberOfRanks) {
  constexpr int32_t kVocabSize = 96;
  const std::string dir = std::string("tests/worker/model/quantized_models/") + GetParam();
  for (const char* isa : {"amx", "avx512bf16", "avx512", "avx2", "portable"}) {
    if (MakeBackend(isa) == nullptr) {
      continue;
    }
    SplitModel decoded(dir + "_decoded", isa, 1, DType::kF32);
    const std::vector<Logits> expected = Answers(decoded, kVocabSize);
    for (const int32_t size : {1, 2, 4}) {
      SplitModel quantized(dir, isa, size, DType::kF32);
      EXPECT_EQ(Answers(quantized, kVocabSize), expected) << isa << " " << size;
      EXPECT_EQ(quantized.weights_sum(), decoded.weights_sum()) << isa << " " << size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         QuantizedModelTest,
                         testing::Values("w4a16", "w8a8", "fp8", "awq", "gptq"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace quire
