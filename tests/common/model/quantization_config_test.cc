#include "common/model/quantization_config.h"

#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/json/json.h"
#include "common/model/name_pattern.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<QuantizationConfig> Parse(const std::string& quantization_config,
                                         const std::string& field = "quantization_config") {
  const Json json = {{field, Json::parse(quantization_config)}};
  return ParseQuantizationConfig(ConfigReader(json, "config.json"));
}

// compressed-tensors with one group. weights, rest: members of JSON objects.
std::string Compressed(const std::string& weights, const std::string& rest = "") {
  return R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
             {"group_0": {"targets": ["Linear"], "weights": {)" +
         weights + "}}}" + rest + "}";
}

WeightScheme SchemeOf(const QuantizationConfig& config,
                      std::string_view module,
                      std::string_view class_name = "Linear") {
  const auto scheme = config.SchemeFor(module, class_name);
  EXPECT_TRUE(scheme.ok()) << scheme.status();
  return scheme.ok() && *scheme != nullptr ? **scheme : WeightScheme{.bits = 0};
}

TEST(QuantizationConfigTest, WithoutTheFieldNothingIsQuantized) {
  const Json json = Json::object();

  const auto config = ParseQuantizationConfig(ConfigReader(json, "config.json"));

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->groups, IsEmpty());
}

TEST(QuantizationConfigTest, GroupsOfCompressedTensors) {
  const auto config = Parse(Compressed(
      R"("num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": false,
         "actorder": "group")"));

  ASSERT_TRUE(config.ok()) << config.status();
  const WeightScheme expected = {.storage = WeightStorage::kPacked,
                                 .bits = 4,
                                 .group_cols = 128,
                                 .is_symmetric = false,
                                 .needs_group_index = true};
  EXPECT_EQ(SchemeOf(*config, "model.layers.0.mlp.up_proj"), expected);
}

TEST(QuantizationConfigTest, TheOlderNameOfTheField) {
  const auto config = Parse(Compressed(R"("num_bits": 4)"), "compression_config");

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(SchemeOf(*config, "a").bits, 4);
}

TEST(QuantizationConfigTest, ATargetThatIsANameCountsBeforeAPatternAndAPatternBeforeAClass) {
  const auto config = Parse(R"({
    "quant_method": "compressed-tensors", "format": "mixed-precision",
    "ignore": ["lm_head", "re:.*\\.q_"],
    "config_groups": {
      "a": {"targets": ["Linear"], "format": "int-quantized", "weights": {"strategy": "channel"}},
      "b": {"targets": ["re:.*down_proj"], "format": "float-quantized",
            "weights": {"type": "float", "strategy": "block", "block_structure": [128, 64]}},
      "c": {"targets": ["layers.1.down_proj"], "format": "pack-quantized",
            "weights": {"num_bits": 4, "group_size": 32}}}})");

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(SchemeOf(*config, "layers.0.up_proj").storage, WeightStorage::kInt8);
  EXPECT_EQ(SchemeOf(*config, "layers.0.down_proj").storage, WeightStorage::kFloat8);
  EXPECT_EQ(SchemeOf(*config, "layers.0.down_proj").group_rows, 128);
  EXPECT_EQ(SchemeOf(*config, "layers.1.down_proj").storage, WeightStorage::kPacked);
  EXPECT_EQ(*config->SchemeFor("lm_head", "Linear"), nullptr);
  EXPECT_EQ(*config->SchemeFor("layers.0.q_proj", "Linear"), nullptr);
  EXPECT_EQ(*config->SchemeFor("embed_tokens", "Embedding"), nullptr);
}

TEST(QuantizationConfigTest, AwqGptqAndFp8HaveOneSchemeForAllModules) {
  const auto awq = Parse(R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM",
                             "modules_to_not_convert": null})");
  const auto gptq =
      Parse(R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": true})");
  const auto v2 = Parse(
      R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"})");
  const auto fp8 = Parse(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})");

  ASSERT_TRUE(awq.ok() && gptq.ok() && v2.ok() && fp8.ok());
  EXPECT_EQ(
      SchemeOf(*awq, "a"),
      (WeightScheme{
          .storage = WeightStorage::kAwq, .bits = 4, .group_cols = 128, .is_symmetric = false}));
  EXPECT_EQ(SchemeOf(*gptq, "a"),
            (WeightScheme{.storage = WeightStorage::kGptq,
                          .bits = 8,
                          .is_symmetric = false,
                          .needs_group_index = true,
                          .has_zeros_less_one = true}));
  EXPECT_FALSE(SchemeOf(*v2, "a").has_zeros_less_one);
  EXPECT_EQ(
      SchemeOf(*fp8, "a"),
      (WeightScheme{
          .storage = WeightStorage::kFloat8, .bits = 8, .group_rows = 128, .group_cols = 128}));
}

TEST(QuantizationConfigTest, DynamicRulesOfGptqChangeBitsAndLeaveModulesOut) {
  const auto config = Parse(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {
      "+:.*\\.down_proj": {"bits": 8, "group_size": 32}, "-:.*\\.o_proj": {},
      "lm_head": {"bits": 8}}})");

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(SchemeOf(*config, "layers.0.up_proj").bits, 4);
  EXPECT_EQ(SchemeOf(*config, "layers.0.down_proj").bits, 8);
  EXPECT_EQ(SchemeOf(*config, "layers.0.down_proj").group_cols, 32);
  EXPECT_EQ(SchemeOf(*config, "lm_head").group_cols, 128);
  EXPECT_EQ(*config->SchemeFor("layers.0.o_proj", "Linear"), nullptr);
}

// As Python's re.match does.
TEST(NamePatternTest, ARegexMatchesFromTheBeginningOfTheName) {
  const auto pattern = NamePattern::Parse(R"(re:model\.layers\.\d+\.(q|k)_proj)");

  ASSERT_TRUE(pattern.ok()) << pattern.status();
  EXPECT_TRUE(*pattern->Matches("model.layers.12.q_proj"));
  EXPECT_TRUE(*pattern->Matches("model.layers.12.k_proj.more"));
  EXPECT_FALSE(*pattern->Matches("the.model.layers.12.q_proj"));
  EXPECT_FALSE(*pattern->Matches("model.layers.x.q_proj"));
}

TEST(NamePatternTest, TextMatchesTheWholeName) {
  const auto pattern = NamePattern::Parse("lm_head");

  EXPECT_TRUE(*pattern->Matches("lm_head"));
  EXPECT_FALSE(*pattern->Matches("lm_head.x"));
}

TEST(NamePatternTest, APatternThatBacktracksWithoutEndIsAnError) {
  const auto pattern = NamePattern::Parse("re:(a+)+$");
  ASSERT_TRUE(pattern.ok()) << pattern.status();

  const auto result = pattern->Matches(std::string(60, 'a') + "b");

  EXPECT_EQ(ReasonOf(result.status()), "CONFIG");
  EXPECT_EQ(
      result.status().message(),
      "config.json: quantization_config: re:(a+)+$: the pattern needs too many steps to match");
}

struct Fault {
  const char* name;
  std::string json;
  std::string message;  // after "config.json: "
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class QuantizationFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(QuantizationFaultTest, IsRefusedWithTheNameOfTheField) {
  const auto config = Parse(GetParam().json);

  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(config.status()), "CONFIG");
  EXPECT_EQ(std::string(config.status().message()), "config.json: " + GetParam().message);
}

std::string Field(const std::string& rest) { return "quantization_config." + rest; }

std::string OfWeights(const std::string& rest) {
  return Field("config_groups.group_0.weights." + rest);
}

std::vector<Fault> MethodFaults() {
  return {
      {"IsText", "\"fp8\"", "quantization_config: must be a JSON object"},
      {"NoMethod", R"({"bits": 4})", Field("quant_method: is required")},
      {"MethodIsANumber",
       R"({"quant_method": 4})",
       Field("quant_method: must be a string (got 4)")},
      {"Bitsandbytes",
       R"({"quant_method": "bitsandbytes", "load_in_4bit": true})",
       Field("quant_method: bitsandbytes is not supported; the nearest supported format is awq")},
      {"Mxfp4",
       R"({"quant_method": "mxfp4"})",
       Field("quant_method: mxfp4 is not supported; the nearest supported format is "
             "compressed-tensors pack-quantized")},
      {"Torchao",
       R"({"quant_method": "torchao"})",
       Field("quant_method: torchao is not supported; the nearest supported format is "
             "compressed-tensors int-quantized")},
      {"Unknown",
       R"({"quant_method": "x\n"})",
       Field(
           "quant_method: x? is not supported (must be one of compressed-tensors, awq, gptq, fp8, "
           "fbgemm_fp8)")},
      {"AwqGemv",
       R"({"quant_method": "awq", "bits": 4, "version": "gemv"})",
       Field("version: gemv is not supported (must be gemm)")},
      {"Awq8Bits", R"({"quant_method": "awq", "w_bit": 8})", Field("w_bit: must be 4 (got 8)")},
      {"AwqWithoutZeros",
       R"({"quant_method": "awq", "bits": 4, "zero_point": false})",
       Field("zero_point: must be true")},
      {"AwqWithoutBits", R"({"quant_method": "awq"})", Field("bits: is required")},
      {"AwqGroupOfZero",
       R"({"quant_method": "awq", "bits": 4, "group_size": 0})",
       Field("group_size: must be in [1, 1048576] (got 0)")},
      {"AwqNamesAreNumbers",
       R"({"quant_method": "awq", "bits": 4, "modules_to_not_convert": [1]})",
       Field("modules_to_not_convert: must be a list of strings")},
      {"Gptq3Bits",
       R"({"quant_method": "gptq", "bits": 3})",
       Field("bits: must be 4 or 8 (got 3)")},
      {"GptqMarlin",
       R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})",
       Field("checkpoint_format: marlin is not supported; the nearest supported format is gptq")},
      {"GptqIsMarlin",
       R"({"quant_method": "gptq", "bits": 4, "is_marlin_format": true})",
       Field("is_marlin_format: marlin is not supported; the nearest supported format is gptq")},
      {"GptqWordsOf64Bits",
       R"({"quant_method": "gptq", "bits": 4, "pack_dtype": "int64"})",
       Field("pack_dtype: int64 is not supported (must be int32)")},
      {"GptqRuleOfAnUnknownField",
       R"({"quant_method": "gptq", "bits": 4, "dynamic": {"+:a": {"adapter": 1}}})",
       Field("dynamic.+:a.adapter: is not supported (must be one of bits, group_size)")},
      {"GptqRuleOf2Bits",
       R"({"quant_method": "gptq", "bits": 4, "dynamic": {"a": {"bits": 2}}})",
       Field("dynamic.a.bits: must be 4 or 8 (got 2)")},
      {"GptqRuleIsNoObject",
       R"({"quant_method": "gptq", "bits": 4, "dynamic": {"a": 1}})",
       Field("dynamic.a: must be a JSON object")},
      {"GptqRuleIsNoPattern",
       R"({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}})",
       Field("dynamic: re:(: byte 1: missing closing parenthesis")},
      {"Fp8OfE5M2",
       R"({"quant_method": "fp8", "fmt": "e5m2"})",
       Field("fmt: e5m2 is not supported (must be e4m3)")},
      {"Fp8ScalesOfE8M0",
       R"({"quant_method": "fp8", "scale_fmt": "ue8m0"})",
       Field("scale_fmt: ue8m0 is not supported (must be float)")},
      {"Fp8BlockOfOneSize",
       R"({"quant_method": "fp8", "weight_block_size": [128]})",
       Field("weight_block_size: must be a list of two sizes in [1, 1048576]")},
      {"Fp8BlockOfZero",
       R"({"quant_method": "fp8", "weight_block_size": [128, 0]})",
       Field("weight_block_size: must be a list of two sizes in [1, 1048576]")},
  };
}

std::vector<Fault> CompressedFaults() {
  const std::string format = "config_groups.group_0.format: ";
  return {
      {"Marlin24",
       Compressed("", R"(, "format": "marlin-24")"),
       Field(format +
             "marlin-24 is not supported; the nearest supported format is pack-quantized")},
      {"Nvfp4",
       Compressed("", R"(, "format": "nvfp4-pack-quantized")"),
       Field(format + "nvfp4-pack-quantized is not supported; the nearest supported format is "
                      "pack-quantized")},
      {"MixedWithoutFormatOfTheGroup",
       Compressed("", R"(, "format": "mixed-precision")"),
       Field(format +
             "mixed-precision is not supported (must be one of pack-quantized, int-quantized, "
             "float-quantized, naive-quantized)")},
      {"Sparse",
       Compressed("", R"(, "sparsity_config": {"format": "sparse-24-bitmask"})"),
       Field("sparsity_config.format: sparse-24-bitmask is not supported; the nearest supported "
             "format is pack-quantized")},
      {"Transform",
       Compressed("", R"(, "transform_config": {"config_groups": {"R": 1}})"),
       Field("transform_config: is not supported")},
      {"GroupsAreAList",
       R"({"quant_method": "compressed-tensors", "config_groups": [1]})",
       Field("config_groups: must be an object of at most 64 groups")},
      {"GroupIsAList",
       R"({"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}})",
       Field("config_groups.W4A16: must be a JSON object")},
      {"TargetIsNoPattern",
       R"({"quant_method": "compressed-tensors",
           "config_groups": {"a": {"targets": ["re:["], "weights": null}}})",
       Field("config_groups.a.targets: re:[: byte 1: missing terminating ] for character class")},
      {"IgnoreIsText",
       Compressed("", R"(, "ignore": "lm_head")"),
       Field("ignore: must be a list of at most 20000 strings")},
      {"Packed2Bits",
       Compressed(R"("num_bits": 2)"),
       OfWeights("num_bits: must be 4 or 8 (got 2)")},
      {"Int4Bits",
       Compressed(R"("num_bits": 4)", R"(, "format": "int-quantized")"),
       OfWeights("num_bits: must be 8 (got 4)")},
      {"PackedFloats",
       Compressed(R"("type": "float")"),
       OfWeights("type: must be int with this format")},
      {"FloatsThatAreInt",
       Compressed(R"("type": "int")", R"(, "format": "float-quantized")"),
       OfWeights("type: must be float with this format")},
      {"UnknownType", Compressed(R"("type": "nf4")"), OfWeights("type: must be one of int, float")},
      {"TensorGroup",
       Compressed(R"("strategy": "tensor_group", "group_size": 16)"),
       OfWeights("strategy: tensor_group is not supported (must be one of tensor, channel, group, "
                 "block)")},
      {"GroupWithoutSize",
       Compressed(R"("strategy": "group")"),
       OfWeights("group_size: must be positive with strategy group")},
      {"BlockWithoutSizes",
       Compressed(R"("strategy": "block")"),
       OfWeights("block_structure: must be a list of two sizes in [1, 1048576]")},
      {"DynamicWeights", Compressed(R"("dynamic": true)"), OfWeights("dynamic: must be false")},
      {"UnknownOrder",
       Compressed(R"("actorder": "x")"),
       OfWeights("actorder: must be one of group, dynamic, weight, static, true, false")},
      {"AsymmetricFloats",
       Compressed(R"("type": "float", "symmetric": false)", R"(, "format": "float-quantized")"),
       OfWeights("symmetric: must be true for floats")},
  };
}

std::string NameOfFault(const testing::TestParamInfo<Fault>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Methods,
                         QuantizationFaultTest,
                         testing::ValuesIn(MethodFaults()),
                         NameOfFault);
INSTANTIATE_TEST_SUITE_P(CompressedTensors,
                         QuantizationFaultTest,
                         testing::ValuesIn(CompressedFaults()),
                         NameOfFault);

TEST(QuantizationConfigTest, TooManyPatternsAreRefused) {
  Json json = {{"quant_method", "compressed-tensors"}, {"ignore", Json::array()}};
  for (int i = 0; i < 65; ++i) {
    json["ignore"].push_back("re:.*" + std::to_string(i));
  }

  EXPECT_THAT(std::string(Parse(json.dump()).status().message()),
              HasSubstr("ignore: must have at most 64 regular expressions"));
}

TEST(QuantizationConfigTest, TooManyPatternsInAllListsAreRefused) {
  Json json = Json::parse(Compressed(R"("num_bits": 8, "type": "int", "strategy": "channel")"));
  const Json group = json["config_groups"]["group_0"];
  for (int i = 0; i < 5; ++i) {
    Json& named = json["config_groups"]["group_" + std::to_string(i)];
    named = group;
    for (int k = 0; k < 13; ++k) {
      named["targets"].push_back("re:.*" + std::to_string(k));
    }
  }

  EXPECT_THAT(std::string(Parse(json.dump()).status().message()),
              HasSubstr("quantization_config: must have at most 64 regular expressions"));
}

}  // namespace
}  // namespace quire
