#include "common/model/text_tower.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/model/model_config.h"

namespace quire {
namespace {

using testing::ElementsAre;

Json TextSizes(const char* model_type) {
  return {{"model_type", model_type},
          {"vocab_size", 320},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2}};
}

Json Wrapped(const char* architecture, const Json& text) {
  return {
      {"architectures", {architecture}}, {"text_config", text}, {"vision_config", Json::object()}};
}

ModelConfig Parsed(const Json& json) {
  auto config = ParseModelConfig(json.dump());
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ModelConfig();
}

std::string MessageOf(const Json& json) {
  return std::string(ParseModelConfig(json.dump()).status().message());
}

TEST(TextTowerTest, ComputesLikeTheFamilyOfItsTextConfig) {
  Json plain = TextSizes("llama");
  plain["architectures"] = {"LlamaForCausalLM"};

  ModelConfig tower = Parsed(Wrapped("LlavaForConditionalGeneration", TextSizes("llama")));

  EXPECT_TRUE(tower.is_text_tower);
  EXPECT_FALSE(Parsed(plain).is_text_tower);
  EXPECT_EQ(HashOf(tower), HashOf(Parsed(plain)));
  tower.is_text_tower = false;
  EXPECT_EQ(tower, Parsed(plain));
}

TEST(TextTowerTest, FamiliesAreFoundByTheirType) {
  const auto architecture_of = [](const char* type) {
    return Parsed(Wrapped("InternVLForConditionalGeneration", TextSizes(type))).architecture;
  };

  EXPECT_EQ(architecture_of("mistral"), "MistralForCausalLM");
  EXPECT_EQ(architecture_of("qwen2"), "Qwen2ForCausalLM");
  EXPECT_EQ(architecture_of("qwen3"), "Qwen3ForCausalLM");
  EXPECT_EQ(architecture_of("qwen3_vl_text"), "Qwen3ForCausalLM");
}

TEST(TextTowerTest, QwenVlMayBeFlatAndHasDefaultsOfItsOwn) {
  Json json = TextSizes("qwen2_vl");
  json["architectures"] = {"Qwen2VLForConditionalGeneration"};
  json["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}};

  const ModelConfig config = Parsed(json);

  EXPECT_EQ(config.architecture, "Qwen2ForCausalLM");
  EXPECT_EQ(config.rope, RopeConfig{.theta = 1e6});
  EXPECT_EQ(config.norm_eps, 1e-5);
}

TEST(TextTowerTest, FieldsOfTheOuterLevelFillThoseThatTheTextLacks) {
  Json text = TextSizes("llama");
  text["dtype"] = nullptr;
  text["eos_token_id"] = nullptr;
  Json json = Wrapped("LlavaForConditionalGeneration", text);
  json["torch_dtype"] = "float16";
  json["eos_token_id"] = {7, 8};
  json["bos_token_id"] = 5;
  json["tie_word_embeddings"] = true;

  ModelConfig config = Parsed(json);

  EXPECT_EQ(config.dtype, DType::kF16);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(7, 8));
  EXPECT_EQ(config.bos_token_id, 5);
  EXPECT_TRUE(config.tie_word_embeddings);

  json["text_config"]["dtype"] = "bfloat16";
  json["text_config"]["eos_token_id"] = 9;
  config = Parsed(json);
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(9));
}

TEST(TextTowerTest, TieOfTheTextLevelHoldsAgainstTheOuterOne) {
  Json text = TextSizes("llama");
  text["tie_word_embeddings"] = true;
  Json json = Wrapped("LlavaForConditionalGeneration", text);
  json["tie_word_embeddings"] = false;

  EXPECT_TRUE(Parsed(json).tie_word_embeddings);
}

TEST(TextTowerTest, QuantizedWeightsOfTheOuterLevelAreSeen) {
  for (const char* field : {"quantization_config", "compression_config"}) {
    Json json = Wrapped("LlavaForConditionalGeneration", TextSizes("llama"));
    json[field] = {{"quant_method", "unheard of"}};

    EXPECT_THAT(MessageOf(json), testing::HasSubstr(field));
  }
}

TEST(TextTowerTest, FaultsNameTheField) {
  constexpr char kLlava[] = "LlavaForConditionalGeneration";
  Json missing = Wrapped(kLlava, TextSizes("llama"));
  missing.erase("text_config");
  EXPECT_EQ(MessageOf(missing), "config.json: text_config: is required");

  EXPECT_EQ(MessageOf(Wrapped(kLlava, Json("llama"))),
            "config.json: text_config: must be an object");

  EXPECT_EQ(MessageOf(Wrapped(kLlava, TextSizes("gemma3_text"))),
            "config.json: text_config.model_type: must be one of llama, mistral, qwen2, "
            "qwen2_5_vl_text, qwen2_vl_text, qwen3, qwen3_vl_text (got gemma3_text)");

  Json without_size = TextSizes("llama");
  without_size.erase("hidden_size");
  EXPECT_EQ(MessageOf(Wrapped(kLlava, without_size)),
            "config.json: text_config.hidden_size: is required");

  Json bad_rope = TextSizes("llama");
  bad_rope["rope_scaling"] = {{"type", "linear"}};
  EXPECT_EQ(MessageOf(Wrapped(kLlava, bad_rope)),
            "config.json: text_config.rope_scaling.factor: is required");

  Json tie = Wrapped(kLlava, TextSizes("llama"));
  tie["tie_word_embeddings"] = 1;
  EXPECT_EQ(MessageOf(tie), "config.json: tie_word_embeddings: must be true or false (got 1)");

  Json wrapper = Wrapped("Gemma3ForConditionalGeneration", TextSizes("llama"));
  EXPECT_THAT(MessageOf(wrapper), testing::HasSubstr("(got Gemma3ForConditionalGeneration)"));
}

}  // namespace
}  // namespace quire
