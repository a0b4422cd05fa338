#include "common/model/model_config.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/json/json.h"
#include "common/model/rope_config.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Json Sizes(const char* architecture) {
  return {{"architectures", {architecture}},
          {"vocab_size", 320},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 32}};
}

Json OptSizes() {
  return {{"architectures", {"OPTForCausalLM"}},
          {"vocab_size", 320},
          {"hidden_size", 64},
          {"ffn_dim", 256},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4}};
}

Json BloomSizes() {
  return {{"architectures", {"BloomForCausalLM"}},
          {"vocab_size", 320},
          {"hidden_size", 64},
          {"n_layer", 4},
          {"n_head", 4}};
}

ModelConfig Parsed(const Json& json) {
  auto config = ParseModelConfig(json.dump());
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ModelConfig();
}

std::string MessageOf(const std::string& text) {
  auto config = ParseModelConfig(text);
  EXPECT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(config.status()), "CONFIG");
  return std::string(config.status().message());
}

// For fields that the file leaves out, the defaults of transformers hold.

TEST(ModelConfigTest, LlamaTakesTransformersDefaults) {
  const ModelConfig config = Parsed(Sizes("LlamaForCausalLM"));

  EXPECT_EQ(config.num_kv_heads, 32);
  EXPECT_EQ(config.head_dim, 2);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.norm, NormKind::kRmsNorm);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.activation, ActivationKind::kSilu);
  EXPECT_TRUE(config.gated_mlp);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.attention_out_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope, RopeConfig());
  EXPECT_EQ(config.embedding_dim, 64);
  EXPECT_TRUE(config.final_norm);
  EXPECT_EQ(config.sliding_window, std::nullopt);
  EXPECT_EQ(config.dtype, DType::kF32);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

TEST(ModelConfigTest, MistralTakesTransformersDefaults) {
  const ModelConfig config = Parsed(Sizes("MistralForCausalLM"));

  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_EQ(config.sliding_window, 4096);
  EXPECT_THAT(config.layer_uses_sliding_window, ElementsAre(true, true, true, true));
  EXPECT_EQ(WindowOfAllLayers(config), 4096);
}

TEST(ModelConfigTest, Qwen2HasBiasOnQkvAlone) {
  const ModelConfig config = Parsed(Sizes("Qwen2ForCausalLM"));

  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.attention_out_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.num_kv_heads, 32);
  EXPECT_EQ(config.max_position_embeddings, 32768);
  EXPECT_EQ(config.sliding_window, std::nullopt);
  EXPECT_EQ(config.bos_token_id, std::nullopt);
  EXPECT_THAT(config.eos_token_ids, IsEmpty());
}

TEST(ModelConfigTest, Qwen3HasNormsOnHeadsOf128) {
  const ModelConfig config = Parsed(Sizes("Qwen3ForCausalLM"));

  EXPECT_TRUE(config.qk_norm);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_FALSE(config.qkv_bias);
}

TEST(ModelConfigTest, OptTakesTransformersDefaults) {
  const ModelConfig config = Parsed(OptSizes());

  EXPECT_EQ(config.intermediate_size, 256);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.norm, NormKind::kLayerNorm);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.activation, ActivationKind::kRelu);
  EXPECT_FALSE(config.gated_mlp);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.attention_out_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope, std::nullopt);
  EXPECT_EQ(config.learned_position_offset, 2);
  EXPECT_EQ(config.embedding_dim, 64);
  EXPECT_TRUE(config.norm_before);
  EXPECT_TRUE(config.final_norm);
  EXPECT_TRUE(config.norm_affine);
  EXPECT_EQ(config.bos_token_id, 2);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

TEST(ModelConfigTest, BloomTakesTransformersDefaults) {
  const ModelConfig config = Parsed(BloomSizes());

  EXPECT_EQ(config.intermediate_size, 256);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.norm, NormKind::kLayerNorm);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.activation, ActivationKind::kGeluTanh);
  EXPECT_FALSE(config.gated_mlp);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.attention_out_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope, std::nullopt);
  EXPECT_TRUE(config.alibi);
  EXPECT_EQ(config.embedding_dim, 64);
  EXPECT_TRUE(config.embedding_norm);
  EXPECT_TRUE(config.norm_before);
  EXPECT_FALSE(config.residual_after_norm);
  EXPECT_TRUE(config.final_norm);
  EXPECT_TRUE(config.norm_affine);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

// Fields that a file may set.

TEST(ModelConfigTest, NullMeansNoneRatherThanTheDefault) {
  Json json = Sizes("MistralForCausalLM");
  json["sliding_window"] = nullptr;
  json["num_key_value_heads"] = nullptr;
  json["head_dim"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["bos_token_id"] = nullptr;

  const ModelConfig config = Parsed(json);

  EXPECT_EQ(config.sliding_window, std::nullopt);
  EXPECT_EQ(config.num_kv_heads, 32);
  EXPECT_EQ(config.head_dim, 2);
  EXPECT_THAT(config.eos_token_ids, IsEmpty());
  EXPECT_EQ(config.bos_token_id, std::nullopt);
}

TEST(ModelConfigTest, TokensOfTheFamilyOutsideTheVocabularyAreNone) {
  Json json = Sizes("LlamaForCausalLM");
  json["vocab_size"] = 2;

  EXPECT_EQ(Parsed(json).bos_token_id, 1);
  EXPECT_THAT(Parsed(json).eos_token_ids, IsEmpty());
  json["vocab_size"] = 1;
  EXPECT_EQ(Parsed(json).bos_token_id, std::nullopt);
}

TEST(ModelConfigTest, BothSpellingsOfRopeParametersAreRead) {
  Json old_style = Sizes("LlamaForCausalLM");
  old_style["rope_theta"] = 500000;
  old_style["rope_scaling"] = {{"type", "llama3"},
                               {"factor", 32.0},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0},
                               {"original_max_position_embeddings", 8192}};
  Json new_style = Sizes("LlamaForCausalLM");
  new_style["rope_parameters"] = old_style["rope_scaling"];
  new_style["rope_parameters"].erase("type");
  new_style["rope_parameters"]["rope_type"] = "llama3";
  new_style["rope_parameters"]["rope_theta"] = 500000.0;

  const ModelConfig from_old = Parsed(old_style);

  EXPECT_EQ(from_old, Parsed(new_style));
  EXPECT_EQ(from_old.rope,
            (RopeConfig{.theta = 500000.0,
                        .scaling = RopeScalingKind::kLlama3,
                        .factor = 32.0,
                        .low_freq_factor = 1.0,
                        .high_freq_factor = 4.0,
                        .original_max_position_embeddings = 8192}));
}

TEST(ModelConfigTest, LinearRopeScalingNeedsItsFactorOnly) {
  Json json = Sizes("LlamaForCausalLM");
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};

  const ModelConfig config = Parsed(json);

  EXPECT_EQ(config.rope->scaling, RopeScalingKind::kLinear);
  EXPECT_EQ(config.rope->factor, 2.0);
  EXPECT_EQ(config.rope->theta, 10000.0);
}

TEST(ModelConfigTest, YarnTakesTransformersDefaults) {
  Json json = Sizes("LlamaForCausalLM");
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4}};

  const ModelConfig config = Parsed(json);

  EXPECT_EQ(config.rope->original_max_position_embeddings, 2048);
  EXPECT_EQ(config.rope->beta_fast, 32.0);
  EXPECT_EQ(config.rope->beta_slow, 1.0);
  EXPECT_TRUE(config.rope->truncate);
  EXPECT_FLOAT_EQ(config.rope->attention_factor, 1.1386294F);
}

TEST(ModelConfigTest, YarnAndDynamicLengthenTheContextByTheirFactor) {
  Json json = Sizes("LlamaForCausalLM");
  json["head_dim"] = 4;
  json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.5}};
  EXPECT_EQ(Parsed(json).max_position_embeddings, 5120);
  EXPECT_EQ(Parsed(json).rope->original_max_position_embeddings, 2048);

  json["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 1024}};
  EXPECT_EQ(Parsed(json).max_position_embeddings, 4096);
  json["max_position_embeddings"] = 5000;
  EXPECT_EQ(Parsed(json).max_position_embeddings, 5000);

  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 1e6}};
  EXPECT_EQ(Parsed(json).max_position_embeddings, kMaxPositionsLimit);
}

TEST(ModelConfigTest, OriginalLengthBesideTheRopeParametersWins) {
  Json json = Sizes("LlamaForCausalLM");
  json["original_max_position_embeddings"] = 512;
  json["rope_scaling"] = {{"rope_type", "longrope"},
                          {"short_factor", {1.5}},
                          {"long_factor", {3}},
                          {"original_max_position_embeddings", 1024}};

  const RopeConfig rope = *Parsed(json).rope;

  EXPECT_EQ(rope.original_max_position_embeddings, 512);
  EXPECT_THAT(rope.factors, ElementsAre(1.5F));
  EXPECT_THAT(rope.long_factors, ElementsAre(3.0F));
  EXPECT_FLOAT_EQ(rope.attention_factor, 1.1055416F);  // sqrt(1 + log(4) / log(512))
}

TEST(ModelConfigTest, RopeParametersOfEqualLayerTypesAreRead) {
  Json flat = Sizes("LlamaForCausalLM");
  flat["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 500}};
  Json nested = flat;
  nested["rope_parameters"] = {{"full_attention", flat["rope_parameters"]},
                               {"sliding_attention", flat["rope_parameters"]}};

  EXPECT_EQ(Parsed(nested), Parsed(flat));
}

TEST(ModelConfigTest, RopeDependsOnTheLengthIfItsScalingDoes) {
  RopeConfig rope = {.original_max_position_embeddings = 100};
  rope.scaling = RopeScalingKind::kYarn;
  EXPECT_EQ(RopeLength(rope, 200), 0);
  rope.scaling = RopeScalingKind::kDynamic;
  EXPECT_EQ(RopeLength(rope, 50), RopeLength(rope, 100));
  EXPECT_NE(RopeLength(rope, 200), RopeLength(rope, 201));
  rope.scaling = RopeScalingKind::kLongRope;
  EXPECT_EQ(RopeLength(rope, 50), RopeLength(rope, 100));
  EXPECT_NE(RopeLength(rope, 100), RopeLength(rope, 101));
  EXPECT_EQ(RopeLength(rope, 101), RopeLength(rope, 200));
}

TEST(ModelConfigTest, QwenLayersSlideFromMaxWindowLayersOn) {
  Json json = Sizes("Qwen2ForCausalLM");
  json["use_sliding_window"] = true;
  json["sliding_window"] = 100;
  json["max_window_layers"] = 3;

  const ModelConfig config = Parsed(json);

  EXPECT_EQ(config.sliding_window, 100);
  EXPECT_THAT(config.layer_uses_sliding_window, ElementsAre(false, false, false, true));
  EXPECT_EQ(WindowOfAllLayers(config), 0);
}

TEST(ModelConfigTest, QwenLayerTypesWinOverMaxWindowLayers) {
  Json json = Sizes("Qwen3ForCausalLM");
  json["use_sliding_window"] = true;
  json["sliding_window"] = 100;
  json["max_window_layers"] = 0;
  json["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};

  EXPECT_THAT(Parsed(json).layer_uses_sliding_window, ElementsAre(false, true, false, false));
}

TEST(ModelConfigTest, QwenWindowThatIsNotInUseIsIgnored) {
  Json json = Sizes("Qwen2ForCausalLM");
  json["use_sliding_window"] = false;
  json["sliding_window"] = 100;
  json["max_window_layers"] = 0;

  EXPECT_EQ(Parsed(json).sliding_window, std::nullopt);
}

TEST(ModelConfigTest, OptVariantsAreRead) {
  Json json = OptSizes();
  json["do_layer_norm_before"] = false;
  json["word_embed_proj_dim"] = 32;
  json["enable_bias"] = false;
  json["layer_norm_elementwise_affine"] = false;

  const ModelConfig config = Parsed(json);

  EXPECT_FALSE(config.norm_before);
  EXPECT_FALSE(config.final_norm);
  EXPECT_EQ(config.embedding_dim, 32);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.norm_affine);
}

TEST(ModelConfigTest, OptWithoutAFinalNormKeepsNormingBefore) {
  Json json = OptSizes();
  json["_remove_final_layer_norm"] = true;

  EXPECT_TRUE(Parsed(json).norm_before);
  EXPECT_FALSE(Parsed(json).final_norm);
}

TEST(ModelConfigTest, BothSpellingsOfBloomSizesAreRead) {
  Json other = BloomSizes();
  other.erase("hidden_size");
  other.erase("n_layer");
  other.erase("n_head");
  other["n_embed"] = 64;
  other["num_hidden_layers"] = 4;
  other["num_attention_heads"] = 4;
  Json both = BloomSizes();
  both.update(other);

  EXPECT_EQ(Parsed(other), Parsed(BloomSizes()));
  EXPECT_EQ(Parsed(both), Parsed(BloomSizes()));
}

TEST(ModelConfigTest, BloomVariantsAreRead) {
  Json json = BloomSizes();
  json["seq_length"] = 4096;
  json["layer_norm_epsilon"] = 1e-6;
  json["apply_residual_connection_post_layernorm"] = true;
  json["tie_word_embeddings"] = false;
  json["n_inner"] = nullptr;      // as published
  json["slow_but_exact"] = true;  // another order of the same sums
  json["pretraining_tp"] = 4;

  const ModelConfig config = Parsed(json);

  EXPECT_EQ(config.max_position_embeddings, 4096);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_TRUE(config.residual_after_norm);
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST(ModelConfigTest, BothSpellingsOfTheStoredTypeAreRead) {
  Json old_style = Sizes("LlamaForCausalLM");
  Json new_style = Sizes("LlamaForCausalLM");
  old_style["torch_dtype"] = "bfloat16";
  new_style["dtype"] = "float16";

  EXPECT_EQ(Parsed(old_style).dtype, DType::kBF16);
  EXPECT_EQ(Parsed(new_style).dtype, DType::kF16);
}

TEST(ModelConfigTest, EndTokensMayBeAList) {
  Json json = Sizes("LlamaForCausalLM");
  json["eos_token_id"] = {5, 7, 5};

  EXPECT_THAT(Parsed(json).eos_token_ids, ElementsAre(5, 7));
}

TEST(ModelConfigTest, PlainWeightsWithScalesOfAnFp8CacheBesideThemAreNotQuantised) {
  const auto config = ParseModelConfig(R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": 16,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "quantization_config": {
      "quant_method": "compressed-tensors", "config_groups": {}, "format": "dense", "ignore": [],
      "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true,
                          "dynamic": false}}})");

  EXPECT_TRUE(config.ok()) << config.status();
}

TEST(ModelConfigTest, CodeOfTheModelFolderIsIgnored) {
  Json json = Sizes("LlamaForCausalLM");
  const ModelConfig plain = Parsed(json);
  json["auto_map"] = {{"AutoModelForCausalLM", "evil.Model"}};

  EXPECT_EQ(Parsed(json), plain);
}

// Faults.

struct Fault {
  const char* name;
  Json base;
  const char* field;
  std::string value;  // JSON text; "" removes the field
  std::string message;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::vector<Fault> Faults() {
  const Json llama = Sizes("LlamaForCausalLM");
  const Json qwen = Sizes("Qwen2ForCausalLM");
  const Json opt = OptSizes();
  const Json bloom = BloomSizes();
  return {
      {"ArchitecturesMissing", llama, "architectures", "", "architectures: is required"},
      {"ArchitecturesEmpty",
       llama,
       "architectures",
       "[]",
       "architectures: must be a list of one string"},
      {"ArchitecturesOfNumbers",
       llama,
       "architectures",
       "[1]",
       "architectures: must be a list of one string"},
      {"UnknownArchitecture",
       llama,
       "architectures",
       "[\"GPT2LMHeadModel\"]",
       "architectures: must be one of LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
       "Qwen3ForCausalLM, OPTForCausalLM, BloomForCausalLM, Idefics3ForConditionalGeneration, "
       "InternVLForConditionalGeneration, LlavaForConditionalGeneration, "
       "LlavaNextForConditionalGeneration, LlavaOnevisionForConditionalGeneration, "
       "Mistral3ForConditionalGeneration, Qwen2VLForConditionalGeneration, "
       "Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration, "
       "SmolVLMForConditionalGeneration (got GPT2LMHeadModel)"},
      {"VocabMissing", llama, "vocab_size", "", "vocab_size: is required"},
      {"VocabNull", llama, "vocab_size", "null", "vocab_size: is required"},
      {"VocabZero", llama, "vocab_size", "0", "vocab_size: must be in [1, 4194304] (got 0)"},
      {"HiddenMissing", llama, "hidden_size", "", "hidden_size: is required"},
      {"HiddenNegative",
       llama,
       "hidden_size",
       "-64",
       "hidden_size: must be in [1, 262144] (got -64)"},
      {"HiddenFractional",
       llama,
       "hidden_size",
       "64.5",
       "hidden_size: must be an integer (got 64.5)"},
      {"HiddenText",
       llama,
       "hidden_size",
       "\"64\"",
       "hidden_size: must be an integer (got string)"},
      {"HiddenHuge",
       llama,
       "hidden_size",
       "9223372036854775807",
       "hidden_size: must be in [1, 262144] (got 9223372036854775807)"},
      {"HiddenAboveInt64",
       llama,
       "hidden_size",
       "18446744073709551615",
       "hidden_size: must be in [1, 262144] (got 18446744073709551615)"},
      {"HiddenAboveUint64",
       llama,
       "hidden_size",
       "18446744073709551616",
       "hidden_size: must be an integer (got 1.8446744073709552e+19)"},
      {"IntermediateMissing", llama, "intermediate_size", "", "intermediate_size: is required"},
      {"IntermediateHuge",
       llama,
       "intermediate_size",
       "2147483648",
       "intermediate_size: must be in [1, 1048576] (got 2147483648)"},
      {"LayersZero",
       llama,
       "num_hidden_layers",
       "0",
       "num_hidden_layers: must be in [1, 1024] (got 0)"},
      {"HeadsZero",
       llama,
       "num_attention_heads",
       "0",
       "num_attention_heads: must be in [1, 4096] (got 0)"},
      {"HeadsDoNotDivideTheWidth",
       llama,
       "num_attention_heads",
       "3",
       "num_attention_heads: must divide hidden_size (got 3, hidden_size 64)"},
      {"KvHeadsDoNotDivideTheHeads",
       llama,
       "num_key_value_heads",
       "3",
       "num_key_value_heads: must divide num_attention_heads (got 3, num_attention_heads 32)"},
      {"KvHeadsZero",
       llama,
       "num_key_value_heads",
       "0",
       "num_key_value_heads: must be in [1, 4096] (got 0)"},
      {"HeadDimOdd", llama, "head_dim", "7", "head_dim: must be even and at most 1024 (got 7)"},
      {"HeadDimHuge", llama, "head_dim", "1025", "head_dim: must be in [1, 1024] (got 1025)"},
      {"ContextTooLong",
       llama,
       "max_position_embeddings",
       "4294967296",
       "max_position_embeddings: must be in [2, 16777216] (got 4294967296)"},
      {"ContextOfOneToken",
       llama,
       "max_position_embeddings",
       "1",
       "max_position_embeddings: must be in [2, 16777216] (got 1)"},
      {"ContextLongerThanAnyGroupServes",
       llama,
       "max_position_embeddings",
       "16777217",
       "max_position_embeddings: must be in [2, 16777216] (got 16777217)"},
      {"NormEpsNegative",
       llama,
       "rms_norm_eps",
       "-1e-5",
       "rms_norm_eps: must be in [0, 1] (got -1e-05)"},
      {"NormEpsText",
       llama,
       "rms_norm_eps",
       "\"1e-5\"",
       "rms_norm_eps: must be a number (got string)"},
      {"UnknownActivation",
       llama,
       "hidden_act",
       "\"mish\"",
       "hidden_act: must be one of silu, relu, gelu, gelu_pytorch_tanh"},
      {"BiasIsANumber",
       llama,
       "attention_bias",
       "1",
       "attention_bias: must be true or false (got 1)"},
      {"UnknownDtype",
       llama,
       "torch_dtype",
       "\"float64\"",
       "torch_dtype: must be one of float32, float16, bfloat16"},
      {"QuantizedByAnotherMethod",
       llama,
       "quantization_config",
       "{\"quant_method\": \"hqq\"}",
       "quantization_config.quant_method: hqq is not supported; the nearest supported format is "
       "awq"},
      {"KvCacheSchemeSaysDynamicInText",
       llama,
       "quantization_config",
       R"({"quant_method": "compressed-tensors",
           "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor",
                               "symmetric": true, "dynamic": "true"}})",
       "quantization_config.kv_cache_scheme: must be a static, symmetric scale for each tensor of "
       "8-bit floats"},
      {"KvCacheScalesOfHeads",
       llama,
       "quantization_config",
       R"({"quant_method": "compressed-tensors", "config_groups": {},
           "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "attn_head"}})",
       "quantization_config.kv_cache_scheme: must be a static, symmetric scale for each tensor of "
       "8-bit floats"},
      {"KvCacheSchemeIsAList",
       llama,
       "quantization_config",
       R"({"quant_method": "compressed-tensors", "kv_cache_scheme": []})",
       "quantization_config.kv_cache_scheme: must be a static, symmetric scale for each tensor of "
       "8-bit floats"},
      {"ThetaZero", llama, "rope_theta", "0", "rope_theta: must be in [1, 1e+12] (got 0)"},
      {"RopeScalingIsText",
       llama,
       "rope_scaling",
       "\"linear\"",
       "rope_scaling: must be an object or null"},
      {"UnknownRopeType",
       llama,
       "rope_scaling",
       R"({"rope_type": "axial", "factor": 4})",
       "rope_scaling.rope_type: must be one of default, dynamic, linear, llama3, longrope, mrope, "
       "proportional, yarn (got axial)"},
      {"RopeFactorMissing",
       llama,
       "rope_scaling",
       R"({"type": "linear"})",
       "rope_scaling.factor: is required"},
      {"RopeFactorZero",
       llama,
       "rope_scaling",
       R"({"type": "linear", "factor": 0})",
       "rope_scaling.factor: must be in [1, 1e+06] (got 0)"},
      {"RopeFrequenciesCross",
       llama,
       "rope_parameters",
       R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})",
       "rope_parameters.high_freq_factor: must be greater than low_freq_factor"},
      {"RopeByLayerType",
       llama,
       "rope_parameters",
       R"({"full_attention": {"rope_theta": 10000}, "sliding_attention": {"rope_theta": 500}})",
       "rope_parameters.sliding_attention: rope parameters that differ by layer type are not "
       "supported"},
      {"RopeOfALayerTypeWithoutRotation",
       llama,
       "rope_parameters",
       R"({"full_attention": {"rope_theta": 10000}, "sliding_attention": null})",
       "rope_parameters.sliding_attention: rope parameters that differ by layer type are not "
       "supported"},
      {"RopeThetaOfALayerTypeZero",
       llama,
       "rope_parameters",
       R"({"full_attention": {"rope_theta": 0}})",
       "rope_parameters.full_attention.rope_theta: must be in [1, 1e+12] (got 0)"},
      {"PartialRotation",
       llama,
       "partial_rotary_factor",
       "0.5",
       "partial_rotary_factor: must be 1"},
      {"PartialRotationInTheParameters",
       llama,
       "rope_parameters",
       R"({"rope_type": "yarn", "factor": 4, "partial_rotary_factor": 0.5})",
       "rope_parameters.partial_rotary_factor: must be 1"},
      {"DynamicRopeFactorMissing",
       llama,
       "rope_scaling",
       R"({"type": "dynamic"})",
       "rope_scaling.factor: is required"},
      {"DynamicRopeOfTinyHeads",
       llama,
       "rope_scaling",
       R"({"type": "dynamic", "factor": 2})",
       "rope_scaling.rope_type: dynamic needs a head_dim above 2"},
      {"YarnFactorHuge",
       llama,
       "rope_scaling",
       R"({"type": "yarn", "factor": 1e7})",
       "rope_scaling.factor: must be in [1, 1e+06] (got 10000000.0)"},
      {"YarnThetaOne",
       llama,
       "rope_parameters",
       R"({"rope_type": "yarn", "factor": 4, "rope_theta": 1})",
       "rope_parameters.rope_theta: must be greater than 1 for yarn"},
      {"YarnBetaZero",
       llama,
       "rope_scaling",
       R"({"type": "yarn", "factor": 4, "beta_slow": 0})",
       "rope_scaling.beta_slow: must be in [1e-06, 1e+06] (got 0)"},
      {"YarnBetasCross",
       llama,
       "rope_scaling",
       R"({"type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2})",
       "rope_scaling.beta_fast: must be at least beta_slow"},
      {"YarnAttentionFactorZero",
       llama,
       "rope_scaling",
       R"({"type": "yarn", "factor": 4, "attention_factor": 0})",
       "rope_scaling.attention_factor: must be in [1e-06, 1e+06] (got 0)"},
      {"YarnMscaleNegative",
       llama,
       "rope_scaling",
       R"({"type": "yarn", "factor": 4, "mscale": -1})",
       "rope_scaling.mscale: must be in [0, 1e+06] (got -1)"},
      {"YarnTruncateIsANumber",
       llama,
       "rope_scaling",
       R"({"type": "yarn", "factor": 4, "truncate": 0})",
       "rope_scaling.truncate: must be true or false (got 0)"},
      {"YarnOriginalLengthZero",
       llama,
       "rope_scaling",
       R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 0})",
       "rope_scaling.original_max_position_embeddings: must be in [1, 16777216] (got 0)"},
      {"LongRopeListMissing",
       llama,
       "rope_scaling",
       R"({"type": "longrope", "short_factor": [1]})",
       "rope_scaling.long_factor: must be a list of head_dim / 2 = 1 numbers"},
      {"LongRopeListTooLong",
       llama,
       "rope_scaling",
       R"({"type": "longrope", "short_factor": [1, 2], "long_factor": [1]})",
       "rope_scaling.short_factor: must be a list of head_dim / 2 = 1 numbers"},
      {"LongRopeListIsANumber",
       llama,
       "rope_scaling",
       R"({"type": "longrope", "short_factor": [1], "long_factor": 1})",
       "rope_scaling.long_factor: must be a list of head_dim / 2 = 1 numbers"},
      {"LongRopeFactorZero",
       llama,
       "rope_scaling",
       R"({"type": "longrope", "short_factor": [1], "long_factor": [0]})",
       "rope_scaling.long_factor: entries must be in [1e-06, 1e+06]"},
      {"LongRopeFactorHuge",
       llama,
       "rope_scaling",
       R"({"type": "longrope", "short_factor": [1e300], "long_factor": [1]})",
       "rope_scaling.short_factor: entries must be in [1e-06, 1e+06]"},
      {"LongRopeFactorIsText",
       llama,
       "rope_scaling",
       R"({"type": "longrope", "short_factor": ["NaN"], "long_factor": [1]})",
       "rope_scaling.short_factor: entries must be in [1e-06, 1e+06]"},
      {"LongRopeOriginalLengthOne",
       llama,
       "original_max_position_embeddings",
       R"(1, "rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]})",
       "rope_scaling.original_max_position_embeddings: must be at least 2 for longrope"},
      {"ProportionalShareAboveOne",
       llama,
       "rope_parameters",
       R"({"rope_type": "proportional", "partial_rotary_factor": 1.5})",
       "rope_parameters.partial_rotary_factor: must be in [0, 1] (got 1.5)"},
      {"EndTokenOutsideTheVocabulary",
       llama,
       "eos_token_id",
       "320",
       "eos_token_id: must be in [0, 319] (got 320)"},
      {"EndTokenInAListOutsideTheVocabulary",
       llama,
       "eos_token_id",
       "[1, -1]",
       "eos_token_id: must be in [0, 319] (got -1)"},
      {"StartTokenIsText",
       llama,
       "bos_token_id",
       "\"<s>\"",
       "bos_token_id: must be an integer (got string)"},
      {"LayerTypesTooShort",
       qwen,
       "layer_types",
       "[\"full_attention\"]",
       "layer_types: must be a list with one entry per layer"},
      {"LayerTypesUnknown",
       qwen,
       "layer_types",
       R"(["full_attention", "full_attention", "full_attention", "chunked_attention"])",
       "layer_types: entries must be full_attention or sliding_attention"},
      {"LayerTypesSlideWithoutAWindow",
       qwen,
       "layer_types",
       R"(["full_attention", "full_attention", "full_attention", "sliding_attention"])",
       "layer_types: names sliding_attention, but the model has no sliding window"},
      {"FfnMissing", opt, "ffn_dim", "", "ffn_dim: is required"},
      {"OptHeadsDoNotDivideTheWidth",
       opt,
       "num_attention_heads",
       "5",
       "num_attention_heads: must divide hidden_size (got 5, hidden_size 64)"},
      {"OptProjectionZero",
       opt,
       "word_embed_proj_dim",
       "0",
       "word_embed_proj_dim: must be in [1, 262144] (got 0)"},
      {"BloomHiddenMissing", bloom, "hidden_size", "", "hidden_size: is required"},
      {"BloomLayersMissing", bloom, "n_layer", "", "n_layer: is required"},
      {"BloomHeadsMissing", bloom, "n_head", "", "n_head: is required"},
      {"BloomHeadsDoNotDivideTheWidth",
       bloom,
       "n_head",
       "3",
       "n_head: must divide hidden_size (got 3, hidden_size 64)"},
      {"BloomHeadsNegative", bloom, "n_head", "-4", "n_head: must be in [1, 4096] (got -4)"},
      {"BloomWidthsDiffer",
       bloom,
       "n_embed",
       "128",
       "n_embed: must be equal to hidden_size if both are given"},
      {"BloomLayersDiffer",
       bloom,
       "num_hidden_layers",
       "\"4\"",
       "num_hidden_layers: must be equal to n_layer if both are given"},
      {"BloomHiddenHuge",
       bloom,
       "hidden_size",
       "262145",
       "hidden_size: must be in [1, 262144] (got 262145)"},
      {"BloomNormEpsNegative",
       bloom,
       "layer_norm_epsilon",
       "-1e-5",
       "layer_norm_epsilon: must be in [0, 1] (got -1e-05)"},
      {"BloomSeqLengthZero",
       bloom,
       "seq_length",
       "0",
       "seq_length: must be in [2, 16777216] (got 0)"},
      {"BloomResidualIsANumber",
       bloom,
       "apply_residual_connection_post_layernorm",
       "1",
       "apply_residual_connection_post_layernorm: must be true or false (got 1)"},
      {"BloomEndTokenOutsideTheVocabulary",
       bloom,
       "eos_token_id",
       "320",
       "eos_token_id: must be in [0, 319] (got 320)"},
  };
}

class MalformedConfigTest : public testing::TestWithParam<Fault> {};

TEST_P(MalformedConfigTest, IsRefusedNamingTheField) {
  Json json = GetParam().base;
  json[GetParam().field] = "@";
  std::string text = json.dump();
  text.replace(text.find("\"@\""), 3, GetParam().value);
  if (GetParam().value.empty()) {
    json.erase(GetParam().field);
    text = json.dump();
  }

  EXPECT_EQ(MessageOf(text), "config.json: " + GetParam().message);
}

std::string FaultName(const testing::TestParamInfo<Fault>& fault) { return fault.param.name; }

INSTANTIATE_TEST_SUITE_P(Faults, MalformedConfigTest, testing::ValuesIn(Faults()), FaultName);

TEST(MalformedConfigTest, TextThatIsNoObjectIsRefused) {
  EXPECT_EQ(MessageOf(""), "config.json: JSON: not valid at byte 1");
  EXPECT_EQ(MessageOf("[1]"), "config.json: must be a JSON object");
  EXPECT_EQ(MessageOf("{\"a\":1,\"a\":2}"), "config.json: JSON: duplicate key");
  EXPECT_EQ(MessageOf(std::string(100'000, '[')), "config.json: JSON: nested too deep");
  std::string values = "[0";
  for (int i = 0; i < 100'000; ++i) {
    values += ",0";
  }
  EXPECT_EQ(MessageOf(values), "config.json: JSON: has too many values (limit 100000)");
}

// Files.

class ModelFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "quire_config_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const char* name, const std::string& text) {
    std::ofstream(std::filesystem::path(folder_) / name) << text;
  }

  std::string folder_;
};

TEST_F(ModelFolderTest, ConfigIsReadFromItsFile) {
  Write("config.json", Sizes("LlamaForCausalLM").dump());

  auto config = LoadModelConfig(folder_);

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, Parsed(Sizes("LlamaForCausalLM")));
}

TEST_F(ModelFolderTest, MissingConfigIsNotFound) {
  EXPECT_EQ(LoadModelConfig(folder_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelFolderTest, GenerationDefaultsAreUnsetWithoutAFile) {
  auto defaults = LoadGenerationDefaults(folder_);

  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->temperature, std::nullopt);
  EXPECT_EQ(defaults->do_sample, std::nullopt);
  EXPECT_THAT(defaults->eos_token_ids, IsEmpty());
}

TEST_F(ModelFolderTest, GenerationDefaultsAreRead) {
  Write("generation_config.json",
        R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": null,
            "repetition_penalty": 1.05, "eos_token_id": [128001, 128009], "bos_token_id": 128000,
            "transformers_version": "4.42.3"})");

  auto defaults = LoadGenerationDefaults(folder_);

  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->do_sample, true);
  EXPECT_EQ(defaults->temperature, 0.6F);
  EXPECT_EQ(defaults->top_p, 0.9F);
  EXPECT_EQ(defaults->top_k, 20);
  EXPECT_EQ(defaults->min_p, std::nullopt);
  EXPECT_EQ(defaults->repetition_penalty, 1.05F);
  EXPECT_EQ(defaults->bos_token_id, 128000);
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(128001, 128009));
}

TEST_F(ModelFolderTest, FaultyGenerationDefaultsAreRefusedNamingTheField) {
  Write("generation_config.json", R"({"top_p": 1.5})");

  auto defaults = LoadGenerationDefaults(folder_);

  EXPECT_EQ(std::string(defaults.status().message()),
            "generation_config.json: top_p: must be in [0, 1] (got 1.5)");

  Write("generation_config.json", R"({"top_p": 1.0000001})");
  EXPECT_EQ(std::string(LoadGenerationDefaults(folder_).status().message()),
            "generation_config.json: top_p: must be in [0, 1] (got 1.0000001)");
}

// The digest.

TEST(HashOfModelConfigTest, EveryFieldThatDecidesANumberChangesTheDigest) {
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig& c) { c.architecture = "MistralForCausalLM"; },
      [](ModelConfig& c) { c.vocab_size = 321; },
      [](ModelConfig& c) { c.hidden_size = 65; },
      [](ModelConfig& c) { c.intermediate_size = 97; },
      [](ModelConfig& c) { c.num_layers = 5; },
      [](ModelConfig& c) { c.num_heads = 16; },
      [](ModelConfig& c) { c.num_kv_heads = 16; },
      [](ModelConfig& c) { c.head_dim = 4; },
      [](ModelConfig& c) { c.max_position_embeddings = 4096; },
      [](ModelConfig& c) { c.norm = NormKind::kLayerNorm; },
      [](ModelConfig& c) { c.norm_eps = 1e-5; },
      [](ModelConfig& c) { c.activation = ActivationKind::kGelu; },
      [](ModelConfig& c) { c.gated_mlp = false; },
      [](ModelConfig& c) { c.qkv_bias = true; },
      [](ModelConfig& c) { c.attention_out_bias = true; },
      [](ModelConfig& c) { c.mlp_bias = true; },
      [](ModelConfig& c) { c.qk_norm = true; },
      [](ModelConfig& c) { c.tie_word_embeddings = true; },
      [](ModelConfig& c) { c.rope.reset(); },
      [](ModelConfig& c) { c.rope->theta = 20000.0; },
      [](ModelConfig& c) { c.rope->scaling = RopeScalingKind::kLinear; },
      [](ModelConfig& c) { c.rope->factor = 2.0; },
      [](ModelConfig& c) { c.rope->low_freq_factor = 2.0; },
      [](ModelConfig& c) { c.rope->high_freq_factor = 8.0; },
      [](ModelConfig& c) { c.rope->original_max_position_embeddings = 4096; },
      [](ModelConfig& c) { c.learned_position_offset = 2; },
      [](ModelConfig& c) { c.embedding_dim = 32; },
      [](ModelConfig& c) { c.alibi = true; },
      [](ModelConfig& c) { c.embedding_norm = true; },
      [](ModelConfig& c) { c.norm_before = false; },
      [](ModelConfig& c) { c.residual_after_norm = true; },
      [](ModelConfig& c) { c.final_norm = false; },
      [](ModelConfig& c) { c.norm_affine = false; },
      [](ModelConfig& c) { c.quantization.groups.resize(1); },
      [](ModelConfig& c) {
        c.quantization.groups = {{.scheme = {.storage = WeightStorage::kGptq}}};
      },
      [](ModelConfig& c) { c.quantization.groups = {{.scheme = {.bits = 4}}}; },
      [](ModelConfig& c) { c.quantization.groups = {{.scheme = {.group_cols = 32}}}; },
      [](ModelConfig& c) { c.quantization.groups = {{.scheme = {.has_zeros_less_one = true}}}; },
      [](ModelConfig& c) {
        c.quantization.groups = {{.targets = {*NamePattern::Parse("Linear")}}};
      },
      [](ModelConfig& c) { c.sliding_window = 64; },
      [](ModelConfig& c) {
        c.layer_uses_sliding_window = {true, false, true, false};
      },
      [](ModelConfig& c) { c.dtype = DType::kBF16; },
  };
  const ModelConfig base = Parsed(Sizes("LlamaForCausalLM"));
  std::set<uint64_t> digests = {HashOf(base)};

  for (const auto& change : changes) {
    ModelConfig changed = base;
    change(changed);
    digests.insert(HashOf(changed));
  }

  EXPECT_EQ(digests.size(), changes.size() + 1);
}

TEST(HashOfModelConfigTest, FieldsOfYarnAndLongRopeChangeTheDigest) {
  const std::vector<std::function<void(RopeConfig&)>> changes = {
      [](RopeConfig& r) { r.scaling = RopeScalingKind::kDynamic; },
      [](RopeConfig& r) { r.scaling = RopeScalingKind::kLongRope; },
      [](RopeConfig& r) { r.scaling = RopeScalingKind::kProportional; },
      [](RopeConfig& r) { r.scaling = RopeScalingKind::kFactors; },
      [](RopeConfig& r) { r.beta_fast = 16.0; },
      [](RopeConfig& r) { r.beta_slow = 2.0; },
      [](RopeConfig& r) { r.truncate = false; },
      [](RopeConfig& r) { r.rotated_share = 0.5; },
      [](RopeConfig& r) { r.attention_factor = 1.5F; },
      [](RopeConfig& r) { r.factors = {1.0F}; },
      [](RopeConfig& r) { r.factors = {2.0F}; },
      [](RopeConfig& r) { r.long_factors = {1.0F}; },
  };
  ModelConfig base = Parsed(Sizes("LlamaForCausalLM"));
  base.rope->scaling = RopeScalingKind::kYarn;
  std::set<uint64_t> digests = {HashOf(base)};

  for (const auto& change : changes) {
    ModelConfig changed = base;
    change(*changed.rope);
    digests.insert(HashOf(changed));
  }

  EXPECT_EQ(digests.size(), changes.size() + 1);
}

TEST(HashOfModelConfigTest, IsTheSameOnEveryMachine) {
  EXPECT_EQ(HashOf(Parsed(Sizes("LlamaForCausalLM"))), 7362538569345164239U);
}

}  // namespace
}  // namespace quire
