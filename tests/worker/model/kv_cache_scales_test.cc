// Scales of an fp8 KV cache in a checkpoint: found under every published name, refused where they
// could not be meant.
#include "worker/model/kv_cache_scales.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/reference/reference_backend.h"
#include "tests/worker/model/model_dir.h"
#include "worker/model/model.h"
#include "worker/model/weight_file_check.h"

namespace quire {
namespace {

constexpr char kAttention[] = "model.layers.0.self_attn";

struct Scale {
  std::string name;  // behind the attention module
  float value = 0.0F;
  std::string dtype = "F32";
  std::vector<int64_t> shape = {};
};

std::string Bytes(const Scale& scale) {
  auto bits = std::bit_cast<uint32_t>(scale.value);
  size_t bytes = sizeof(bits);
  if (scale.dtype != "F32") {
    bits >>= 16;
    bytes = sizeof(uint16_t);
  }
  std::string out;
  for (size_t i = 0; i < bytes; ++i) {
    out.push_back(static_cast<char>(bits >> (8 * i)));
  }
  return out;
}

void Write(const std::vector<Scale>& scales, ModelDir* dir) {
  std::string data = dir->Data();
  for (const Scale& scale : scales) {
    dir->tensors.push_back({kAttention + scale.name, scale.dtype, scale.shape});
    data += Bytes(scale);
  }
  dir->WriteConfig();
  dir->WriteFile("model.safetensors", ModelDir::Safetensors(dir->Header().dump(), data));
}

absl::StatusOr<KvCacheScales> Read(const std::vector<Scale>& scales) {
  ModelDir dir;
  Write(scales, &dir);
  auto files = WeightFiles::Open(dir.path());
  EXPECT_TRUE(files.ok()) << files.status();
  auto config = LoadModelConfig(dir.path());
  EXPECT_TRUE(config.ok()) << config.status();
  auto layout = CheckWeightFiles(*config, *files);
  if (!layout.ok()) {
    return layout.status();
  }
  auto read = ReadKvCacheScales(*layout, *files);
  if (!read.ok()) {
    return read.status();
  }
  EXPECT_EQ(read->size(), 1U);
  return read->front();
}

void ExpectScales(const std::vector<Scale>& scales, float key, float value) {
  const auto read = Read(scales);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->key, key);
  EXPECT_EQ(read->value, value);
}

TEST(KvCacheScalesTest, AreFoundUnderEveryPublishedName) {
  ExpectScales({{".k_scale", 0.25F}, {".v_scale", 0.5F}}, 0.25F, 0.5F);
  ExpectScales({{".k_proj.k_scale", 0.25F}, {".v_proj.v_scale", 0.5F}}, 0.25F, 0.5F);
  ExpectScales({{".k_proj.output_scale", 0.25F}, {".v_proj.output_scale", 0.5F}}, 0.25F, 0.5F);
  ExpectScales({{".kv_scale", 0.25F}}, 0.25F, 0.25F);
}

TEST(KvCacheScalesTest, ALayerWithoutHasOneAndALayerWithOneOfTheTwoTakesItForBoth) {
  ExpectScales({}, 1.0F, 1.0F);
  ExpectScales({{".k_scale", 0.25F}}, 0.25F, 0.25F);
  ExpectScales({{".v_scale", 0.5F}}, 0.5F, 0.5F);
}

TEST(KvCacheScalesTest, MayBeVectorsOfOneNumberInAnyTypeOfWeights) {
  ExpectScales({{".k_scale", 0.25F, "BF16", {1}}, {".v_scale", 0.5F, "F32", {1}}}, 0.25F, 0.5F);
}

TEST(KvCacheScalesTest, AScaleOfQueriesIsNotUsed) {
  ExpectScales({{".q_scale", 0.125F}, {".k_scale", 0.25F}}, 0.25F, 0.25F);
}

struct BadScale {
  std::string what;
  Scale scale;
  std::string message;
};

void PrintTo(const BadScale& bad, std::ostream* out) { *out << bad.what; }

class BadKvCacheScaleTest : public testing::TestWithParam<BadScale> {};

TEST_P(BadKvCacheScaleTest, IsRefusedWithItsNameAndTheRule) {
  ModelDir dir;
  Write({GetParam().scale}, &dir);
  auto backend = CreateReferenceBackend();

  const auto model = LoadModel(dir.path(), *backend, nullptr);

  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(model.status().message()),
            "load: model.safetensors: " + std::string(kAttention) + GetParam().scale.name + ": " +
                GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Scales,
    BadKvCacheScaleTest,
    testing::Values(
        BadScale{"Zero", {".k_scale", 0.0F}, "a scale must be in [1e-09, 1e+09] (got 0)"},
        BadScale{"Negative", {".v_scale", -1.0F}, "a scale must be in [1e-09, 1e+09] (got -1)"},
        BadScale{"NaN",
                 {".k_scale", std::numeric_limits<float>::quiet_NaN()},
                 "a scale must be in [1e-09, 1e+09] (got nan)"},
        BadScale{
            "Infinite", {".kv_scale", INFINITY}, "a scale must be in [1e-09, 1e+09] (got inf)"},
        BadScale{"SlightlyTooLarge",
                 {".k_scale", 1'000'000'064.0F},
                 "a scale must be in [1e-09, 1e+09] (got 1000000064)"},
        BadScale{"TooSmall", {".k_scale", 1e-10F}, "a scale must be in [1e-09, 1e+09] (got 1e-10)"},
        BadScale{"OfHeads",
                 {".k_scale", 1.0F, "F32", {1, 1}},
                 "a scale of the KV cache must be one number (got shape [1, 1]); a scale for each "
                 "head is not supported"},
        BadScale{"OfAWrongType",
                 {".k_scale", 1.0F, "I16"},
                 "has a dtype that is not supported for a scale (got I16, need F32, F16 or BF16)"}),
    [](const auto& test) { return test.param.what; });

TEST(KvCacheScalesTest, OfALayerThatIsNotThereAreNotPartOfTheModel) {
  ModelDir dir;
  dir.tensors.push_back({"model.layers.7.self_attn.k_scale", "F32", {}});
  dir.WriteAll();
  auto backend = CreateReferenceBackend();

  const auto model = LoadModel(dir.path(), *backend, nullptr);

  ASSERT_FALSE(model.ok());
  EXPECT_NE(std::string(model.status().message()).find("is not part of this model"),
            std::string::npos)
      << model.status();
}

}  // namespace
}  // namespace quire
