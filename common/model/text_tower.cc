#include "common/model/text_tower.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

struct Wrapper {
  std::string_view architecture;
  // Type of the language model if config.json has no text_config, but holds the fields of the
  // language model itself. Empty: text_config is required.
  std::string_view flat_type = "";
};

constexpr std::array<Wrapper, 10> kWrappers = {
    {{"Idefics3ForConditionalGeneration"},
     {"InternVLForConditionalGeneration"},
     {"LlavaForConditionalGeneration"},
     {"LlavaNextForConditionalGeneration"},
     {"LlavaOnevisionForConditionalGeneration"},
     {"Mistral3ForConditionalGeneration"},
     {"Qwen2VLForConditionalGeneration", "qwen2_vl_text"},
     {"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text"},
     {"Qwen3VLForConditionalGeneration"},
     {"SmolVLMForConditionalGeneration"}}};

// A model_type of language models, and the architecture that computes it. A field that is not 0
// replaces the default of that architecture.
struct TextType {
  std::string_view name;
  std::string_view architecture;
  double rope_theta = 0.0;
  double rms_norm_eps = 0.0;
};

constexpr std::array<TextType, 7> kTextTypes = {{{"llama", "LlamaForCausalLM"},
                                                 {"mistral", "MistralForCausalLM"},
                                                 {"qwen2", "Qwen2ForCausalLM"},
                                                 {"qwen2_5_vl_text", "Qwen2ForCausalLM", 1e6, 1e-5},
                                                 {"qwen2_vl_text", "Qwen2ForCausalLM", 1e6, 1e-5},
                                                 {"qwen3", "Qwen3ForCausalLM"},
                                                 {"qwen3_vl_text", "Qwen3ForCausalLM", 5e5}}};

// Returns nullptr, after recording a fault, if the type is not known.
const TextType* FindTextType(ConfigReader& reader, std::string_view name) {
  std::string names;
  for (const TextType& type : kTextTypes) {
    if (type.name == name) {
      return &type;
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToAbsl(type.name));
  }
  reader.Fail(
      "text_config.model_type",
      absl::StrCat("must be one of ", names, " (got ", Printable(name, /*max_bytes=*/64), ")"));
  return nullptr;
}

bool IsMissing(const Json& config, const char* field) {
  return !config.contains(field) || config[field].is_null();
}

void SetIfMissing(Json& config, const char* field, const Json* value) {
  if (value != nullptr && IsMissing(config, field)) {
    config[field] = *value;
  }
}

// Copies to `config` (text_config) the fields that a file may have only at the outer level of
// config.json. Keeps the fields that `config` already has.
void TakeOuterFields(ConfigReader& reader, Json& config) {
  for (const char* field :
       {"bos_token_id", "eos_token_id", "quantization_config", "compression_config"}) {
    SetIfMissing(config, field, reader.Find(field));
  }
  if (IsMissing(config, "dtype") && IsMissing(config, "torch_dtype")) {
    SetIfMissing(config, "dtype", reader.Find("dtype"));
    SetIfMissing(config, "torch_dtype", reader.Find("torch_dtype"));
  }
  if (reader.Bool("tie_word_embeddings", false)) {
    config["tie_word_embeddings"] = true;
  }
}

}  // namespace

std::vector<std::string_view> TextTowerArchitectures() {
  std::vector<std::string_view> names;
  names.reserve(kWrappers.size());
  for (const Wrapper& wrapper : kWrappers) {
    names.push_back(wrapper.architecture);
  }
  return names;
}

absl::StatusOr<std::optional<TextTower>> FindTextTower(const Json& json,
                                                       const std::string& architecture,
                                                       ConfigReader& reader) {
  const auto* const wrapper =
      std::find_if(kWrappers.begin(), kWrappers.end(), [&](const Wrapper& candidate) {
        return candidate.architecture == architecture;
      });
  if (wrapper == kWrappers.end()) {
    return std::nullopt;
  }
  const Json* const text = reader.Find("text_config");
  if (text == nullptr && wrapper->flat_type.empty()) {
    reader.Fail("text_config", "is required");
  } else if (text != nullptr && !text->is_object()) {
    reader.Fail("text_config", "must be an object");
  }
  QUIRE_RETURN_IF_ERROR(reader.status());
  TextTower tower;
  std::string type_name(wrapper->flat_type);
  if (text != nullptr) {
    tower.prefix = "text_config.";
    tower.config = *text;
    ConfigReader text_reader(*text, "config.json", tower.prefix);
    type_name = text_reader.OptionalString("model_type").value_or("");
    QUIRE_RETURN_IF_ERROR(text_reader.status());
    TakeOuterFields(reader, tower.config);
  } else {
    tower.config = json;
  }
  const TextType* const type = FindTextType(reader, type_name);
  QUIRE_RETURN_IF_ERROR(reader.status());
  tower.architecture = type->architecture;
  const Json theta = type->rope_theta;
  const Json eps = type->rms_norm_eps;
  SetIfMissing(tower.config, "rope_theta", type->rope_theta > 0.0 ? &theta : nullptr);
  SetIfMissing(tower.config, "rms_norm_eps", type->rms_norm_eps > 0.0 ? &eps : nullptr);
  return tower;
}

}  // namespace quire
