#include "common/model/gguf_config.h"

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"
#include "common/json/json.h"
#include "common/model/model_path.h"
#include "tests/common/model/gguf_bytes.h"
#include "tests/common/model/gguf_dir.h"

namespace quire {
namespace {

using testing::ElementsAre;

// A file of the architecture, with all required keys, whose vocabulary is <unk>, <s>, </s> and five
// letters. Keys `left_out` are missing.
GgufBytes Model(const std::string& architecture, const std::vector<std::string>& left_out = {}) {
  GgufBytes file;
  file.Add("general.architecture", architecture);
  const auto add = [&](const std::string& name, uint32_t value) {
    file.AddUint32(architecture + "." + name, value);
  };
  add("block_count", 3);
  add("embedding_length", 64);
  add("feed_forward_length", 96);
  add("attention.head_count", 4);
  add("attention.head_count_kv", 2);
  add("context_length", 4096);
  file.Add(architecture + ".attention.layer_norm_rms_epsilon", GgufValueType::kFloat32, 0.25F);
  file.Add(architecture + ".rope.freq_base", GgufValueType::kFloat32, 65536.0F);
  file.Add("tokenizer.ggml.model", "gpt2");
  file.AddArray<std::string_view>("tokenizer.ggml.tokens",
                                  GgufValueType::kString,
                                  {"<unk>", "<s>", "<|im_end|>", "a", "b", "c", "d", "<|eom_id|>"});
  file.AddArray<int32_t>(
      "tokenizer.ggml.token_type", GgufValueType::kInt32, {2, 3, 3, 1, 1, 1, 1, 1});
  file.AddTensor("token_embd.weight", {1}, GgmlType::kF32, "1234");
  file.AddTensor("output.weight", {1}, GgmlType::kF32, "1234");
  std::erase_if(file.keys, [&](const GgufBytes::Key& key) {
    return std::find(left_out.begin(), left_out.end(), key.name) != left_out.end();
  });
  return file;
}

absl::StatusOr<ModelConfig> Load(const GgufBytes& bytes) {
  const GgufDir dir;
  dir.Write("m.gguf", bytes.File());
  return LoadModelConfig(dir.path("m.gguf"));
}

ModelConfig Loaded(const GgufBytes& bytes) {
  absl::StatusOr<ModelConfig> config = Load(bytes);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ModelConfig();
}

TEST(GgufConfigTest, AFileGivesTheConfigAndTheHashOfTheDirectoryThatItWasMadeFrom) {
  struct Pair {
    const char* gguf;
    const char* directory;
  };
  for (const Pair& pair : {Pair{"llama", "LlamaForCausalLM"},
                           Pair{"qwen2", "Qwen2ForCausalLM"},
                           Pair{"qwen3", "Qwen3ForCausalLM"}}) {
    const Json json = {{"architectures", {pair.directory}},
                       {"vocab_size", 8},
                       {"hidden_size", 64},
                       {"intermediate_size", 96},
                       {"num_hidden_layers", 3},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"head_dim", 16},
                       {"max_position_embeddings", 4096},
                       {"rms_norm_eps", 0.25},
                       {"rope_theta", 65536.0},
                       {"torch_dtype", "bfloat16"},
                       {"bos_token_id", 1},
                       {"eos_token_id", {2, 7}}};
    GgufBytes bytes = Model(pair.gguf);
    bytes.AddUint32("tokenizer.ggml.bos_token_id", 1);
    bytes.AddUint32("tokenizer.ggml.eos_token_id", 2);
    if (std::string_view(pair.gguf) == "qwen2") {
      bytes.AddTensor("blk.0.attn_q.bias", {1}, GgmlType::kF32, "1234");
    }

    const ModelConfig config = Loaded(bytes);

    const auto expected = ParseModelConfig(json.dump());
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(config, *expected) << pair.gguf;
    EXPECT_EQ(HashOf(config), HashOf(*expected)) << pair.gguf;
  }
}

TEST(GgufConfigTest, MissingKeysHaveTheFormatsDefaults) {
  const ModelConfig config =
      Loaded(Model("qwen3", {"qwen3.attention.head_count_kv", "qwen3.rope.freq_base"}));

  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope->theta, 10000.0);
  EXPECT_EQ(config.bos_token_id, std::nullopt);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 7));  // by name
}

TEST(GgufConfigTest, TensorsSayWhichProjectionsHaveABiasAndWhetherTheOutputIsTied) {
  GgufBytes bytes = Model("llama");
  bytes.tensors.back().name = "blk.0.attn_output.bias";
  bytes.AddTensor("blk.0.ffn_gate.bias", {1}, GgmlType::kF32, "1234");

  const ModelConfig config = Loaded(bytes);

  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.attention_out_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(Loaded(Model("llama")).tie_word_embeddings);
}

TEST(GgufConfigTest, ArraysOfEqualSizesAndOtherHeadDimensionsAreRead) {
  GgufBytes bytes = Model("llama", {"llama.attention.head_count", "llama.feed_forward_length"});
  bytes.AddArray<int32_t>("llama.attention.head_count", GgufValueType::kInt32, {8, 8, 8});
  bytes.AddArray<uint64_t>("llama.feed_forward_length", GgufValueType::kUint64, {32, 32, 32});
  bytes.AddUint32("llama.attention.key_length", 24);
  bytes.AddUint32("llama.attention.value_length", 24);
  bytes.AddUint32("llama.rope.dimension_count", 24);
  bytes.AddUint32("llama.expert_count", 0);

  const ModelConfig config = Loaded(bytes);

  EXPECT_EQ(config.num_heads, 8);
  EXPECT_EQ(config.intermediate_size, 32);
  EXPECT_EQ(config.head_dim, 24);
}

TEST(GgufConfigTest, AVocabularySizeWithoutATokenizerIsEnough) {
  GgufBytes bytes = Model("llama", {"tokenizer.ggml.tokens"});
  bytes.AddUint32("llama.vocab_size", 77);

  EXPECT_EQ(Loaded(bytes).vocab_size, 77);
}

TEST(GgufConfigTest, AllLayersOfALlamaFileHaveTheSlidingWindowUnlessItIsLonger) {
  GgufBytes bytes = Model("llama");
  bytes.AddUint32("llama.attention.sliding_window", 4095);
  const ModelConfig config = Loaded(bytes);
  EXPECT_EQ(config.sliding_window, 4095);
  EXPECT_EQ(config.layer_uses_sliding_window, std::vector<bool>(3, true));

  GgufBytes longer = Model("qwen2");
  longer.AddUint32("qwen2.attention.sliding_window", 4096);
  EXPECT_EQ(Loaded(longer).sliding_window, std::nullopt);
}

TEST(GgufConfigTest, LinearScalingIsReadInAllSpellings) {
  const auto scaling_of = [](const std::function<void(GgufBytes&)>& add) {
    GgufBytes bytes = Model("llama");
    add(bytes);
    const ModelConfig config = Loaded(bytes);
    const bool is_linear = config.rope->scaling == RopeScalingKind::kLinear;
    return is_linear ? config.rope->factor : 0.0;
  };

  EXPECT_EQ(scaling_of([](GgufBytes& bytes) {
              bytes.Add("llama.rope.scaling.type", "linear");
              bytes.Add("llama.rope.scaling.factor", GgufValueType::kFloat32, 4.0F);
            }),
            4.0);
  EXPECT_EQ(scaling_of([](GgufBytes& bytes) {
              bytes.Add("llama.rope.scale_linear", GgufValueType::kFloat32, 2.0F);
            }),
            2.0);
  EXPECT_EQ(scaling_of([](GgufBytes& bytes) {
              bytes.Add("llama.rope.scaling.type", "none");
              bytes.Add("llama.rope.scaling.factor", GgufValueType::kFloat32, 4.0F);
            }),
            0.0);
  EXPECT_EQ(scaling_of([](GgufBytes& bytes) {
              bytes.Add("llama.rope.scale_linear", GgufValueType::kFloat32, 0.0F);
            }),
            0.0);
}

TEST(GgufConfigTest, YarnIsReadWithTheDefaultsOfTransformers) {
  GgufBytes bytes = Model("qwen2");
  bytes.Add("qwen2.rope.scaling.type", "yarn");
  bytes.Add("qwen2.rope.scaling.factor", GgufValueType::kFloat32, 4.0F);
  bytes.AddUint32("qwen2.rope.scaling.original_context_length", 1024);

  const ModelConfig config = Loaded(bytes);

  EXPECT_EQ(config.rope->scaling, RopeScalingKind::kYarn);
  EXPECT_EQ(config.rope->factor, 4.0);
  EXPECT_EQ(config.rope->original_max_position_embeddings, 1024);
  EXPECT_EQ(config.rope->beta_fast, 32.0);
  EXPECT_NEAR(config.rope->attention_factor, 1.1386, 1e-4);  // 0.1 ln 4 + 1
}

TEST(GgufConfigTest, FactorsOfFrequenciesAreATensorOfTheFile) {
  GgufBytes bytes = Model("llama");
  std::string factors;
  for (int i = 0; i < 8; ++i) {
    factors += LittleEndian(1.0F + static_cast<float>(i));
  }
  bytes.AddTensor("rope_freqs.weight", {8}, GgmlType::kF32, factors);

  const ModelConfig config = Loaded(bytes);

  EXPECT_EQ(config.rope->scaling, RopeScalingKind::kFactors);
  EXPECT_THAT(config.rope->factors, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_NE(HashOf(config), HashOf(Loaded(Model("llama"))));
}

// Files often give the end of a message the type of plain text.
TEST(GgufConfigTest, EndsAreTheEndIdsAndTokensWithTheirNamesEachOnce) {
  GgufBytes bytes = Model("llama");
  bytes.AddUint32("tokenizer.ggml.eos_token_id", 4);
  bytes.AddUint32("tokenizer.ggml.eot_token_id", 2);
  bytes.AddUint32("tokenizer.ggml.eom_token_id", 4);

  EXPECT_THAT(Loaded(bytes).eos_token_ids, ElementsAre(4, 2, 7));
  EXPECT_THAT(Loaded(Model("llama")).eos_token_ids, ElementsAre(2, 7));
}

TEST(GgufConfigTest, SentencePieceVocabulariesHaveDefaultIds) {
  GgufBytes bytes = Model("llama", {"tokenizer.ggml.model", "tokenizer.ggml.token_type"});
  bytes.Add("tokenizer.ggml.model", "llama");

  const ModelConfig config = Loaded(bytes);

  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 7));
}

TEST(GgufConfigTest, SamplingKeysBecomeDefaults) {
  GgufBytes bytes = Model("llama");
  bytes.Add("general.sampling.temp", GgufValueType::kFloat32, 0.5F);
  bytes.Add("general.sampling.top_k", GgufValueType::kInt32, int32_t{20});
  bytes.Add("general.sampling.top_p", GgufValueType::kFloat32, 0.75F);
  const GgufDir dir;
  dir.Write("m.gguf", bytes.File());

  const auto defaults = LoadGenerationDefaults(dir.path("m.gguf"));

  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->temperature, 0.5F);
  EXPECT_EQ(defaults->top_k, 20);
  EXPECT_EQ(defaults->top_p, 0.75F);
  EXPECT_EQ(defaults->min_p, std::nullopt);
  EXPECT_EQ(defaults->repetition_penalty, std::nullopt);
}

TEST(ModelPathTest, AGgufPathIsAFileAndServesUnderItsNameWithoutAPartsNumber) {
  const GgufDir dir;
  std::filesystem::create_directory(dir.path("folder.gguf"));

  EXPECT_TRUE(IsGgufPath(dir.path("missing.gguf")));
  EXPECT_FALSE(IsGgufPath(dir.path("folder.gguf")));
  EXPECT_FALSE(IsGgufPath("/models/llama"));
  EXPECT_EQ(ModelNameOf("/models/Coder.Q4_K_M.gguf"), "Coder.Q4_K_M");
  EXPECT_EQ(ModelNameOf("big-00001-of-00003.gguf"), "big");
  EXPECT_EQ(ModelNameOf(dir.path("folder.gguf") + "/"), "folder.gguf");
  EXPECT_EQ(ModelNameOf("/models/llama//"), "llama");
  EXPECT_EQ(ModelNameOf(".."), "model");
  EXPECT_EQ(ModelNameOf(".gguf"), "model");
}

struct Fault {
  const char* name;
  std::function<void(GgufBytes&)> add;
  std::string message;  // after "m.gguf: "
  std::vector<std::string> left_out = {};
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::function<void(GgufBytes&)> Number(const char* key, uint32_t value) {
  return [=](GgufBytes& bytes) { bytes.AddUint32(key, value); };
}

std::function<void(GgufBytes&)> Float(const char* key, float value) {
  return [=](GgufBytes& bytes) { bytes.Add(key, GgufValueType::kFloat32, value); };
}

std::function<void(GgufBytes&)> Tensor(const char* name) {
  return [=](GgufBytes& bytes) { bytes.AddTensor(name, {1}, GgmlType::kF32, "1234"); };
}

const std::vector<Fault>& Faults() {
  static const std::vector<Fault> faults = {
      {"NoArchitecture",
       [](GgufBytes&) {},
       "general.architecture: is missing",
       {"general.architecture"}},
      {"UnknownArchitecture",
       [](GgufBytes& bytes) { bytes.Add("general.architecture", "gemma3"); },
       "general.architecture: must be one of llama, qwen2, qwen3 (got gemma3)",
       {"general.architecture"}},
      {"NoLayers", [](GgufBytes&) {}, "llama.block_count: is missing", {"llama.block_count"}},
      {"ZeroLayers",
       Number("llama.block_count", 0),
       "llama.block_count: must be in [1, 1024] (got 0)",
       {"llama.block_count"}},
      {"HugeLayers",
       [](GgufBytes& bytes) {
         bytes.Add("llama.block_count", GgufValueType::kUint64, uint64_t{1} << 60);
       },
       "llama.block_count: must be in [0, 2147483647] (got 1152921504606846976)",
       {"llama.block_count"}},
      {"HugeWidth",
       Number("llama.embedding_length", 1 << 30),
       "llama.embedding_length: must be in [1, 262144] (got 1073741824)",
       {"llama.embedding_length"}},
      {"ZeroHeads",
       Number("llama.attention.head_count", 0),
       "llama.attention.head_count: must be in [1, 4096] (got 0)",
       {"llama.attention.head_count"}},
      {"HeadsThatDoNotDivide",
       Number("llama.attention.head_count_kv", 3),
       "llama.attention.head_count_kv: must divide num_attention_heads (got 3, "
       "num_attention_heads 4)",
       {"llama.attention.head_count_kv"}},
      {"LayersOfOtherSizes",
       [](GgufBytes& bytes) {
         bytes.AddArray<int32_t>("llama.attention.head_count_kv", GgufValueType::kInt32, {2, 2, 1});
       },
       "llama.attention.head_count_kv: layers of different sizes are not supported",
       {"llama.attention.head_count_kv"}},
      {"NoSizesOfLayers",
       [](GgufBytes& bytes) {
         bytes.AddArray<int32_t>("llama.feed_forward_length", GgufValueType::kInt32, {});
       },
       "llama.feed_forward_length: layers of different sizes are not supported",
       {"llama.feed_forward_length"}},
      {"WidthOfAnotherType",
       [](GgufBytes& bytes) { bytes.Add("llama.embedding_length", "64"); },
       "llama.embedding_length: must be an integer (got string)",
       {"llama.embedding_length"}},
      {"OddHeadDimension",
       Number("llama.attention.key_length", 15),
       "llama.attention.key_length: must be even and at most 1024 (got 15)",
       {"llama.attention.value_length", "llama.rope.dimension_count"}},
      {"OtherValueDimension",
       Number("llama.attention.value_length", 32),
       "llama.attention.value_length: must be equal to attention.key_length (got 32)"},
      {"PartialRope",
       Number("llama.rope.dimension_count", 8),
       "llama.rope.dimension_count: must be equal to attention.key_length (got 8)"},
      {"Experts",
       Number("llama.expert_count", 8),
       "llama.expert_count: mixtures of experts are not supported (got 8)"},
      {"NoEpsilon",
       [](GgufBytes&) {},
       "llama.attention.layer_norm_rms_epsilon: is missing",
       {"llama.attention.layer_norm_rms_epsilon"}},
      {"NotANumber",
       Float("llama.rope.freq_base", __builtin_nanf("")),
       "llama.rope.freq_base: must be in [1, 1e+12] (got nan)",
       {"llama.rope.freq_base"}},
      {"UnknownScaling",
       [](GgufBytes& bytes) { bytes.Add("llama.rope.scaling.type", "longrope"); },
       "llama.rope.scaling.type: must be one of none, linear, yarn (got longrope)"},
      {"SmallFactor",
       Float("llama.rope.scaling.factor", 0.5F),
       "llama.rope.scaling.factor: must be at least 1"},
      {"YarnOfAnotherKind",
       [](GgufBytes& bytes) {
         bytes.Add("llama.rope.scaling.type", "yarn");
         bytes.Add("llama.rope.scaling.factor", GgufValueType::kFloat32, 2.0F);
         bytes.Add("llama.rope.scaling.yarn_attn_factor", GgufValueType::kFloat32, 0.5F);
       },
       "llama.rope.scaling.yarn_attn_factor: must be 1"},
      {"FewFactors",
       Tensor("rope_freqs.weight"),
       "rope_freqs.weight: must be F32 of the shape [8]"},
      {"FactorsOfZero",
       [](GgufBytes& bytes) {
         bytes.AddTensor("rope_freqs.weight", {8}, GgmlType::kF32, std::string(32, '\0'));
       },
       "rope_freqs.weight: factors must be in [1e-06, 1e+06]"},
      {"FactorsBesideAScaling",
       [](GgufBytes& bytes) {
         bytes.Add("llama.rope.scaling.factor", GgufValueType::kFloat32, 2.0F);
         bytes.AddTensor("rope_freqs.weight", {8}, GgmlType::kF32, std::string(32, '1'));
       },
       "rope_freqs.weight: must not be there beside another RoPE scaling"},
      {"LongRopeFactors",
       Tensor("rope_factors_short.weight"),
       "rope_factors_short.weight: longrope is not supported for this architecture"},
      {"NoVocabulary",
       [](GgufBytes&) {},
       "llama.vocab_size: is missing",
       {"tokenizer.ggml.tokens"}},
      {"EmptyVocabulary",
       [](GgufBytes& bytes) {
         bytes.AddArray<std::string_view>("tokenizer.ggml.tokens", GgufValueType::kString, {});
       },
       "llama.vocab_size: must be in [1, 4194304] (got 0)",
       {"tokenizer.ggml.tokens"}},
      {"EndOutsideTheVocabulary",
       Number("tokenizer.ggml.eos_token_id", 8),
       "tokenizer.ggml.eos_token_id: must be in [0, 7] (got 8)"},
      {"TypesOfAnotherVocabulary",
       [](GgufBytes& bytes) {
         bytes.AddArray<int32_t>("tokenizer.ggml.token_type", GgufValueType::kInt32, {1, 1});
       },
       "tokenizer.ggml.token_type: must have an element for each token (got 2 for 8)",
       {"tokenizer.ggml.token_type"}},
      {"ShortContext",
       Number("llama.context_length", 1),
       "llama.context_length: must be in [2, 16777216] (got 1)",
       {"llama.context_length"}},
  };
  return faults;
}

class FaultyConfigTest : public testing::TestWithParam<Fault> {};

TEST_P(FaultyConfigTest, IsRefusedWithTheNameOfTheKey) {
  const Fault& fault = GetParam();
  GgufBytes bytes = Model("llama", fault.left_out);
  fault.add(bytes);

  const auto config = Load(bytes);

  ASSERT_FALSE(config.ok());
  const std::string message(config.status().message());
  EXPECT_THAT(message,
              testing::AnyOf("load: m.gguf: " + fault.message, "m.gguf: " + fault.message));
  EXPECT_THAT(std::string(ReasonOf(config.status())), testing::AnyOf("MODEL_FILE", "CONFIG"));
}

INSTANTIATE_TEST_SUITE_P(Faults,
                         FaultyConfigTest,
                         testing::ValuesIn(Faults()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(GgufConfigTest, AWindowOfSomeLayersIsRefused) {
  GgufBytes bytes = Model("qwen2");
  bytes.AddUint32("qwen2.attention.sliding_window", 128);

  EXPECT_EQ(Load(bytes).status().message(),
            "load: m.gguf: qwen2.attention.sliding_window: is not supported for this architecture");
}

TEST(GgufConfigTest, AMissingFileIsNamed) {
  const auto config = LoadModelConfig("/nowhere/m.gguf");

  EXPECT_TRUE(absl::IsNotFound(config.status())) << config.status();
  EXPECT_THAT(std::string(config.status().message()), testing::HasSubstr("m.gguf"));
}

}  // namespace
}  // namespace quire
