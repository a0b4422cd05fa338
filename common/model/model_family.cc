#include "common/model/model_family.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "common/model/rope_config.h"
#include "common/model/text_tower.h"

namespace quire {
namespace {

// The maxima of the first six ranges are far above any published model: the 405B Llama has
// vocabulary 128256, hidden 16384, intermediate 53248, 126 layers and 128 heads. No product of
// three of these maxima overflows 64 bits.
constexpr IntRange kVocabRange = {.min = 1, .max = 1 << 22};
constexpr IntRange kHiddenRange = {.min = 1, .max = 1 << 18};
constexpr IntRange kIntermediateRange = {.min = 1, .max = 1 << 20};
constexpr IntRange kLayersRange = {.min = 1, .max = 1024};
constexpr IntRange kHeadsRange = {.min = 1, .max = 4096};
constexpr IntRange kHeadDimRange = {.min = 1, .max = 1024};
// Range of max_position_embeddings: the minimum is one prompt token and one output token.
constexpr IntRange kLengthsRange = {.min = 2, .max = kMaxPositionsLimit};
// Range of a sliding window.
constexpr IntRange kPositionsRange = {.min = 1, .max = kMaxPositionsLimit};

// Family describes a model family with RoPE: defaults for fields that config.json lacks, and flags
// for optional parts of the layers. The defaults are those of Hugging Face transformers.
struct Family {
  std::string_view architecture;
  int32_t max_position_embeddings;
  std::optional<int32_t> num_kv_heads;  // nullopt: the default is num_attention_heads
  std::optional<int32_t> head_dim;      // nullopt: the default is hidden_size / num_attention_heads
  std::optional<TokenId> bos_token_id;
  std::optional<TokenId> eos_token_id;
  bool reads_attention_bias;
  bool reads_mlp_bias;
  bool always_qkv_bias;
  bool qk_norm;
};

constexpr std::array<Family, 4> kFamilies = {{
    {.architecture = "LlamaForCausalLM",
     .max_position_embeddings = 2048,
     .num_kv_heads = std::nullopt,
     .head_dim = std::nullopt,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .reads_attention_bias = true,
     .reads_mlp_bias = true,
     .always_qkv_bias = false,
     .qk_norm = false},
    {.architecture = "MistralForCausalLM",
     .max_position_embeddings = 131072,
     .num_kv_heads = 8,
     .head_dim = std::nullopt,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .reads_attention_bias = false,
     .reads_mlp_bias = false,
     .always_qkv_bias = false,
     .qk_norm = false},
    {.architecture = "Qwen2ForCausalLM",
     .max_position_embeddings = 32768,
     .num_kv_heads = 32,
     .head_dim = std::nullopt,
     .bos_token_id = std::nullopt,
     .eos_token_id = std::nullopt,
     .reads_attention_bias = false,
     .reads_mlp_bias = false,
     .always_qkv_bias = true,
     .qk_norm = false},
    {.architecture = "Qwen3ForCausalLM",
     .max_position_embeddings = 32768,
     .num_kv_heads = 32,
     .head_dim = 128,
     .bos_token_id = std::nullopt,
     .eos_token_id = std::nullopt,
     .reads_attention_bias = true,
     .reads_mlp_bias = false,
     .always_qkv_bias = false,
     .qk_norm = true},
}};
constexpr std::string_view kOpt = "OPTForCausalLM";
constexpr std::string_view kBloom = "BloomForCausalLM";

ActivationKind ParseActivation(ConfigReader& reader,
                               std::string_view field,
                               std::string_view fallback) {
  const std::string name = reader.OptionalString(field).value_or(std::string(fallback));
  if (name == "silu" || name == "swish") {
    return ActivationKind::kSilu;
  }
  if (name == "relu") {
    return ActivationKind::kRelu;
  }
  if (name == "gelu") {
    return ActivationKind::kGelu;
  }
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") {
    return ActivationKind::kGeluTanh;
  }
  reader.Fail(field, "must be one of silu, relu, gelu, gelu_pytorch_tanh");
  return ActivationKind::kSilu;
}

DType ParseDType(ConfigReader& reader) {
  std::string_view field = reader.Find("dtype") != nullptr ? "dtype" : "torch_dtype";
  std::optional<std::string> name = reader.OptionalString(field);
  if (!name.has_value()) {
    return DType::kF32;
  }
  std::optional<DType> dtype = DTypeFromName(*name);
  if (!dtype.has_value()) {
    reader.Fail(field, "must be one of float32, float16, bfloat16");
  }
  return dtype.value_or(DType::kF32);
}

// Parses the window fields of Qwen2 and Qwen3. layer_types says for each layer whether its
// attention is full or sliding. Without layer_types, layers from max_window_layers on are sliding.
void ParseQwenSlidingWindow(ConfigReader& reader, ModelConfig& config) {
  const auto num_layers = static_cast<size_t>(config.num_layers);
  std::optional<int32_t> window;
  if (reader.Bool("use_sliding_window", false) && !reader.IsNull("sliding_window")) {
    window = reader.Int("sliding_window", kPositionsRange, 4096);
  }
  const int32_t full_layers = reader.Int("max_window_layers", {0, kLayersRange.max}, 28);
  std::vector<bool> sliding(num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    sliding[i] = window.has_value() && static_cast<int32_t>(i) >= full_layers;
  }
  if (const Json* types = reader.Find("layer_types"); types != nullptr) {
    if (!types->is_array() || types->size() != num_layers) {
      reader.Fail("layer_types", "must be a list with one entry per layer");
      return;
    }
    for (size_t i = 0; i < num_layers; ++i) {
      const Json& type = (*types)[i];
      sliding[i] = type == "sliding_attention";
      if (!sliding[i] && type != "full_attention") {
        reader.Fail("layer_types", "entries must be full_attention or sliding_attention");
      }
    }
  }
  if (std::find(sliding.begin(), sliding.end(), true) == sliding.end()) {
    return;
  }
  if (!window.has_value()) {
    reader.Fail("layer_types", "names sliding_attention, but the model has no sliding window");
  }
  config.sliding_window = window;
  config.layer_uses_sliding_window = std::move(sliding);
}

void ParseSlidingWindow(ConfigReader& reader, ModelConfig& config) {
  if (config.architecture == "MistralForCausalLM") {
    if (!reader.IsNull("sliding_window")) {
      config.sliding_window = reader.Int("sliding_window", kPositionsRange, 4096);
      config.layer_uses_sliding_window.assign(static_cast<size_t>(config.num_layers), true);
    }
  } else if (config.architecture != "LlamaForCausalLM") {
    ParseQwenSlidingWindow(reader, config);
  }
}

// Field names in config.json for the sizes that every family has.
struct SizeFields {
  std::string_view hidden = "hidden_size";
  std::string_view layers = "num_hidden_layers";
  std::string_view heads = "num_attention_heads";
};

// Returns hidden_size / num_heads, the default of head_dim. Records a fault if this is no integer.
int32_t HeadDim(ConfigReader& reader, const SizeFields& fields, const ModelConfig& config) {
  if (config.hidden_size % config.num_heads != 0) {
    reader.Fail(fields.heads,
                absl::StrCat("must divide ",
                             ToAbsl(fields.hidden),
                             " (got ",
                             config.num_heads,
                             ", ",
                             ToAbsl(fields.hidden),
                             " ",
                             config.hidden_size,
                             ")"));
  }
  return std::max(1, config.hidden_size / config.num_heads);
}

void ParseTokenIds(ConfigReader& reader,
                   std::optional<TokenId> bos,
                   std::optional<TokenId> eos,
                   ModelConfig& config) {
  // Drops a default id of the family that is outside this model's vocabulary.
  bos = bos < config.vocab_size ? bos : std::nullopt;
  eos = eos < config.vocab_size ? eos : std::nullopt;
  config.bos_token_id = reader.Has("bos_token_id")
                            ? reader.OptionalInt("bos_token_id", {0, config.vocab_size - 1})
                            : bos;
  if (reader.Has("eos_token_id")) {
    config.eos_token_ids = reader.TokenIds("eos_token_id", config.vocab_size);
  } else if (eos.has_value()) {
    config.eos_token_ids = {*eos};
  }
}

void ParseCommon(ConfigReader& reader, const SizeFields& fields, ModelConfig& config) {
  config.vocab_size = reader.RequiredInt("vocab_size", kVocabRange);
  config.hidden_size = reader.RequiredInt(fields.hidden, kHiddenRange);
  config.num_layers = reader.RequiredInt(fields.layers, kLayersRange);
  config.num_heads = reader.RequiredInt(fields.heads, kHeadsRange);
  config.dtype = ParseDType(reader);
}

absl::Status ParseRopeFamily(ConfigReader& reader, const Family& family, ModelConfig& config) {
  ParseCommon(reader, {}, config);
  config.intermediate_size = reader.RequiredInt("intermediate_size", kIntermediateRange);
  config.max_position_embeddings =
      reader.Int("max_position_embeddings", kLengthsRange, family.max_position_embeddings);
  config.norm = NormKind::kRmsNorm;
  config.norm_eps = reader.Number("rms_norm_eps", 0.0, 1.0, 1e-6);
  config.activation = ParseActivation(reader, "hidden_act", "silu");
  config.gated_mlp = true;
  config.tie_word_embeddings = reader.Bool("tie_word_embeddings", false);
  config.embedding_dim = config.hidden_size;
  config.qk_norm = family.qk_norm;
  const bool attention_bias = family.reads_attention_bias && reader.Bool("attention_bias", false);
  config.qkv_bias = family.always_qkv_bias || attention_bias;
  config.attention_out_bias = attention_bias;
  config.mlp_bias = family.reads_mlp_bias && reader.Bool("mlp_bias", false);
  QUIRE_RETURN_IF_ERROR(reader.status());

  // If num_key_value_heads is missing, the family's default applies. If the field is null, each
  // query head has its own KV head.
  const int32_t kv_heads = reader.Has("num_key_value_heads")
                               ? config.num_heads
                               : family.num_kv_heads.value_or(config.num_heads);
  config.num_kv_heads = reader.Int("num_key_value_heads", kHeadsRange, kv_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.Fail("num_key_value_heads",
                absl::StrCat("must divide num_attention_heads (got ",
                             config.num_kv_heads,
                             ", num_attention_heads ",
                             config.num_heads,
                             ")"));
  }
  std::optional<int32_t> head_dim = reader.OptionalInt("head_dim", kHeadDimRange);
  if (!head_dim.has_value()) {
    head_dim = family.head_dim;
  }
  config.head_dim = head_dim.has_value() ? *head_dim : HeadDim(reader, {}, config);
  if (config.head_dim % 2 != 0 || config.head_dim > kHeadDimRange.max) {
    reader.Fail(
        "head_dim",
        absl::StrCat(
            "must be even and at most ", kHeadDimRange.max, " (got ", config.head_dim, ")"));
  }
  QUIRE_ASSIGN_OR_RETURN(config.rope,
                         ParseRope(reader, config.max_position_embeddings, config.head_dim));
  config.max_position_embeddings = ServablePositions(*config.rope, config.max_position_embeddings);
  ParseSlidingWindow(reader, config);
  ParseTokenIds(reader, family.bos_token_id, family.eos_token_id, config);
  return reader.status();
}

// Sets the sizes of multi-head attention, which has one KV head per query head.
void ParseMultiHead(ConfigReader& reader, const SizeFields& fields, ModelConfig& config) {
  config.num_kv_heads = config.num_heads;
  config.head_dim = HeadDim(reader, fields, config);
  if (config.head_dim > kHeadDimRange.max) {
    reader.Fail(fields.heads,
                absl::StrCat("gives a head_dim above the limit (got ",
                             config.head_dim,
                             ", limit ",
                             kHeadDimRange.max,
                             ")"));
  }
}

absl::Status ParseOpt(ConfigReader& reader, ModelConfig& config) {
  ParseCommon(reader, {}, config);
  config.intermediate_size = reader.RequiredInt("ffn_dim", kIntermediateRange);
  config.max_position_embeddings = reader.Int("max_position_embeddings", kLengthsRange, 2048);
  config.norm = NormKind::kLayerNorm;
  config.norm_eps = 1e-5;  // default of torch.nn.LayerNorm, since OPT's config.json has no epsilon
  config.activation = ParseActivation(reader, "activation_function", "relu");
  config.gated_mlp = false;
  const bool bias = reader.Bool("enable_bias", true);
  config.qkv_bias = bias;
  config.attention_out_bias = bias;
  config.mlp_bias = bias;
  config.tie_word_embeddings = reader.Bool("tie_word_embeddings", true);
  config.learned_position_offset = 2;
  QUIRE_RETURN_IF_ERROR(reader.status());

  ParseMultiHead(reader, {}, config);
  config.embedding_dim = reader.Int("word_embed_proj_dim", kHiddenRange, config.hidden_size);
  config.norm_before = reader.Bool("do_layer_norm_before", true);
  config.final_norm = config.norm_before && !reader.Bool("_remove_final_layer_norm", false);
  config.norm_affine = reader.Bool("layer_norm_elementwise_affine", true);
  ParseTokenIds(reader, 2, 2, config);
  return reader.status();
}

// Returns the name under which config.json has a field: `name`, which transformers writes, or
// `other`, which some published files have. Returns `name` if config.json has neither.
std::string_view FieldOf(ConfigReader& reader, std::string_view name, std::string_view other) {
  const Json* const value = reader.Find(name);
  const Json* const other_value = reader.Find(other);
  if (value != nullptr && other_value != nullptr && *value != *other_value) {
    reader.Fail(other, absl::StrCat("must be equal to ", ToAbsl(name), " if both are given"));
  }
  return value == nullptr && other_value != nullptr ? other : name;
}

absl::Status ParseBloom(ConfigReader& reader, ModelConfig& config) {
  const SizeFields fields = {.hidden = FieldOf(reader, "hidden_size", "n_embed"),
                             .layers = FieldOf(reader, "n_layer", "num_hidden_layers"),
                             .heads = FieldOf(reader, "n_head", "num_attention_heads")};
  ParseCommon(reader, fields, config);
  config.intermediate_size = 4 * config.hidden_size;
  // ALiBi has no maximum position; the length of the training texts (seq_length) serves as one.
  config.max_position_embeddings = reader.Int("seq_length", kLengthsRange, 2048);
  config.norm = NormKind::kLayerNorm;
  config.norm_eps = reader.Number("layer_norm_epsilon", 0.0, 1.0, 1e-5);
  config.activation = ActivationKind::kGeluTanh;
  config.gated_mlp = false;
  config.qkv_bias = true;
  config.attention_out_bias = true;
  config.mlp_bias = true;
  config.tie_word_embeddings = reader.Bool("tie_word_embeddings", true);
  config.alibi = true;
  config.embedding_dim = config.hidden_size;
  config.embedding_norm = true;
  config.residual_after_norm = reader.Bool("apply_residual_connection_post_layernorm", false);
  QUIRE_RETURN_IF_ERROR(reader.status());

  ParseMultiHead(reader, fields, config);
  ParseTokenIds(reader, 1, 2, config);
  return reader.status();
}

std::string SupportedArchitectures() {
  std::string names;
  for (const Family& family : kFamilies) {
    absl::StrAppend(&names, ToAbsl(family.architecture), ", ");
  }
  absl::StrAppend(&names, ToAbsl(kOpt), ", ", ToAbsl(kBloom));
  for (std::string_view wrapper : TextTowerArchitectures()) {
    absl::StrAppend(&names, ", ", ToAbsl(wrapper));
  }
  return names;
}

}  // namespace

absl::Status ParseModelFamily(ConfigReader& reader, ModelConfig& config) {
  if (config.architecture == kOpt) {
    return ParseOpt(reader, config);
  }
  if (config.architecture == kBloom) {
    return ParseBloom(reader, config);
  }
  for (const Family& family : kFamilies) {
    if (config.architecture == family.architecture) {
      return ParseRopeFamily(reader, family, config);
    }
  }
  reader.Fail("architectures",
              absl::StrCat("must be one of ",
                           SupportedArchitectures(),
                           " (got ",
                           Printable(config.architecture, /*max_bytes=*/64),
                           ")"));
  return reader.status();
}

}  // namespace quire
