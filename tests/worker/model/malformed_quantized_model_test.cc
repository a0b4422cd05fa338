// Quantized directories with one thing spoiled: each is refused in one line that names the tensor.
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker/model/model_dir.h"
#include "worker/model/model.h"

namespace quire {
namespace {

constexpr char kModule[] = "model.layers.0.mlp.up_proj";  // a matrix [16, 8]

// A directory whose kModule is quantized, and the bytes of its tensors.
struct QuantizedDir {
  ModelDir dir;
  std::string data;

  // Replaces the plain matrix by these tensors, named without the module.
  void Quantize(const std::string& config, const std::vector<TensorSpec>& tensors) {
    dir.config["quantization_config"] = Json::parse(config);
    dir.Remove(std::string(kModule) + ".weight");
    // In one matrix with kModule, which is decoded to bf16.
    dir.Find("model.layers.0.mlp.gate_proj.weight").dtype = "BF16";
    for (TensorSpec tensor : tensors) {
      tensor.name = kModule + tensor.name;
      dir.tensors.push_back(tensor);
    }
  }

  TensorSpec& Find(std::string_view name) { return dir.Find(kModule + std::string(name)); }
  void Remove(std::string_view name) { dir.Remove(kModule + std::string(name)); }

  // Sets bytes of a tensor, from its byte `at` on. REQUIRES: no change of tensors follows.
  template <typename T>
  void Set(std::string_view name, const std::vector<T>& values, size_t at = 0) {
    data = data.empty() ? dir.Data() : data;
    const Json header = dir.Header();
    const auto begin = header[kModule + std::string(name)]["data_offsets"][0].get<size_t>();
    std::memcpy(data.data() + begin + at, values.data(), values.size() * sizeof(T));
  }

  absl::Status Load() {
    dir.WriteConfig();
    dir.WriteFile("model.safetensors",
                  ModelDir::Safetensors(dir.Header().dump(), data.empty() ? dir.Data() : data));
    auto backend = CreateReferenceBackend();
    return LoadModel(dir.path(), *backend, nullptr).status();
  }
};

std::string Compressed(const std::string& format, const std::string& weights) {
  return R"({"quant_method": "compressed-tensors", "format": ")" + format +
         R"(", "ignore": ["lm_head"],
         "config_groups": {"a": {"targets": ["Linear"], "weights": {)" +
         weights + "}}}}";
}

void Pack(QuantizedDir& d) {
  d.Quantize(Compressed("pack-quantized",
                        R"("num_bits": 4, "group_size": 4, "strategy": "group",
                           "symmetric": false, "actorder": "group")"),
             {{".weight_packed", "I32", {16, 1}},
              {".weight_scale", "BF16", {16, 2}},
              {".weight_shape", "I64", {2}},
              {".weight_zero_point", "I32", {2, 2}},
              {".weight_g_idx", "I32", {8}}});
}

// Sets the numbers that ModelDir's bytes do not give.
void SetPack(QuantizedDir& d) {
  d.Set<int64_t>(".weight_shape", {16, 8});
  d.Set<int32_t>(".weight_g_idx", {0, 1, 0, 1, 0, 1, 0, 1});
}

void Int8(QuantizedDir& d) {
  d.Quantize(Compressed("int-quantized", R"("strategy": "channel")"),
             {{".weight", "I8", {16, 8}}, {".weight_scale", "F32", {16, 1}}});
}

void Fp8(QuantizedDir& d) {
  d.Quantize(R"({"quant_method": "fp8", "weight_block_size": [8, 8]})",
             {{".weight", "F8_E4M3", {16, 8}}, {".weight_scale_inv", "F32", {2, 1}}});
}

void Awq(QuantizedDir& d) {
  d.Quantize(
      R"({"quant_method": "awq", "bits": 4, "group_size": 4})",
      {{".qweight", "I32", {8, 2}}, {".qzeros", "I32", {2, 2}}, {".scales", "F16", {2, 16}}});
}

void Gptq(QuantizedDir& d) {
  d.Quantize(
      R"({"quant_method": "gptq", "bits": 4, "group_size": 4})",
      {{".qweight", "I32", {1, 16}}, {".qzeros", "I32", {2, 2}}, {".scales", "F16", {2, 16}}});
}

struct Fault {
  const char* name;
  std::function<void(QuantizedDir&)> spoil;
  std::string message;  // after "load: model.safetensors: <module>"
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class QuantizedFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(QuantizedFaultTest, IsRefusedWithTheNameOfTheTensor) {
  QuantizedDir d;
  GetParam().spoil(d);

  const absl::Status status = d.Load();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "MODEL_FILE");
  EXPECT_EQ(std::string(status.message()),
            "load: model.safetensors: " + (kModule + GetParam().message));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns a change that makes a directory and then spoils one thing.
std::function<void(QuantizedDir&)> After(void (*make)(QuantizedDir&),
                                         std::function<void(QuantizedDir&)> spoil) {
  return [make, spoil](QuantizedDir& d) {
    make(d);
    spoil(d);
  };
}

std::vector<Fault> PackFaults() {
  return {
      {"ScaleMissing",
       After(Pack, [](auto& d) { d.Remove(".weight_scale"); }),
       ".weight_scale: is missing"},
      {"ZerosMissing",
       After(Pack, [](auto& d) { d.Remove(".weight_zero_point"); }),
       ".weight_zero_point: is missing"},
      {"CodesMissing",
       After(Pack, [](auto& d) { d.Remove(".weight_packed"); }),
       ".weight_packed: is missing"},
      {"GroupIndexMissing",
       After(Pack,
             [](auto& d) {
               d.Remove(".weight_g_idx");
               d.template Set<int64_t>(".weight_shape", {16, 8});
             }),
       ".weight_g_idx: is missing, but config.json says act-order"},
      {"CodesOfTooFewWords",
       After(Pack,
             [](auto& d) {
               d.Find(".weight_packed").shape = {8, 1};
             }),
       ".weight_packed: has the wrong shape (got [8, 1], config.json needs [16, 1])"},
      {"CodesOfBytes",
       After(Pack, [](auto& d) { d.Find(".weight_packed").dtype = "I8"; }),
       ".weight_packed: has another dtype than quantization_config says (got I8, need I32)"},
      {"ScaleOfAnotherGroupSize",
       After(Pack,
             [](auto& d) {
               d.Find(".weight_scale").shape = {16, 4};
             }),
       ".weight_scale: has the wrong shape (got [16, 4], need [16, 2])"},
      {"ScaleOfIntegers",
       After(Pack, [](auto& d) { d.Find(".weight_scale").dtype = "I32"; }),
       ".weight_scale: has an unsupported dtype (got I32, need F32, F16 or BF16)"},
      {"ZerosNotPackedAlongRows",
       After(Pack,
             [](auto& d) {
               d.Find(".weight_zero_point").shape = {16, 1};
             }),
       ".weight_zero_point: has the wrong shape (got [16, 1], need [2, 2])"},
      {"ZerosOfFloats",
       After(Pack, [](auto& d) { d.Find(".weight_zero_point").dtype = "F32"; }),
       ".weight_zero_point: has an unsupported dtype (got F32, need I32)"},
      {"GroupIndexOfAnotherLength",
       After(Pack,
             [](auto& d) {
               d.Find(".weight_g_idx").shape = {9};
               d.template Set<int64_t>(".weight_shape", {16, 8});
             }),
       ".weight_g_idx: has the wrong shape (got [9], config.json needs [8])"},
      {"GroupIndexTooLarge",
       After(Pack,
             [](auto& d) {
               SetPack(d);
               d.template Set<int32_t>(".weight_g_idx", {2}, 4 * sizeof(int32_t));
             }),
       ".weight_g_idx: column 4 has a group out of range (got 2, limit 1)"},
      {"GroupIndexNegative",
       After(Pack,
             [](auto& d) {
               SetPack(d);
               d.template Set<int32_t>(".weight_g_idx", {-1});
             }),
       ".weight_g_idx: column 0 has a group out of range (got -1, limit 1)"},
      {"WeightShapeOfAnotherMatrix",
       After(Pack,
             [](auto& d) {
               d.template Set<int64_t>(".weight_shape", {8, 16});
             }),
       ".weight_shape: holds the wrong shape (got [8, 16], config.json needs [16, 8])"},
      {"WeightShapeOfThreeNumbers",
       After(Pack, [](auto& d) { d.Find(".weight_shape").shape = {3}; }),
       ".weight_shape: has the wrong shape (got [3], config.json needs [2])"},
      {"ScaleIsInfinite",
       After(Pack,
             [](auto& d) {
               SetPack(d);
               d.template Set<uint16_t>(".weight_scale", {0x7F80}, 6);
             }),
       ".weight_scale: a scale must be finite and at most 1e30 (got inf for row 1, group 1)"},
      {"ATensorThatNothingNeeds",
       After(Pack,
             [](auto& d) {
               d.dir.tensors.push_back({std::string(kModule) + ".weight_global_scale", "F32", {1}});
               SetPack(d);
             }),
       ".weight_global_scale: is not part of this model"},
      {"AnIgnoredModule",
       After(Pack, [](auto& d) { d.dir.config["quantization_config"]["ignore"] = {kModule}; }),
       ".weight_packed: is quantized, but quantization_config leaves the module out"},
  };
}

std::vector<Fault> OtherFaults() {
  return {
      {"Int8WithoutScale",
       After(Int8, [](auto& d) { d.Remove(".weight_scale"); }),
       ".weight_scale: is missing"},
      {"Int8InAFileOfFloats",
       After(Int8, [](auto& d) { d.Find(".weight").dtype = "F8_E4M3"; }),
       ".weight: has another dtype than quantization_config says (got F8_E4M3, need I8)"},
      {"PlainWeightsWithScales",
       After(Int8, [](auto& d) { d.Find(".weight").dtype = "BF16"; }),
       ".weight: has another dtype than quantization_config says (got BF16, need I8)"},
      {"ZerosOfASymmetricMatrix",
       After(
           Int8,
           [](auto& d) {
             d.dir.tensors.push_back({std::string(kModule) + ".weight_zero_point", "I8", {16, 1}});
           }),
       ".weight_zero_point: is there although config.json says symmetric"},
      {"ScaleIsNan",
       After(Int8,
             [](auto& d) { d.template Set<float>(".weight_scale", {kNan}, 5 * sizeof(float)); }),
       ".weight_scale: a scale must be finite and at most 1e30 (got nan for row 5, group 0)"},
      {"Fp8ScaleIsInfinite",
       After(Fp8, [](auto& d) { d.template Set<float>(".weight_scale_inv", {-kInfinity}); }),
       ".weight_scale_inv: a scale must be finite and at most 1e30 (got -inf for row 0, group 0)"},
      {"Fp8ScaleTooLarge",
       After(Fp8, [](auto& d) { d.template Set<float>(".weight_scale_inv", {2e30F}); }),
       ".weight_scale_inv: a scale must be finite and at most 1e30 (got 2e+30 for row 0, group 0)"},
      {"Fp8CodeIsNan",
       After(Fp8, [](auto& d) { d.template Set<uint8_t>(".weight", {0xFF}, 77); }),
       ".weight: holds a NaN"},
      {"Fp8OfE5M2",
       After(Fp8, [](auto& d) { d.Find(".weight").dtype = "F8_E5M2"; }),
       ".weight: has another dtype than quantization_config says (got F8_E5M2, need F8_E4M3)"},
      {"Fp8ScalesOfOtherBlocks",
       After(Fp8,
             [](auto& d) {
               d.Find(".weight_scale_inv").shape = {1, 1};
             }),
       ".weight_scale_inv: has the wrong shape (got [1, 1], need [2, 1])"},
      {"Fp8WithTwoScales",
       After(Fp8,
             [](auto& d) {
               d.dir.tensors.push_back({std::string(kModule) + ".weight_scale", "F32", {2, 1}});
             }),
       ".weight_scale_inv: is beside model.layers.0.mlp.up_proj.weight_scale"},
      {"AwqZerosMissing", After(Awq, [](auto& d) { d.Remove(".qzeros"); }), ".qzeros: is missing"},
      {"AwqCodesOfGptq",
       After(Awq,
             [](auto& d) {
               d.Find(".qweight").shape = {1, 16};
             }),
       ".qweight: has the wrong shape (got [1, 16], config.json needs [8, 2])"},
      {"AwqScalesTurned",
       After(Awq,
             [](auto& d) {
               d.Find(".scales").shape = {16, 2};
             }),
       ".scales: has the wrong shape (got [16, 2], need [2, 16])"},
      {"GptqScalesMissing",
       After(Gptq, [](auto& d) { d.Remove(".scales"); }),
       ".scales: is missing"},
      {"GptqOfOtherBits",
       After(Gptq, [](auto& d) { d.dir.config["quantization_config"]["bits"] = 8; }),
       ".qzeros: has the wrong shape (got [2, 2], need [2, 4])"},
      {"GptqActOrderWithoutIndex",
       After(Gptq, [](auto& d) { d.dir.config["quantization_config"]["desc_act"] = true; }),
       ".g_idx: is missing, but config.json says act-order"},
      {"GptqBiasThatIsNotZero",
       After(Gptq,
             [](auto& d) {
               d.dir.tensors.push_back({std::string(kModule) + ".bias", "F16", {16}});
             }),
       ".bias: is not part of this model, and is not all zeros"},
      {"GptqBiasOfAnotherShape",
       After(Gptq,
             [](auto& d) {
               d.dir.tensors.push_back({std::string(kModule) + ".bias", "F16", {8}});
             }),
       ".bias: is not part of this model"},
  };
}

std::string NameOfFault(const testing::TestParamInfo<Fault>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Packed, QuantizedFaultTest, testing::ValuesIn(PackFaults()), NameOfFault);
INSTANTIATE_TEST_SUITE_P(Others, QuantizedFaultTest, testing::ValuesIn(OtherFaults()), NameOfFault);

TEST(QuantizedModelTest, EachFormatLoadsAsItIs) {
  for (const auto make : {Pack, Int8, Fp8, Awq, Gptq}) {
    QuantizedDir d;
    make(d);
    if (make == Pack) {
      SetPack(d);
    }
    EXPECT_TRUE(d.Load().ok()) << d.Load();
  }
}

TEST(QuantizedModelTest, AZeroBiasAndScalesOfActivationsAreIgnored) {
  QuantizedDir d;
  Gptq(d);
  d.dir.tensors.push_back({std::string(kModule) + ".bias", "F16", {16}});
  d.dir.tensors.push_back({std::string(kModule) + ".input_scale", "F32", {1}});
  d.Set<uint16_t>(".bias", std::vector<uint16_t>(16, 0));

  EXPECT_TRUE(d.Load().ok()) << d.Load();
}

TEST(QuantizedModelTest, WordsAcrossRowsMustBeWhole) {
  QuantizedDir d;
  Awq(d);
  d.dir.config["intermediate_size"] = 12;

  EXPECT_EQ(std::string(d.Load().message()),
            "load: model.safetensors: model.layers.0.mlp.up_proj.qweight: a matrix of this format "
            "must have multiples of 8 rows and columns (config.json needs [12, 8])");
}

TEST(QuantizedModelTest, APatternWithoutEndIsRefused) {
  QuantizedDir d;
  Pack(d);
  d.dir.config["quantization_config"]["ignore"] = {"re:(.|..|...)+[XY]"};

  EXPECT_EQ(
      std::string(d.Load().message()),
      "config.json: quantization_config: re:(.|..|...)+[XY]: the pattern needs too many steps "
      "to match");
}

TEST(QuantizedModelTest, WithoutQuantizationConfigItsTensorsAreUnknown) {
  QuantizedDir d;
  Int8(d);
  d.dir.config.erase("quantization_config");

  EXPECT_EQ(std::string(d.Load().message()),
            "load: model.safetensors: model.layers.0.mlp.up_proj.weight: has an unsupported dtype "
            "(got I8, need F32, F16 or BF16)");
}

}  // namespace
}  // namespace quire
