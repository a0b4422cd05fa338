#include "common/model/gguf_config.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "common/model/config_reader.h"
#include "common/model/gguf_special_tokens.h"
#include "common/model/load_error.h"
#include "common/model/model_family.h"

namespace quire {
namespace {

constexpr std::string_view kArchitectureKey = "general.architecture";
constexpr int64_t kMaxInteger = std::numeric_limits<int32_t>::max();
// Range of all RoPE factors: far wider than in published models.
constexpr double kMinRopeFactor = 1e-6;
constexpr double kMaxRopeFactor = 1e6;

struct GgufArchitecture {
  std::string_view name;
  std::string_view architecture;  // name of the class in Hugging Face transformers
};

constexpr std::array<GgufArchitecture, 3> kArchitectures = {{
    {"llama", "LlamaForCausalLM"},  // also Mistral
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
}};

// Translates GGUF metadata into fields of config.json, which ParseModelFamily then checks. Records
// the GGUF key of each field, so that error messages can name the key.
class Translation {
 public:
  Translation(const GgufFile& file, const GgufArchitecture& architecture)
      : metadata_(file.metadata()), file_(file.name()), prefix_(architecture.name) {
    json_["architectures"] = Json::array({std::string(architecture.architecture)});
  }

  // Returns the full name of one of the architecture's keys: "llama.block_count".
  std::string Key(std::string_view name) const {
    return absl::StrCat(ToAbsl(prefix_), ".", ToAbsl(name));
  }

  // Reads an integer, or an array with one integer for each layer. All integers of the array must
  // be equal. Returns kNotFound if the key is missing.
  absl::StatusOr<int64_t> Integer(std::string_view name) const {
    const std::string key = Key(name);
    const GgufValue* const value = metadata_.Find(key);
    if (value == nullptr || !value->is_array()) {
      return metadata_.GetInteger(key, 0, kMaxInteger);
    }
    QUIRE_ASSIGN_OR_RETURN(const std::vector<int64_t> values,
                           metadata_.GetIntegers(key, 0, kMaxInteger));
    const bool is_equal =
        !values.empty() && std::all_of(values.begin(), values.end(), [&](int64_t each) {
          return each == values.front();
        });
    if (!is_equal) {
      return metadata_.KeyError(key, "layers of different sizes are not supported");
    }
    return values.front();
  }

  template <typename T>
  void Set(const std::string& field, std::string_view name, T value) {
    json_[field] = value;
    names_[field] = Key(name);
  }
  absl::Status SetInteger(const std::string& field, std::string_view name) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t value, Integer(name));
    Set(field, name, value);
    return absl::OkStatus();
  }
  absl::Status SetInteger(const std::string& field, std::string_view name, int64_t fallback) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t value, IfMissing(Integer(name), fallback));
    Set(field, name, value);
    return absl::OkStatus();
  }

  // Returns an error if the key has a value other than `expected`. Accepts a missing key.
  absl::Status CheckIs(std::string_view name, int64_t expected, std::string_view rule) const {
    QUIRE_ASSIGN_OR_RETURN(const int64_t value, IfMissing(Integer(name), expected));
    return value == expected
               ? absl::OkStatus()
               : metadata_.KeyError(Key(name), absl::StrCat(ToAbsl(rule), " (got ", value, ")"));
  }

  absl::StatusOr<ModelConfig> Parse() const {
    ConfigReader reader(json_, PrintableName(file_), "", names_);
    ModelConfig config;
    config.architecture = json_["architectures"].front().get<std::string>();
    QUIRE_RETURN_IF_ERROR(ParseModelFamily(reader, config));
    return config;
  }

  const GgufMetadata& metadata() const { return metadata_; }
  Json& json() { return json_; }

 private:
  const GgufMetadata& metadata_;
  const std::string& file_;
  std::string_view prefix_;
  Json json_ = Json::object();
  ConfigReader::FieldNames names_;  // GGUF key of each field
};

absl::StatusOr<GgufArchitecture> ReadArchitecture(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view name, metadata.GetString(kArchitectureKey));
  std::string known;
  for (const GgufArchitecture& each : kArchitectures) {
    if (each.name == name) {
      return each;
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", ToAbsl(each.name));
  }
  return metadata.KeyError(
      kArchitectureKey,
      absl::StrCat("must be one of ", known, " (got ", Printable(name, /*max_bytes=*/64), ")"));
}

absl::Status SetSizes(Translation& translation) {
  const GgufMetadata& metadata = translation.metadata();
  const GgufValue* const tokens = metadata.Find(kGgufTokensKey);
  if (tokens != nullptr && tokens->is_array()) {
    translation.Set("vocab_size", "vocab_size", tokens->num_elements);
  } else {
    QUIRE_RETURN_IF_ERROR(translation.SetInteger("vocab_size", "vocab_size"));
  }
  struct Size {
    const char* field;
    std::string_view name;
  };
  for (const Size& size : {Size{"hidden_size", "embedding_length"},
                           Size{"num_hidden_layers", "block_count"},
                           Size{"intermediate_size", "feed_forward_length"},
                           Size{"num_attention_heads", "attention.head_count"},
                           Size{"max_position_embeddings", "context_length"}}) {
    QUIRE_RETURN_IF_ERROR(translation.SetInteger(size.field, size.name));
  }
  QUIRE_RETURN_IF_ERROR(
      translation.SetInteger("num_key_value_heads",
                             "attention.head_count_kv",
                             translation.json()["num_attention_heads"].get<int64_t>()));
  // If key_length is missing, the GGUF format sets it to hidden / heads, also for Qwen3.
  const int64_t heads = translation.json()["num_attention_heads"].get<int64_t>();
  const int64_t hidden = translation.json()["hidden_size"].get<int64_t>();
  QUIRE_RETURN_IF_ERROR(translation.SetInteger(
      "head_dim", "attention.key_length", heads > 0 ? hidden / heads : int64_t{0}));
  QUIRE_ASSIGN_OR_RETURN(
      const double epsilon,
      metadata.GetFloat(translation.Key("attention.layer_norm_rms_epsilon"), 0, 1));
  translation.Set("rms_norm_eps", "attention.layer_norm_rms_epsilon", epsilon);
  return absl::OkStatus();
}

// Refuses models that ModelConfig cannot describe.
absl::Status CheckSupported(const Translation& translation, int64_t head_dim) {
  QUIRE_RETURN_IF_ERROR(
      translation.CheckIs("expert_count", 0, "mixtures of experts are not supported"));
  QUIRE_RETURN_IF_ERROR(translation.CheckIs(
      "attention.value_length", head_dim, "must be equal to attention.key_length"));
  return translation.CheckIs(
      "rope.dimension_count", head_dim, "must be equal to attention.key_length");
}

absl::StatusOr<double> FloatOr(const Translation& translation,
                               std::string_view name,
                               double min,
                               double fallback) {
  return IfMissing(translation.metadata().GetFloat(translation.Key(name), min, kMaxRopeFactor),
                   fallback);
}

// Sets rope_scaling to yarn.
absl::Status SetYarn(Translation& translation, double factor) {
  // Published files set each of these factors to 1 or leave it out, so no other value is supported.
  for (const char* name : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"}) {
    const std::string full_name = absl::StrCat("rope.scaling.", name);
    QUIRE_ASSIGN_OR_RETURN(const double value, FloatOr(translation, full_name, 0.0, 1.0));
    if (value != 1.0) {
      return translation.metadata().KeyError(translation.Key(full_name), "must be 1");
    }
  }
  Json scaling = {{"rope_type", "yarn"}, {"factor", factor}};
  QUIRE_ASSIGN_OR_RETURN(scaling["beta_fast"],
                         FloatOr(translation, "rope.scaling.yarn_beta_fast", kMinRopeFactor, 32.0));
  QUIRE_ASSIGN_OR_RETURN(scaling["beta_slow"],
                         FloatOr(translation, "rope.scaling.yarn_beta_slow", kMinRopeFactor, 1.0));
  QUIRE_ASSIGN_OR_RETURN(scaling["original_max_position_embeddings"],
                         IfMissing(translation.Integer("rope.scaling.original_context_length"),
                                   translation.json()["max_position_embeddings"].get<int64_t>()));
  translation.json()["rope_scaling"] = std::move(scaling);
  return absl::OkStatus();
}

// Sets rope_theta and rope_scaling.
absl::Status SetRope(Translation& translation) {
  const GgufMetadata& metadata = translation.metadata();
  QUIRE_ASSIGN_OR_RETURN(
      const double theta,
      IfMissing(metadata.GetFloat(translation.Key("rope.freq_base"), 1.0, 1e12), 10000.0));
  translation.Set("rope_theta", "rope.freq_base", theta);
  // Old files have scale_linear in place of scaling.factor. A factor of 0 or 1 means no scaling.
  QUIRE_ASSIGN_OR_RETURN(const double old_factor,
                         FloatOr(translation, "rope.scale_linear", 0.0, 1.0));
  QUIRE_ASSIGN_OR_RETURN(const double factor,
                         FloatOr(translation, "rope.scaling.factor", 0.0, old_factor));
  const std::string type_key = translation.Key("rope.scaling.type");
  QUIRE_ASSIGN_OR_RETURN(const std::string_view type,
                         IfMissing(metadata.GetString(type_key), "linear"));
  if (type != "none" && type != "linear" && type != "yarn") {
    return metadata.KeyError(
        type_key,
        absl::StrCat(
            "must be one of none, linear, yarn (got ", Printable(type, /*max_bytes=*/64), ")"));
  }
  if (type == "none" || factor == 0.0 || factor == 1.0) {
    return absl::OkStatus();
  }
  if (factor < 1.0) {
    return metadata.KeyError(translation.Key("rope.scaling.factor"), "must be at least 1");
  }
  if (type == "yarn") {
    return SetYarn(translation, factor);
  }
  translation.json()["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  return absl::OkStatus();
}

// Reads the divisors of the RoPE frequencies from the tensor rope_freqs.weight, if the file has it.
// Files of Llama 3 hold these divisors in place of the scaling's parameters.
absl::Status SetRopeFactors(const GgufFile& file, ModelConfig& config) {
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    if (file.Find(name) != nullptr) {
      return TensorError(file.name(), name, "longrope is not supported for this architecture");
    }
  }
  const GgufTensor* const tensor = file.Find(kGgufRopeFactors);
  if (tensor == nullptr) {
    return absl::OkStatus();
  }
  const std::vector<int64_t> shape = {config.head_dim / 2};
  if (tensor->type != GgmlType::kF32 || tensor->shape != shape) {
    return TensorError(
        file.name(), tensor->name, absl::StrCat("must be F32 of the shape [", shape[0], "]"));
  }
  if (config.rope->scaling != RopeScalingKind::kNone) {
    return TensorError(file.name(), tensor->name, "must not be there beside another RoPE scaling");
  }
  config.rope->scaling = RopeScalingKind::kFactors;
  config.rope->factors.resize(static_cast<size_t>(shape[0]));
  QUIRE_RETURN_IF_ERROR(
      file.Read(*tensor, 0, std::as_writable_bytes(std::span(config.rope->factors))));
  for (const float factor : config.rope->factors) {
    if (!(factor >= kMinRopeFactor && factor <= kMaxRopeFactor)) {
      return TensorError(file.name(), tensor->name, "factors must be in [1e-06, 1e+06]");
    }
  }
  return absl::OkStatus();
}

// Sets the sliding window of Mistral (architecture llama), which all layers use. Refuses a window
// of another family, because its files do not say which layers use the window.
absl::Status SetSlidingWindow(const Translation& translation, ModelConfig& config) {
  constexpr std::string_view kName = "attention.sliding_window";
  QUIRE_ASSIGN_OR_RETURN(const int64_t window, IfMissing(translation.Integer(kName), 0));
  if (window == 0 || window >= config.max_position_embeddings) {
    return absl::OkStatus();
  }
  if (config.architecture != "LlamaForCausalLM") {
    return translation.metadata().KeyError(translation.Key(kName),
                                           "is not supported for this architecture");
  }
  config.sliding_window = static_cast<int32_t>(window);
  config.layer_uses_sliding_window.assign(static_cast<size_t>(config.num_layers), true);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file) {
  QUIRE_ASSIGN_OR_RETURN(const GgufArchitecture architecture, ReadArchitecture(file.metadata()));
  Translation translation(file, architecture);
  QUIRE_RETURN_IF_ERROR(SetSizes(translation));
  QUIRE_RETURN_IF_ERROR(CheckSupported(translation, translation.json()["head_dim"].get<int64_t>()));
  QUIRE_RETURN_IF_ERROR(SetRope(translation));
  translation.json()["tie_word_embeddings"] = file.Find("output.weight") == nullptr;
  translation.json()["dtype"] = "bfloat16";
  translation.json()["bos_token_id"] = nullptr;
  translation.json()["eos_token_id"] = nullptr;
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config, translation.Parse());
  config.qkv_bias = file.Find("blk.0.attn_q.bias") != nullptr;
  config.attention_out_bias = file.Find("blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = file.Find("blk.0.ffn_gate.bias") != nullptr;
  QUIRE_RETURN_IF_ERROR(SetSlidingWindow(translation, config));
  QUIRE_RETURN_IF_ERROR(SetRopeFactors(file, config));
  if (file.metadata().Has(kGgufTokensKey)) {
    QUIRE_ASSIGN_OR_RETURN(GgufSpecialTokens special, ReadGgufSpecialTokens(file.metadata()));
    config.bos_token_id = special.bos;
    config.eos_token_ids = std::move(special.ends);
  }
  return config;
}

absl::StatusOr<GenerationDefaults> GenerationDefaultsFromGguf(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  const auto read = [&metadata](std::string_view name,
                                double min,
                                double max) -> absl::StatusOr<std::optional<float>> {
    const absl::StatusOr<double> value =
        metadata.GetFloat(absl::StrCat("general.sampling.", ToAbsl(name)), min, max);
    if (absl::IsNotFound(value.status())) {
      return std::nullopt;
    }
    QUIRE_RETURN_IF_ERROR(value.status());
    return static_cast<float>(*value);
  };
  GenerationDefaults defaults;
  QUIRE_ASSIGN_OR_RETURN(defaults.temperature, read("temp", 0.0, 100.0));
  QUIRE_ASSIGN_OR_RETURN(defaults.top_p, read("top_p", 0.0, 1.0));
  QUIRE_ASSIGN_OR_RETURN(defaults.min_p, read("min_p", 0.0, 1.0));
  QUIRE_ASSIGN_OR_RETURN(defaults.repetition_penalty, read("penalty_repeat", 1e-6, 1e6));
  const absl::StatusOr<int64_t> top_k =
      metadata.GetInteger("general.sampling.top_k", 0, kMaxInteger);
  if (!absl::IsNotFound(top_k.status())) {
    QUIRE_RETURN_IF_ERROR(top_k.status());
    defaults.top_k = static_cast<int32_t>(*top_k);
  }
  return defaults;
}

}  // namespace quire
