#include "common/model/model_config.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"
#include "common/model/config_reader.h"
#include "common/model/digest.h"
#include "common/model/gguf_config.h"
#include "common/model/gguf_file.h"
#include "common/model/model_family.h"
#include "common/model/model_file.h"
#include "common/model/model_path.h"
#include "common/model/text_tower.h"

namespace quire {
namespace {

constexpr std::string_view kFile = "config.json";
constexpr std::string_view kGenerationFile = "generation_config.json";
constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;          // real files are below 64 KiB
constexpr JsonLimits kConfigLimits = {.max_values = 100'000};  // real files have hundreds of values

std::string ParseArchitecture(ConfigReader& reader) {
  const Json* value = reader.Find("architectures");
  if (value == nullptr) {
    reader.Fail("architectures", "is required");
    return "";
  }
  if (!value->is_array() || value->size() != 1 || !value->front().is_string()) {
    reader.Fail("architectures", "must be a list of one string");
    return "";
  }
  return value->front().get<std::string>();
}

absl::StatusOr<std::string> ReadModelFile(const std::string& model_dir, std::string_view name) {
  const absl::StatusOr<std::string> path = ResolveModelFile(model_dir, std::string(name));
  if (!path.ok()) {
    return Error(path.status().code(),
                 ReasonOf(path.status()),
                 absl::StrCat(model_dir, "/", ToAbsl(name), ": ", path.status().message()));
  }
  return ReadFile(*path, kMaxConfigBytes);
}

absl::StatusOr<Json> ParseObject(const std::string& text, std::string_view file) {
  absl::StatusOr<Json> json = ParseJson(text, kConfigLimits);
  if (!json.ok()) {
    return InvalidArgument("CONFIG", absl::StrCat(ToAbsl(file), ": ", json.status().message()));
  }
  return json;
}

std::optional<float> OptionalFloat(ConfigReader& reader,
                                   std::string_view field,
                                   double min,
                                   double max) {
  std::optional<double> value = reader.OptionalNumber(field, min, max);
  return value.has_value() ? std::optional<float>(static_cast<float>(*value)) : std::nullopt;
}

void AddRope(const RopeConfig& rope, Digest& digest) {
  digest.AddDouble(rope.theta);
  digest.AddInt(static_cast<int64_t>(rope.scaling));
  digest.AddDouble(rope.factor);
  digest.AddDouble(rope.low_freq_factor);
  digest.AddDouble(rope.high_freq_factor);
  digest.AddInt(int64_t{rope.original_max_position_embeddings});
  if (rope.scaling <= RopeScalingKind::kLlama3) {
    return;  // these scalings do not use the fields below, and old step logs hash without them
  }
  digest.AddDouble(rope.beta_fast);
  digest.AddDouble(rope.beta_slow);
  digest.AddInt(int64_t{rope.truncate});
  digest.AddDouble(rope.rotated_share);
  digest.AddDouble(double{rope.attention_factor});
  for (const auto* factors : {&rope.factors, &rope.long_factors}) {
    digest.AddInt(uint64_t{factors->size()});
    for (float factor : *factors) {
      digest.AddDouble(double{factor});
    }
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& config_json) {
  QUIRE_ASSIGN_OR_RETURN(Json json, ParseObject(config_json, kFile));
  ConfigReader reader(json, std::string(kFile));
  ModelConfig config;
  config.architecture = ParseArchitecture(reader);
  QUIRE_RETURN_IF_ERROR(reader.status());
  QUIRE_ASSIGN_OR_RETURN(const std::optional<TextTower> tower,
                         FindTextTower(json, config.architecture, reader));
  if (!tower.has_value()) {
    QUIRE_RETURN_IF_ERROR(ParseModelFamily(reader, config));
    QUIRE_ASSIGN_OR_RETURN(config.quantization, ParseQuantizationConfig(reader));
    return config;
  }
  ConfigReader text_reader(tower->config, std::string(kFile), tower->prefix);
  config.architecture = tower->architecture;
  config.is_text_tower = true;
  QUIRE_RETURN_IF_ERROR(ParseModelFamily(text_reader, config));
  QUIRE_ASSIGN_OR_RETURN(config.quantization, ParseQuantizationConfig(text_reader));
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_path) {
  if (IsGgufPath(model_path)) {
    QUIRE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model_path));
    return ConfigFromGguf(file);
  }
  QUIRE_ASSIGN_OR_RETURN(std::string text, ReadModelFile(model_path, kFile));
  return ParseModelConfig(text);
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_path) {
  if (IsGgufPath(model_path)) {
    QUIRE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model_path));
    return GenerationDefaultsFromGguf(file);
  }
  absl::StatusOr<std::string> text = ReadModelFile(model_path, kGenerationFile);
  if (absl::IsNotFound(text.status())) {
    return GenerationDefaults();
  }
  QUIRE_RETURN_IF_ERROR(text.status());
  QUIRE_ASSIGN_OR_RETURN(Json json, ParseObject(*text, kGenerationFile));
  ConfigReader reader(json, std::string(kGenerationFile));
  constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
  GenerationDefaults defaults;
  defaults.do_sample = reader.OptionalBool("do_sample");
  defaults.temperature = OptionalFloat(reader, "temperature", 0.0, 100.0);
  defaults.top_k = reader.OptionalInt("top_k", {0, kMaxInt});
  defaults.top_p = OptionalFloat(reader, "top_p", 0.0, 1.0);
  defaults.min_p = OptionalFloat(reader, "min_p", 0.0, 1.0);
  defaults.repetition_penalty = OptionalFloat(reader, "repetition_penalty", 1e-6, 1e6);
  defaults.eos_token_ids = reader.TokenIds("eos_token_id", int64_t{kMaxInt} + 1);
  defaults.bos_token_id = reader.OptionalInt("bos_token_id", {0, kMaxInt});
  QUIRE_RETURN_IF_ERROR(reader.status());
  return defaults;
}

int32_t WindowOfAllLayers(const ModelConfig& config) {
  const std::vector<bool>& windowed = config.layer_uses_sliding_window;
  const bool is_everywhere = std::find(windowed.begin(), windowed.end(), false) == windowed.end();
  return config.sliding_window.has_value() && is_everywhere ? *config.sliding_window : 0;
}

uint64_t HashOf(const ModelConfig& config) {
  Digest digest;
  digest.AddBytes(config.architecture);
  for (int32_t number : {config.vocab_size,
                         config.hidden_size,
                         config.intermediate_size,
                         config.num_layers,
                         config.num_heads,
                         config.num_kv_heads,
                         config.head_dim,
                         config.max_position_embeddings,
                         config.learned_position_offset,
                         config.embedding_dim,
                         config.sliding_window.value_or(0)}) {
    digest.AddInt(int64_t{number});
  }
  for (auto kind : {static_cast<int64_t>(config.norm),
                    static_cast<int64_t>(config.activation),
                    static_cast<int64_t>(config.dtype)}) {
    digest.AddInt(kind);
  }
  for (bool flag : {config.gated_mlp,
                    config.qkv_bias,
                    config.attention_out_bias,
                    config.mlp_bias,
                    config.qk_norm,
                    config.tie_word_embeddings,
                    config.alibi,
                    config.embedding_norm,
                    config.norm_before,
                    config.residual_after_norm,
                    config.final_norm,
                    config.norm_affine,
                    config.rope.has_value()}) {
    digest.AddInt(int64_t{flag});
  }
  for (bool sliding : config.layer_uses_sliding_window) {
    digest.AddInt(int64_t{sliding});
  }
  digest.AddDouble(config.norm_eps);
  if (config.rope.has_value()) {
    AddRope(*config.rope, digest);
  }
  if (!config.quantization.groups.empty()) {
    AddTo(digest, config.quantization);
  }
  return digest.value();
}

}  // namespace quire
